// What the tests on several GPUs share. The test process itself never touches CUDA, so that every rank may be a process of its
// own.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "runtime/peers/communicator.hpp"
#include "tests/support/ranks.hpp"

namespace ordo::test {

/// GPUs of this machine, at most 8, asked in a process of its own.
int gpus();

/// Leaves the test case, with a message, where there are fewer than two.
#define ORDO_NEED_TWO_GPUS()                          \
  if (::ordo::test::gpus() < 2) {                     \
    MESSAGE("skipped: this needs at least two GPUs"); \
    return;                                           \
  }

enum class Ranks { threads, processes };

using Body = std::function<Ending(Communicator&)>;

/// A rank a GPU (two of them), each with a communicator. Threads share one process that is made for them.
std::vector<Ending> on_two_gpus(Ranks kind, const CommunicatorOptions& options, const Body& body);

/// The same with `ranks` ranks, which take turns at the GPUs where there are fewer of those.
std::vector<Ending> on_gpus(int ranks, Ranks kind, const CommunicatorOptions& options, const Body& body);

/// All endings are empty.
void check_all(const std::vector<Ending>& endings);

/// A stream of the current context.
class TestStream {
 public:
  explicit TestStream(const Driver& driver) : driver_(driver) { driver.streamCreate(&stream_, CU_STREAM_NON_BLOCKING); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  ~TestStream() { driver_.streamDestroy(stream_); }
  [[nodiscard]] CUstream get() const { return stream_; }

 private:
  const Driver& driver_;
  CUstream stream_ = nullptr;
};

}  // namespace ordo::test
