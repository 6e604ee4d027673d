#include "runtime/peers/exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace ordo::peers {
namespace {

constexpr std::size_t kAlign = 256;

std::size_t round_up(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

}  // namespace

SliceExchange::SliceExchange(Communicator::Impl& group, ExchangeRequest request)
    : group_(group),
      d_(group.driver()),
      request_(std::move(request)),
      rank_(group.links.rank()),
      ranks_(group.links.ranks()),
      ready_words_(static_cast<std::size_t>(ranks_ * request_.schedule.sub_slices)),
      word_count_(3 * ready_words_ + static_cast<std::size_t>(ranks_)),
      sends_to_(static_cast<std::size_t>(ranks_)),
      receives_from_(static_cast<std::size_t>(ranks_)) {
  for (const overlap::Transfer& t : request_.schedule.transfers) {
    // Ranks that exchange no bytes do not wait for each other, and so must not tell each other either: what is told and not
    // waited for would be lost.
    const bool any = place_of(t).bytes > 0;
    if (t.from == rank_ && any) sends_to_[static_cast<std::size_t>(t.to)] = true;
    if (t.to == rank_ && any) receives_from_[static_cast<std::size_t>(t.from)] = true;
    arrives_at_end_ = arrives_at_end_ || t.needed_by == overlap::kAtEnd;
    slots_ = std::max(slots_, t.slot + 1);
  }
}

Result<std::unique_ptr<SliceExchange>> SliceExchange::create(Communicator::Impl& group, ExchangeRequest request) {
  if (auto same = group.agree("problem and plan", request.description); !same) return same.error();
  const overlap::StepProof proof = overlap::prove_steps(request.schedule);
  if (!proof.violations.empty()) return Error{ErrorCode::invalid_plan, proof.violations.front()};
  if (auto runs = overlap::check_route(request.schedule.exchange, request.schedule.route); !runs)
    return Error{ErrorCode::invalid_plan, runs.error().message};
  if (request.schedule.ranks != group.links.ranks() || request.places.size() != request.schedule.transfers.size()) {
    return Error{ErrorCode::internal, "the schedule of an exchange does not fit its communicator"};
  }
  if (request.kernel_sends && group.transport == PeerTransport::nccl) {
    return Error{ErrorCode::unsupported, "a kernel cannot store into the memory of other ranks here: use transport=copy_engine"};
  }
  std::unique_ptr<SliceExchange> out(new SliceExchange(group, std::move(request)));
  const std::size_t receive = round_up(out->request_.receive_bytes);
  auto memory = group.allocate(receive + round_up(4 * out->word_count_));
  if (!memory) return memory.error();
  out->memory_ = *std::move(memory);
  out->words_offset_ = receive;
  if (auto all = group.conclude(out->open()); !all) return all.error();
  group.watchdog->add(*out->watch_);
  return out;
}

Result<void> SliceExchange::open() {
  auto failure = PinnedMemory::allocate(d_, sizeof(KernelFailure));
  if (!failure) return failure.error();
  failure_ = *std::move(failure);
  if (request_.send_bytes > 0) {
    if (auto ok = d_.check(d_.memAlloc(&sent_, request_.send_bytes), fmt::format("cuMemAlloc of {} bytes", request_.send_bytes));
        !ok)
      return ok;
  }
  auto copies = create_waiting_stream(d_);
  if (!copies) return copies.error();
  copies_ = *copies;
  for (CUevent* event : {&begun_, &copied_, &finished_, &freed_}) {
    if (auto ok = d_.check(d_.eventCreate(event, CU_EVENT_DISABLE_TIMING), "cuEventCreate"); !ok) return ok;
  }
  watch_ =
      std::make_unique<LaunchWatch>(LaunchWatch::Setup{.driver = &d_,
                                                       .failure = static_cast<const KernelFailure*>(failure_.host()),
                                                       .timeout = group_.options.timeout,
                                                       .words = word(rank_, 0),
                                                       .count = word_count_,
                                                       .explain = [this](const std::uint32_t* words) { return explain(words); }});
  return watch_->open();
}

SliceExchange::~SliceExchange() {
  if (copies_ != nullptr && watch_ != nullptr) {
    // What is in flight ends: by itself, or because the watchdog releases it.
    const Deadline deadline = Deadline::after(group_.options.timeout + Milliseconds(2000));
    while (d_.streamQuery(copies_) == CUDA_ERROR_NOT_READY && !deadline.passed())
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    group_.watchdog->remove(*watch_);
  }
  watch_.reset();
  for (CUevent event : {begun_, copied_, finished_, freed_}) {
    if (event != nullptr) d_.eventDestroy(event);
  }
  if (copies_ != nullptr) d_.streamDestroy(copies_);
  if (sent_ != 0) d_.memFree(sent_);
  group_.release(std::move(memory_));
}

CUdeviceptr SliceExchange::received_at(int rank) const { return memory_.of(rank); }
CUdeviceptr SliceExchange::ready_at(int rank) const { return word(rank, 0); }

std::size_t SliceExchange::ready_index(const overlap::Transfer& transfer) const {
  const bool at_end = transfer.needed_by == overlap::kAtEnd && !request_.kernel_sends;
  const int source = gathers() ? transfer.slice : transfer.from;  // whose it is, whoever brings it
  return (at_end ? ready_words_ : 0) + static_cast<std::size_t>(source * request_.schedule.sub_slices + transfer.sub);
}

std::size_t SliceExchange::done_index(int slice, int sub) const {
  return 2 * ready_words_ + static_cast<std::size_t>(ranks_ + slice * request_.schedule.sub_slices + sub);
}

const ChunkPlace& SliceExchange::place_of(const overlap::Transfer& transfer) const {
  return request_.places[static_cast<std::size_t>(&transfer - request_.schedule.transfers.data())];
}

Result<LaunchWords> SliceExchange::begin(CUstream stream, CUdeviceptr source) {
  if (auto healthy = group_.watchdog->status(); !healthy) return healthy.error();
  source_ = source;
  if (auto opened = open_launch(stream); !opened) {
    group_.watchdog->raise(opened.error());  // half a launch is enqueued: the peers would wait for the rest
    abandon(stream);
    return opened.error();
  }
  return words();
}

LaunchWords SliceExchange::words() const {
  return {.received = memory_.local(),
          .sent = sent_,
          .ready = word(rank_, 0),
          .done = word(rank_, done_index(0, 0)),
          .expected = epoch_,
          .abort = group_.watchdog->abort_word(),
          .failure = failure_.device(),
          .timeout_ns = static_cast<std::uint64_t>(group_.options.timeout.count()) * 1'000'000};
}

Result<void> SliceExchange::open_launch(CUstream stream) {
  if (auto entered = enter(stream); !entered || !gathers()) return entered;
  if (auto sent = send_all(source_); !sent) return sent;
  // NCCL's kernels need SMs that a kernel waiting for them would hold: what arrives is there before it starts.
  if (!mapped()) return follow(stream, copies_, copied_);
  return request_.overlaps ? Result<void>() : wait_for_arrivals(stream);
}

// Partial sums leave while the kernel runs in any case: it waits for those of the others itself.
bool SliceExchange::sends_behind_kernel() const {
  return !request_.overlaps && overlap::pattern_of(request_.schedule.exchange) == overlap::Pattern::scatter;
}

// The epoch, and the copy stream behind the caller's work.
Result<void> SliceExchange::enter(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (auto ok = d_.check(d_.streamIsCapturing(stream, &status), "cuStreamIsCapturing"); !ok) return ok;
  capturing_ = status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (!frozen_) ++epoch_;
  frozen_ = frozen_ || capturing_;
  if (!capturing_) {
    if (auto watched = watch_->begin(stream); !watched) return watched;
  }
  if (auto forked = follow(copies_, stream, begun_); !forked) return forked;
  if (arrives_at_end_ && mapped()) {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (!receives_from_[static_cast<std::size_t>(rank)]) continue;
      if (auto told = write(copies_, word(rank, empty_index(rank_)), free_value()); !told) return told;
    }
  }
  for (int rank = 0; rank < ranks_ && request_.kernel_sends; ++rank) {
    if (!sends_to_[static_cast<std::size_t>(rank)]) continue;
    if (auto free = wait_until_free(stream, rank); !free) return free;
  }
  return {};
}

