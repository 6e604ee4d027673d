// A CUDA driver made of host memory and threads: streams are threads, shareable memory is memfd, a device's memory is the
// process's. What runtime/peers does on GPUs runs on it unchanged, between threads and between processes, and every call can be
// made to fail.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>

#include "runtime/driver.hpp"

namespace ordo::test::fake {

/// Only the functions that runtime/peers calls; the others are null.
const Driver& driver();

/// Forgets injected failures and delays. Nothing of an earlier test may still be in use.
void reset();

/// Lets the driver's function `name` ("memCreate") return `result` on device `device` (-1: on any) from its call number `after`
/// on.
void fail(const std::string& name, CUresult result, int device = -1, int after = 0);

/// Every operation of a stream is preceded by a random pause of up to so many microseconds.
void delay(std::uint32_t seed, int most_microseconds);

/// After a failure copies are released whatever they waited for, and what they move is undefined: while this is on, TSan is not
/// told of them.
void undefined_copies(bool on);

/// Enqueues a host function, as a kernel would be.
void launch(CUstream stream, std::function<void()> kernel);

/// Whether streams say, to this thread, that they are being captured. They run what is enqueued all the same.
void capture(bool on);

/// What was made and not yet given back.
struct Live {
  int allocations = 0, handles = 0, reservations = 0, mappings = 0, ipc = 0, pinned = 0, streams = 0, events = 0, contexts = 0;
  friend bool operator==(const Live&, const Live&) = default;
};
Live live();

/// Words that kernels and streams share, as the hardware orders them.
std::uint32_t load_acquire(CUdeviceptr word);
void add_release(CUdeviceptr word, std::uint32_t value);

/// Records what a wait of a kernel missed, as the kernels do: the first failure stays, and its state says when all of it is
/// there.
template <class Failure>
void report(const std::type_identity_t<Failure>& what, Failure& failure) {
  const std::atomic_ref state(failure.state);
  std::uint32_t none = 0;
  if (!state.compare_exchange_strong(none, 1)) return;
  failure.rank = what.rank;
  failure.slice = what.slice;
  failure.chunk = what.chunk;
  failure.expected = what.expected;
  failure.seen = what.seen;
  state.store(2, std::memory_order_release);
}

}  // namespace ordo::test::fake
