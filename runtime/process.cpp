#include "runtime/process.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>

namespace ordo {
namespace {

std::atomic<int>& forks() {
  static std::atomic<int> count{0};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks(); });
  static_cast<void>(registered);  // fails only for lack of memory; a child's misuse then goes unnoticed
  return count;
}

}  // namespace

MadeIn::MadeIn() : forks_(forks().load(std::memory_order_relaxed)) {}

bool MadeIn::here() const { return forks().load(std::memory_order_relaxed) == forks_; }

Result<void> MadeIn::check(std::string_view what) const {
  if (here()) return {};
  return Error{
      ErrorCode::invalid_argument,
      fmt::format("{} belongs to the process that forked this one, and CUDA does not follow a fork; create an Engine here, or "
                  "start the process anew (multiprocessing: spawn) if the parent has used CUDA.",
                  what)};
}

}  // namespace ordo