Result<void> SliceExchange::end(CUstream stream) {
  auto closed = group_.watchdog->status();
  if (closed) {
    closed = close_launch(stream);
    if (!closed) group_.watchdog->raise(closed.error());
  }
  if (!closed) abandon(stream);
  return closed;
}

void SliceExchange::abandon(CUstream stream) { static_cast<void>(follow(stream, copies_, copied_)); }

Result<void> SliceExchange::close_launch(CUstream stream) {
  // Behind the kernel: its waits for what is computed must not keep the kernel from starting where streams share a hardware
  // queue.
  if (!gathers() && !request_.kernel_sends) {
    if (sends_behind_kernel()) {
      if (auto behind = follow(copies_, stream, begun_); !behind) return behind;
    }
    if (auto sent = send_all(source_); !sent) return sent;
  }
  if (auto joined = follow(stream, copies_, copied_); !joined) return joined;
  if (!gathers()) {
    if (auto arrived = wait_for_arrivals(stream); !arrived) return arrived;
  }
  if (auto behind = follow(copies_, stream, finished_); !behind) return behind;
  if (auto given = give_back(stream); !given) return given;
  return capturing_ ? Result<void>() : watch_->end(stream);
}

// `stream` goes on behind what `after` holds now.
Result<void> SliceExchange::follow(CUstream stream, CUstream after, CUevent event) {
  if (auto ok = d_.check(d_.eventRecord(event, after), "cuEventRecord"); !ok) return ok;
  return d_.check(d_.streamWaitEvent(stream, event, 0), "cuStreamWaitEvent");
}

