#include "tests/gpu/overlap_ranks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "templates/overlap/slices.cuh"

namespace ordo::test {
namespace {

struct Range {
  std::int64_t begin, size;
};

Range range_of(std::int64_t size, std::int64_t parts, std::int64_t unit, int part) {
  const auto at = [&](int i) { return overlap::part_begin(size, static_cast<int>(parts), static_cast<int>(unit), i); };
  return {at(part), at(part + 1) - at(part)};
}

CUdeviceptr address(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

bool cuts_rows(OverlapOp op) {
  return op == OverlapOp::all_gather_gemm || op == OverlapOp::gemm_reduce_scatter || op == OverlapOp::gemm_all_reduce;
}

}  // namespace

Result<SimulatedRanks> SimulatedRanks::create(Gpu& device, const HelperKernels& kernels, const OverlapGemm& problem,
                                              const OverlapGemmKernel& kernel, std::uint64_t seed) {
  SimulatedRanks simulated(device, kernels, problem, kernel);
  for (int i = 0; i < simulated.ranks(); ++i) {
    auto rank = simulated.make_rank(i, seed);
    if (!rank) return rank.error();
    simulated.all_.push_back(*std::move(rank));
  }
  for (int i = 0; i < simulated.ranks(); ++i) {
    for (Rank& owner : simulated.all_) {
      char* slot =
          static_cast<char*>(owner.received.data()) + static_cast<std::size_t>(i) * simulated.buffers_.receive_slot_bytes;
      if (problem.op == OverlapOp::gemm_all_to_all)
        slot = static_cast<char*>(owner.d.view().data) +
               i * problem.m * owner.d.stride() * (problem.out == OutputType::fp32 ? 4 : 2);
      simulated.all_[static_cast<std::size_t>(i)].peer_slot.push_back(slot);
      simulated.all_[static_cast<std::size_t>(i)].peer_ready.push_back(simulated.ready(owner));
    }
  }
  return simulated;
}

Result<SimulatedRanks::Rank> SimulatedRanks::make_rank(int rank, std::uint64_t seed) const {
  // Lines of A and D are as long as those of the slots, so that copies are contiguous.
  auto in = measure::RankInputs::create(problem_, rank, 8);
  if (!in) return in.error();
  if (auto ok = in->fill(*kernels_, problem_.dtype, seed, rank); !ok) return ok.error();
  auto d = measure::make_output(problem_, rank);
  if (!d) return d.error();
  Rank made;
  made.in = *std::move(in);
  made.d = *std::move(d);
  const auto buffer = [](DeviceBuffer& out, std::size_t bytes) -> Result<void> {
    auto created = DeviceBuffer::allocate(bytes);
    if (!created) return created.error();
    out = *std::move(created);
    return {};
  };
  const auto slots = static_cast<std::size_t>(buffers_.slots);
  if (auto ok = buffer(made.received, slots * buffers_.receive_slot_bytes); !ok) return ok.error();
  if (auto ok = buffer(made.sent, slots * buffers_.send_slot_bytes); !ok) return ok.error();
  if (auto ok = buffer(made.words, (2 * buffers_.words + 1) * 4 + sizeof(OverlapFailure)); !ok) return ok.error();
  for (auto* stream : {&made.stream, &made.copies}) {
    auto created = Stream::create();
    if (!created) return created.error();
    *stream = std::make_unique<Stream>(*std::move(created));
  }
  return made;
}

OverlapExchange SimulatedRanks::exchange(int rank) const {
  const Rank& r = all_[static_cast<std::size_t>(rank)];
  std::uint32_t* abort = done(r) + buffers_.words;
  OverlapExchange x;
  x.rank = rank;
  x.received = r.received.data();
  x.sent = r.sent.data();
  x.ready = ready(r);
  x.done = done(r);
  x.abort = abort;
  x.failure = reinterpret_cast<OverlapFailure*>(abort + 1);
  x.timeout_ns = 5'000'000'000;
  x.peer_slot = r.peer_slot;
  x.peer_ready = r.peer_ready;
  x.peer_pitch = buffers_.send_pitch;
  return x;
}

/// Poison everywhere, no word set, before any rank starts.
Result<void> SimulatedRanks::prepare() {
  for (Rank& rank : all_) {
    for (DeviceBuffer* poisoned : {&rank.received, &rank.sent, &rank.d.buffer()})
      if (poisoned->bytes() > 0)
        if (auto ok = poisoned->fill(0xff); !ok) return ok;
    if (auto ok = rank.words.fill(0); !ok) return ok;
  }
  return device_->context.synchronize();
}

Result<void> SimulatedRanks::run(std::uint64_t delays) {
  if (auto ok = prepare(); !ok) return ok;
  std::vector<int> order(static_cast<std::size_t>(ranks()));
  std::iota(order.begin(), order.end(), 0);
  std::rotate(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(delays % order.size()), order.end());
  if ((delays & 1) != 0) std::reverse(order.begin(), order.end());
  for (const int i : order) {
    Rank& rank = all_[static_cast<std::size_t>(i)];
    const auto clocks = static_cast<long long>((delays >> (3 * i)) & 7) * 20000;
    if (clocks > 0)
      if (auto ok = device_->disturb({.blocks = 1, .clocks = clocks}, *rank.stream); !ok) return ok;
    const OverlapGemmTensors tensors{rank.in.a.view(), rank.in.b.view(), rank.d.view(), rank.in.bias.view().data};
    if (auto ok = kernel_.launch(problem_, tensors, exchange(i), rank.stream->get()); !ok) return ok;
  }
  // After all kernels: a copy stream that waits may hold up what the host submits behind it.
  if (kernel_.plan().transport == Transport::copy_engine) {
    for (int step = 1; step < ranks(); ++step)
      for (const int i : order)
        if (auto ok = push(i, (i + step) % ranks()); !ok) return ok;
    // Behind all partial sums: what a rank has finished has needed those of all others.
    if (problem_.op == OverlapOp::gemm_all_reduce)
      for (int step = 1; step < ranks(); ++step)
        for (const int i : order)
          if (auto ok = push_finished(i, (i + step) % ranks()); !ok) return ok;
  }
  for (Rank& rank : all_)
    if (auto ok = rank.stream->synchronize(); !ok) return ok;
  const auto waits = check_waits();
  const auto copies = finish_copies();
  return waits ? copies : waits;
}

/// Waits for the copies, which end soon after the kernels unless one has signalled too little: then they are released.
Result<void> SimulatedRanks::finish_copies() {
  const Stopwatch watch;
  Result<void> outcome;
  for (Rank& rank : all_) {
    while (device_->driver->streamQuery(rank.copies->get()) == CUDA_ERROR_NOT_READY) {
      if (watch.seconds() < 2) continue;
      outcome = Error{ErrorCode::driver, "a copy waits for tiles that no kernel has signalled"};
      for (Rank& each : all_)
        if (auto ok = each.words.fill(0x3f); !ok) return ok;
      break;
    }
    if (auto ok = rank.copies->synchronize(); !ok) return ok;
  }
  return outcome;
}

/// Whether any kernel's wait failed. They have ended.
Result<void> SimulatedRanks::check_waits() const {
  for (const Rank& rank : all_) {
    OverlapFailure failure;
    if (auto ok = rank.words.copy_to_host(&failure, sizeof failure, (2 * buffers_.words + 1) * 4); !ok) return ok;
    if (failure.state != 0)
      return Error{ErrorCode::driver, fmt::format("rank {} waited for slice {} chunk {}: expected {}, seen {}", failure.rank,
                                                  failure.slice, failure.chunk, failure.expected, failure.seen)};
  }
  return {};
}

/// What `from` sends to `to`, chunk by chunk, as its copy engine would.
Result<void> SimulatedRanks::push(int from, int to) {
  Rank &source = all_[static_cast<std::size_t>(from)], &target = all_[static_cast<std::size_t>(to)];
  const auto slot = [](const DeviceBuffer& buffer, std::size_t bytes, int index) {
    return static_cast<char*>(buffer.data()) + bytes * static_cast<std::size_t>(index);
  };
  const int partial = kernel_.plan().partial == OutputType::fp32 ? 4 : 2, out = problem_.out == OutputType::fp32 ? 4 : 2;
  for (int chunk = 0; chunk < kernel_.plan().sub_slices; ++chunk) {
    Result<void> pushed;
    switch (problem_.op) {
      case OverlapOp::gemm:
        break;
      case OverlapOp::all_gather_gemm:
        pushed = push_chunk(from, to, from, chunk, slot(target.received, buffers_.receive_slot_bytes, from),
                            source.in.a.view().data, buffers_.receive_pitch * 2, false);
        break;
      case OverlapOp::all_to_all_gemm:
        pushed = push_chunk(from, to, from, chunk, slot(target.received, buffers_.receive_slot_bytes, from),
                            static_cast<char*>(source.in.a.view().data) + to * problem_.m * buffers_.receive_pitch * 2,
                            buffers_.receive_pitch * 2, false);
        break;
      case OverlapOp::gemm_reduce_scatter:
      case OverlapOp::gemm_all_reduce:
        pushed = push_chunk(from, to, to, chunk, slot(target.received, buffers_.receive_slot_bytes, from),
                            slot(source.sent, buffers_.send_slot_bytes, to), buffers_.send_pitch * partial, true);
        break;
      case OverlapOp::gemm_all_to_all:
        pushed = push_chunk(from, to, to, chunk, source.peer_slot[static_cast<std::size_t>(to)],
                            slot(source.sent, buffers_.send_slot_bytes, to), buffers_.send_pitch * out, true);
        break;
    }
    if (!pushed) return pushed;
  }
  return {};
}

/// gemm_all_reduce: the slice of D that `from` owns, once its chunks are done.
Result<void> SimulatedRanks::push_finished(int from, int to) {
  Rank &source = all_[static_cast<std::size_t>(from)], &target = all_[static_cast<std::size_t>(to)];
  const int out = problem_.out == OutputType::fp32 ? 4 : 2;
  const std::int64_t pitch = target.d.stride() * out;
  const std::int64_t offset = range_of(problem_.m, problem_.ranks, 1, from).begin * pitch;
  for (int chunk = 0; chunk < kernel_.plan().sub_slices; ++chunk)
    if (auto ok = push_chunk(from, -1 - to, from, chunk, static_cast<char*>(target.d.view().data) + offset,
                             static_cast<char*>(source.d.view().data) + offset, pitch, true);
        !ok)
      return ok;
  return {};
}

/// One chunk of a slice: waits for its tiles if the kernel makes them, copies its rows, says so at the target. `to` < 0: of
/// rank -1 - to, which does not wait for it.
Result<void> SimulatedRanks::push_chunk(int from, int to, int slice, int chunk, void* destination, const void* source,
                                        std::int64_t pitch_bytes, bool waits) {
  const OverlapPlan& plan = kernel_.plan();
  const Driver& driver = *device_->driver;
  Rank& rank = all_[static_cast<std::size_t>(from)];
  CUstream stream = rank.copies->get();
  const std::int64_t rows = cuts_rows(problem_.op) ? range_of(problem_.m, problem_.ranks, 1, slice).size : problem_.m;
  const Range part = range_of(rows, plan.sub_slices, std::int64_t{plan.tile_m} * plan.cluster, chunk);
  const std::uint32_t arrivals = overlap_chunk_arrivals(problem_, plan, slice, chunk);
  if (part.size == 0 || (waits && arrivals == 0)) return {};
  const auto word = static_cast<std::size_t>(slice * plan.sub_slices + chunk);
  if (waits)
    if (auto ok = driver.check(driver.streamWaitValue32(stream, address(done(rank) + word), arrivals, CU_STREAM_WAIT_VALUE_GEQ),
                               "wait");
        !ok)
      return ok;
  const std::int64_t offset = part.begin * pitch_bytes;
  if (auto ok = driver.check(driver.memcpyDtoDAsync(address(static_cast<char*>(destination) + offset),
                                                    address(static_cast<const char*>(source) + offset),
                                                    static_cast<std::size_t>(part.size * pitch_bytes), stream),
                             "copy");
      !ok)
    return ok;
  if (to < 0) return {};
  std::uint32_t* flag = ready(all_[static_cast<std::size_t>(to)]) + from * plan.sub_slices + chunk;
  return driver.check(driver.streamWriteValue32(stream, address(flag), 1, CU_STREAM_WRITE_VALUE_DEFAULT), "write");
}

Result<OverlapFailure> SimulatedRanks::run_alone(int rank, std::uint64_t timeout_ns, bool aborted) {
  if (auto ok = prepare(); !ok) return ok.error();
  Rank& alone = all_[static_cast<std::size_t>(rank)];
  const std::uint32_t abort = aborted ? 1 : 0;
  if (auto ok = alone.words.copy_from_host(&abort, 4, 2 * buffers_.words * 4); !ok) return ok.error();
  OverlapExchange x = exchange(rank);
  x.timeout_ns = timeout_ns;
  const OverlapGemmTensors tensors{alone.in.a.view(), alone.in.b.view(), alone.d.view(), alone.in.bias.view().data};
  if (auto ok = kernel_.launch(problem_, tensors, x, alone.stream->get()); !ok) return ok.error();
  if (auto ok = alone.stream->synchronize(); !ok) return ok.error();
  OverlapFailure failure;
  if (auto ok = alone.words.copy_to_host(&failure, sizeof failure, (2 * buffers_.words + 1) * 4); !ok) return ok.error();
  return failure;
}

Result<std::string> SimulatedRanks::check_rank(int rank, double& worst) {
  std::vector<const measure::RankInputs*> inputs;
  for (const Rank& each : all_) inputs.push_back(&each.in);
  const Rank& r = all_[static_cast<std::size_t>(rank)];
  const bool rounded = kernel_.plan().partial == OutputType::same;
  auto deviation = measure::compare_with_fp64(problem_, rank, inputs, r.d.view(), rounded, *kernels_);
  if (!deviation) return deviation.error();
  worst = std::max(worst, deviation->worst);
  std::string failure;
  if (deviation->beyond != 0)
    failure =
        fmt::format("rank {}: {} elements beyond the bound, worst {:.3g} times; ", rank, deviation->beyond, deviation->worst);
  // The copies may write between the rows of D.
  if (problem_.op == OverlapOp::gemm_all_to_all || problem_.op == OverlapOp::gemm_all_reduce) return failure;
  auto touched = r.d.touched_padding(*kernels_);
  if (!touched) return touched.error();
  if (*touched != 0) failure += fmt::format("rank {}: {} bytes outside D were written; ", rank, *touched);
  return failure;
}

Result<std::string> SimulatedRanks::check(double& worst) {
  std::string failures;
  for (int rank = 0; rank < ranks(); ++rank) {
    auto failure = check_rank(rank, worst);
    if (!failure) return failure;
    failures += *failure;
  }
  return failures;
}

Result<std::vector<unsigned char>> SimulatedRanks::outputs() const {
  std::vector<unsigned char> bytes;
  for (const Rank& rank : all_) {
    const DeviceBuffer& d = rank.d.buffer();
    const std::size_t begin = bytes.size();
    bytes.resize(begin + d.bytes());
    if (auto ok = d.copy_to_host(bytes.data() + begin, d.bytes()); !ok) return ok.error();
  }
  return bytes;
}

}  // namespace ordo::test
