#include "tests/support/ranks.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

namespace ordo::test {

std::string new_address() {
  static std::atomic<int> number{0};
  return "unix:@ordo-test-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
}

std::vector<Ending> run_threads(int ranks, const std::function<Ending(int rank)>& body) {
  std::vector<Ending> endings(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { endings[static_cast<std::size_t>(rank)] = body(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  return endings;
}

std::vector<Ending> run_processes(int ranks, const std::function<Ending(int rank)>& body) {
  struct Child {
    pid_t id = 0;
    int pipe = -1;
  };
  std::vector<Child> children;
  for (int rank = 0; rank < ranks; ++rank) {
    int ends[2] = {-1, -1};
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    const pid_t id = ::fork();
    REQUIRE(id >= 0);
    if (id == 0) {
      const Ending ending = body(rank);
      const bool told = ::write(ends[1], ending.data(), ending.size()) == static_cast<ssize_t>(ending.size());
      ::_exit(told ? 0 : 1);
    }
    ::close(ends[1]);
    children.push_back({id, ends[0]});
  }
  std::vector<Ending> endings;
  for (const Child& child : children) {
    Ending ending;
    char buffer[512];
    for (ssize_t got = 0; (got = ::read(child.pipe, buffer, sizeof buffer)) > 0;)
      ending.append(buffer, static_cast<std::size_t>(got));
    ::close(child.pipe);
    int status = 0;
    REQUIRE(::waitpid(child.id, &status, 0) == child.id);
    if (WIFSIGNALED(status)) ending = "signal " + std::to_string(WTERMSIG(status));
    endings.push_back(ending);
  }
  return endings;
}

int open_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace ordo::test