Result<void> SliceExchange::wait(CUstream stream, CUdeviceptr at, std::uint32_t value) {
  return d_.check(d_.streamWaitValue32(stream, at, value, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32");
}

Result<void> SliceExchange::write(CUstream stream, CUdeviceptr at, std::uint32_t value) {
  return d_.check(d_.streamWriteValue32(stream, at, value, CU_STREAM_WRITE_VALUE_DEFAULT), "cuStreamWriteValue32");
}

Result<void> SliceExchange::send_all(CUdeviceptr source) {
  std::uint64_t asked = 0;  // ranks, by bit
  for (int slot = 0; slot < slots_; ++slot) {
    if (mapped()) {
      for (const overlap::Transfer& t : request_.schedule.transfers) {
        if (t.slot != slot || t.from != rank_ || place_of(t).bytes == 0 || (asked >> t.to & 1) != 0) continue;
        asked |= std::uint64_t{1} << t.to;
        if (auto free = wait_until_free(copies_, t.to); !free) return free;
      }
    }
    if (auto sent = send_slot(slot, source); !sent) return sent;
  }
  return {};
}

Result<void> SliceExchange::wait_until_free(CUstream stream, int destination) {
  const CUdeviceptr empty = word(rank_, empty_index(destination));
  if (auto waited = wait(stream, empty, free_value()); !waited || !frozen_) return waited;
  return write(stream, empty, free_value() - 1);
}

Result<void> SliceExchange::send_slot(int slot, CUdeviceptr source) {
  const overlap::Transfer *out = nullptr, *in = nullptr;
  for (const overlap::Transfer& t : request_.schedule.transfers) {
    if (t.slot != slot || place_of(t).bytes == 0) continue;
    if (t.from == rank_) out = &t;
    if (t.to == rank_) in = &t;
  }
  if (out != nullptr) {
    if (auto made = wait_until_made(*out); !made) return made;
  }
  if (!mapped()) return send_by_nccl(out, in, source);
  return out == nullptr ? Result<void>() : send_by_copy(*out, place_of(*out), source);
}

// What is sent has been computed here, or has arrived here.
Result<void> SliceExchange::wait_until_made(const overlap::Transfer& t) {
  if (t.after_transfer != overlap::kNone && mapped()) {  // NCCL's transfers follow each other on this stream
    const overlap::Transfer& brought = request_.schedule.transfers[static_cast<std::size_t>(t.after_transfer)];
    if (auto arrived = wait(copies_, word(rank_, ready_index(brought)), epoch_); !arrived) return arrived;
  }
  if (t.after_step == overlap::kNone) return {};
  const CUdeviceptr done = word(rank_, done_index(t.slice, t.sub));
  const bool again = t.needed_by == overlap::kAtEnd && arrives_at_end_ && t.slice == rank_ && ranks_ > 2;
  if (auto complete = wait(copies_, done, place_of(t).signals); !complete) return complete;
  // What one rank owns goes to all others: the last of them takes the count back.
  const bool last = !again || t.to == overlap::wrap(rank_ - 1, ranks_);
  return last ? write(copies_, done, 0) : Result<void>();
}

Result<void> SliceExchange::send_by_copy(const overlap::Transfer& t, const ChunkPlace& place, CUdeviceptr source) {
  const CUresult copied = d_.memcpyDtoDAsync(memory_.of(t.to) + place.to_offset, from(place, source), place.bytes, copies_);
  if (copied != CUDA_SUCCESS) return d_.check(copied, fmt::format("a copy of slice {}.{} to rank {}", t.slice, t.sub, t.to));
  return write(copies_, word(t.to, ready_index(t)), epoch_);
}

CUdeviceptr SliceExchange::from(const ChunkPlace& place, CUdeviceptr source) const {
  const CUdeviceptr buffer = place.from_received ? memory_.local() : source != 0 ? source : sent_;
  return buffer + place.from_offset;
}

Result<void> SliceExchange::send_by_nccl(const overlap::Transfer* out, const overlap::Transfer* in, CUdeviceptr source) {
  if (out == nullptr && in == nullptr) return {};
  const auto calls = [&](const Nccl& n, void* comm) {
    const int type = static_cast<int>(NcclType::int8);
    int result = 0;
    if (out != nullptr) {
      const ChunkPlace& place = place_of(*out);
      result = n.send(pointer(from(place, source)), place.bytes, type, out->to, comm, copies_);
    }
    if (in != nullptr && result == 0) {
      const ChunkPlace& place = place_of(*in);
      result = n.recv(pointer(memory_.local() + place.to_offset), place.bytes, type, in->from, comm, copies_);
    }
    return result;
  };
  if (auto called = group_.nccl->group(calls, group_.deadline()); !called) return called;
  return in == nullptr ? Result<void>() : write(copies_, word(rank_, ready_index(*in)), epoch_);
}

Result<void> SliceExchange::wait_for_arrivals(CUstream stream) {
  for (const overlap::Transfer& t : request_.schedule.transfers) {
    if (t.to != rank_ || (t.needed_by != overlap::kAtEnd && !gathers()) || place_of(t).bytes == 0) continue;
    const std::uint32_t value = request_.kernel_sends ? place_of(t).signals : epoch_;
    if (auto waited = wait(stream, word(rank_, ready_index(t)), value); !waited) return waited;
  }
  return {};
}

// This rank has read what it received: its sources may send again.
Result<void> SliceExchange::give_back(CUstream stream) {
  const bool reset = frozen_ || request_.kernel_sends;
  if (reset) {
    const std::uint32_t before = request_.kernel_sends ? 0 : epoch_ - 1;
    if (auto ok = d_.check(d_.memsetD32Async(word(rank_, 0), before, 2 * ready_words_, copies_), "cuMemsetD32Async"); !ok)
      return ok;
  }
  if (!arrives_at_end_ && mapped()) {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (!receives_from_[static_cast<std::size_t>(rank)]) continue;
      if (auto told = write(copies_, word(rank, empty_index(rank_)), frozen_ ? epoch_ - 1 : epoch_); !told) return told;
    }
  }
  return reset ? follow(stream, copies_, freed_) : Result<void>();
}

std::string SliceExchange::explain(const std::uint32_t* words) const {
  const auto lacks = [&](std::size_t index, std::uint32_t value) { return static_cast<std::int32_t>(words[index] - value) < 0; };
  std::string text;
  const auto add = [&](const std::string& what) { text += (text.empty() ? "" : "; ") + what; };
  for (const overlap::Transfer& t : request_.schedule.transfers) {
    const std::uint32_t expected = request_.kernel_sends ? place_of(t).signals : epoch_;
    if (t.to == rank_ && place_of(t).bytes > 0 && lacks(ready_index(t), expected)) {
      add(fmt::format("rank {} waits for slice {}.{} from rank {}: expected {}, saw {}", rank_, t.slice, t.sub, t.from, expected,
                      words[ready_index(t)]));
    }
  }
  for (int rank = 0; rank < ranks_ && !frozen_; ++rank) {  // where it is taken back, the word says nothing afterwards
    if (!sends_to_[static_cast<std::size_t>(rank)] || !mapped() || !lacks(empty_index(rank), free_value())) continue;
    add(fmt::format("rank {} waits until rank {} {}: expected {}, saw {}", rank_, rank,
                    arrives_at_end_ ? "has launched" : "has read what it sent", free_value(), words[empty_index(rank)]));
  }
  return text.empty() ? fmt::format("rank {} waits for its own kernel or for work before it", rank_) : text;
}

}  // namespace ordo::peers
