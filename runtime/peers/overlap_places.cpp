// Where each transfer's bytes lie. Receive buffer: a slot a source, then D where other ranks write to it. Send buffer: a slot an
// owner.
#include <fmt/format.h>

#include "codegen/overlap/planner.hpp"
#include "runtime/overlap_slices.hpp"
#include "runtime/peers/overlap_runner.hpp"

namespace ordo::peers {
namespace {

struct Rows {
  std::int64_t begin = 0, size = 0;
};

class Places {
 public:
  Places(const OverlapGemm& problem, const OverlapPlan& plan)
      : p_(problem), plan_(plan), buffers_(overlap_buffers(problem, plan)) {}

  [[nodiscard]] ChunkPlace of(const overlap::Transfer& t) const {
    switch (p_.op) {
      case OverlapOp::all_gather_gemm:
        return gathered(t, chunk(t, slice_rows(p_, t.slice)), p_.k, 0);
      case OverlapOp::all_to_all_gemm:  // the rows of A that the receiver computes with
        return gathered(t, chunk(t, p_.m), slice_range(p_.k, p_.ranks, t.from).size, t.to * p_.m);
      case OverlapOp::gemm_all_to_all:
        return scattered(t);
      default:
        return t.needed_by == overlap::kAtEnd ? finished(t) : partial(t);
    }
  }

  [[nodiscard]] const OverlapBuffers& buffers() const { return buffers_; }
  /// Where D begins in the receive buffer.
  [[nodiscard]] std::size_t output() const { return static_cast<std::size_t>(buffers_.slots) * buffers_.receive_slot_bytes; }

 private:
  /// Rows of the transfer's chunk, in its slice of `rows`.
  [[nodiscard]] Rows chunk(const overlap::Transfer& t, std::int64_t rows) const {
    const int unit = plan_.tile_m * plan_.cluster;
    const std::int64_t begin = overlap::part_begin(rows, plan_.sub_slices, unit, t.sub);
    return {begin, overlap::part_begin(rows, plan_.sub_slices, unit, t.sub + 1) - begin};
  }

  /// `rows` lines of `line` elements, `pitch` elements apart, without what lies behind the last.
  static std::size_t bytes(std::int64_t rows, std::int64_t line, std::int64_t pitch, int element) {
    return rows == 0 || line == 0 ? 0 : static_cast<std::size_t>(((rows - 1) * pitch + line) * element);
  }
  static std::size_t lines(std::int64_t rows, std::int64_t pitch, int element) {
    return static_cast<std::size_t>(rows * pitch * element);
  }

  /// From A where the slice is the sender's own, else from where another rank brought it: at the same place of every rank.
  [[nodiscard]] ChunkPlace gathered(const overlap::Transfer& t, Rows rows, std::int64_t line, std::int64_t first_row) const {
    const std::int64_t pitch = buffers_.receive_pitch;
    const std::size_t to = static_cast<std::size_t>(t.slice) * buffers_.receive_slot_bytes + lines(rows.begin, pitch, 2);
    const bool own = t.slice == t.from;
    return {.from_offset = own ? lines(first_row + rows.begin, pitch, 2) : to,
            .from_received = !own,
            .to_offset = to,
            .bytes = bytes(rows.size, line, pitch, 2)};
  }

  [[nodiscard]] ChunkPlace partial(const overlap::Transfer& t) const {
    const int element = plan_.partial == OutputType::fp32 ? 4 : 2;
    const Rows rows = chunk(t, slice_rows(p_, t.slice));
    const std::size_t within = lines(rows.begin, buffers_.send_pitch, element);
    return {.from_offset = static_cast<std::size_t>(t.to) * buffers_.send_slot_bytes + within,
            .to_offset = static_cast<std::size_t>(t.from) * buffers_.receive_slot_bytes + within,
            .bytes = bytes(rows.size, p_.n, buffers_.send_pitch, element),
            .signals = overlap_chunk_arrivals(p_, plan_, t.slice, t.sub)};
  }

  /// The rows of D that `from` owns, to the same place of another D.
  [[nodiscard]] ChunkPlace finished(const overlap::Transfer& t) const {
    const int element = out_bytes();
    const Rows rows = chunk(t, slice_rows(p_, t.slice));
    const std::size_t at =
        output() + lines(slice_range(p_.m, p_.ranks, t.slice).begin + rows.begin, buffers_.output_pitch, element);
    return {.from_offset = at,
            .from_received = true,
            .to_offset = at,
            .bytes = bytes(rows.size, p_.n, buffers_.output_pitch, element),
            .signals = overlap_chunk_arrivals(p_, plan_, t.slice, t.sub)};
  }

  /// The columns that `to` owns, to the rows of its D that are `from`'s.
  [[nodiscard]] ChunkPlace scattered(const overlap::Transfer& t) const {
    const int element = out_bytes();
    const Rows rows = chunk(t, slice_rows(p_, t.to));
    return {.from_offset =
                static_cast<std::size_t>(t.to) * buffers_.send_slot_bytes + lines(rows.begin, buffers_.send_pitch, element),
            .to_offset = output() + lines(t.from * p_.m + rows.begin, buffers_.output_pitch, element),
            .bytes = bytes(rows.size, slice_range(p_.n, p_.ranks, t.to).size, buffers_.output_pitch, element),
            .signals = overlap_chunk_arrivals(p_, plan_, t.to, t.sub)};
  }

  [[nodiscard]] int out_bytes() const { return p_.out == OutputType::fp32 ? 4 : 2; }

  const OverlapGemm& p_;
  const OverlapPlan& plan_;
  OverlapBuffers buffers_;
};

}  // namespace

Result<ExchangeRequest> exchange_request(const OverlapGemm& problem, const OverlapPlan& plan, bool overlaps) {
  auto exchange = overlap::exchange_of(problem.op);
  if (!exchange) return exchange.error();
  auto schedule = overlap::make_steps(
      {*exchange, static_cast<overlap::Route>(plan.route), static_cast<int>(problem.ranks), plan.sub_slices, {}});
  if (!schedule) return schedule.error();
  const Places places(problem, plan);
  const OverlapBuffers& buffers = places.buffers();
  ExchangeRequest out;
  for (const overlap::Transfer& t : schedule->transfers) out.places.push_back(places.of(t));
  out.schedule = *std::move(schedule);
  out.receive_bytes = places.output() + buffers.output_bytes;
  out.send_bytes = static_cast<std::size_t>(buffers.slots) * buffers.send_slot_bytes;
  out.kernel_sends = plan.transport == Transport::direct;
  out.overlaps = overlaps;
  out.description = fmt::format("{} {} overlaps={:d}", to_text(problem), to_text(plan), overlaps);
  return out;
}

}  // namespace ordo::peers
