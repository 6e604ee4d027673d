// One compile per kernel on a host, among threads and processes, with holders that die or hang.
#include "cache/single_flight.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "tests/unit/cache_support.hpp"

namespace ordo::cache {
namespace {

using std::chrono::milliseconds;

SingleFlight flights(const Folder& folder, int jobs = 4, milliseconds timeout = milliseconds(60'000)) {
  return SingleFlight({.folder = folder.path().string(), .jobs = jobs, .timeout = timeout, .tell_after = milliseconds(100)});
}

Flight take(const SingleFlight& flights, const std::vector<std::string>& keys, const Wait& wait = {}) {
  Result<Flight> flight = flights.acquire(keys, wait);
  REQUIRE_MESSAGE(flight, flight.error().message);
  return *std::move(flight);
}

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// A child that holds a lease for a minute; returns when it has it.
pid_t holder(const Folder& folder, const std::string& key) {
  const pid_t child = in_child([&] {
    const SingleFlight own = flights(folder);
    const Result<Flight> flight = own.acquire({key}, {});
    std::ofstream(folder.file("held")).flush();
    std::this_thread::sleep_for(std::chrono::minutes(1));
    return flight.ok();
  });
  while (!fs::exists(folder.file("held"))) usleep(1000);
  fs::remove(folder.file("held"));
  return child;
}

std::size_t files_in(const Folder& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("single flight, report 1: of many processes each kernel is compiled by one, and nothing is left behind") {
  const Folder folder, done, compiled;
  std::vector<pid_t> children;
  constexpr int processes = 8, kernels = 3;
  children.reserve(processes);
  for (int p = 0; p < processes; ++p) {
    children.push_back(in_child([&] {
      const SingleFlight own = flights(folder, 2);
      const Wait wait{.done = [&](const std::string& key) { return fs::exists(done.file(key)); }, .cancelled = {}, .waiting = {}};
      const Result<Flight> flight = own.acquire({"c", "a", "b"}, wait);
      if (!flight) return false;
      for (const std::string& key : flight->keys()) {
        const Result<Turn> turn = own.turn(*flight, wait);
        if (!turn) return false;
        std::ofstream(compiled.file(key + std::to_string(getpid()))).flush();
        usleep(5000);
        std::ofstream(done.file(key)).flush();
      }
      return fs::exists(done.file("a")) && fs::exists(done.file("b")) && fs::exists(done.file("c"));
    }));
  }
  int failed = 0;
  for (const pid_t child : children) failed += exit_code(child) != 0 ? 1 : 0;
  CHECK(failed == 0);
  CHECK(files_in(compiled) == kernels);
  CHECK(files_in(folder) == 0);
}

TEST_CASE("single flight: threads of one process wait for each other too") {
  const Folder folder;
  const SingleFlight shared = flights(folder);
  std::atomic<int> compiles{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  threads.reserve(6);
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&] {
      const Wait wait{.done = [&](const std::string&) { return done.load(); }, .cancelled = {}, .waiting = {}};
      const Result<Flight> flight = shared.acquire({"k"}, wait);
      if (!flight || flight->keys().empty()) return;
      ++compiles;
      usleep(3000);
      done = true;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(compiles == 1);
}

TEST_CASE(
    "single flight, report 9: a killed holder costs nothing, one that hangs its timeout, one at work nothing is taken from") {
  const Folder folder;
  const pid_t killed = holder(folder, "k");
  kill(killed, SIGKILL);
  waitpid(killed, nullptr, 0);
  CHECK(seconds_of([&] { CHECK(take(flights(folder), {"k"}).keys().size() == 1); }) < 2);

  const pid_t hangs = holder(folder, "k");
  kill(hangs, SIGSTOP);
  const double waited = seconds_of([&] { CHECK(take(flights(folder, 4, milliseconds(400)), {"k"}).keys().size() == 1); });
  CHECK(waited < 5);
  kill(hangs, SIGKILL);
  waitpid(hangs, nullptr, 0);

  const SingleFlight own = flights(folder);
  const Flight mine = take(own, {"k"});
  std::atomic<bool> other_has{false};
  std::thread other([&] {
    const SingleFlight theirs = flights(folder, 4, milliseconds(3000));
    const Flight flight =
        take(theirs, {"k"}, {.done = [&](const std::string&) { return other_has.load(); }, .cancelled = {}, .waiting = {}});
    CHECK(flight.keys().empty());
  });
  for (int i = 0; i < 80; ++i) {
    mine.renew();
    usleep(50'000);
  }
  other_has = true;  // "stored"
  other.join();
}

TEST_CASE("single flight, report 33: who waits hears for whom") {
  const Folder folder;
  const pid_t child = holder(folder, "k");
  std::string heard;
  int cancels = 0;
  const Result<Flight> flight = flights(folder).acquire({"k"}, {.done = {},
                                                                .cancelled = [&] { return !heard.empty() || ++cancels > 2000; },
                                                                .waiting = [&](const std::string& whom) { heard = whom; }});
  REQUIRE_FALSE(flight);
  CHECK(flight.error().code == ErrorCode::cancelled);
  CHECK(heard.find("process " + std::to_string(child)) != std::string::npos);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_CASE("single flight, report 33: who waits for a turn hears for whom, unless it is this process") {
  const Folder folder;
  const SingleFlight one = flights(folder, 1);
  const Flight flight = take(one, {"k"});
  std::string heard;
  Wait wait;
  wait.waiting = [&](const std::string& whom) { heard = whom; };
  int looks = 0;
  wait.cancelled = [&] { return !heard.empty() || ++looks > 9; };
  {
    const Result<Turn> own = one.turn(flight, {});
    REQUIRE(own);
    CHECK_FALSE(one.turn(flight, wait));
    CHECK(heard.empty());
  }
  const pid_t child = in_child([&] {
    const Result<Turn> turn = one.turn(flight, {});
    std::ofstream(folder.file("held")).flush();
    std::this_thread::sleep_for(std::chrono::minutes(1));
    return turn.ok();
  });
  while (!fs::exists(folder.file("held"))) usleep(1000);
  looks = -2000;
  CHECK_FALSE(one.turn(flight, wait));
  CHECK_MESSAGE(heard.find("process " + std::to_string(child)) != std::string::npos, heard);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_CASE("single flight, report 10: no more compiles at once than the host has turns") {
  const Folder folder;
  const SingleFlight own = flights(folder, 2);
  std::atomic<int> now{0}, most{0};
  std::vector<std::thread> threads;
  threads.reserve(6);
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      const Flight flight = take(own, {numbered("k", t)});
      const Result<Turn> turn = own.turn(flight, {});
      REQUIRE(turn);
      const int running = ++now;
      int seen = most;
      while (running > seen && !most.compare_exchange_weak(seen, running)) {
      }
      usleep(5000);
      --now;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(most <= 2);
  {
    const Environment jobs("ORDO_COMPILE_JOBS", "7");
    CHECK(SingleFlight().jobs() == 7);
  }
  const Environment jobs("ORDO_COMPILE_JOBS", "many");
  CHECK(SingleFlight().jobs() >= 2);
  CHECK(SingleFlight().jobs() <= 16);
}

TEST_CASE("single flight: callers who want several kernels in other orders do not wait in a circle") {
  const Folder folder;
  const SingleFlight own = flights(folder);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 10; ++round) {
        const Flight flight =
            take(own, t % 2 == 0 ? std::vector<std::string>{"a", "b", "c"} : std::vector<std::string>{"c", "b", "a"});
        CHECK(flight.keys().size() == 3);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("single flight: without a folder, or with one that takes no file, nobody waits") {
  const Folder folder;
  for (const std::string& where : {folder.file("absent"), folder.file("file")}) {
    std::ofstream(folder.file("file")).flush();
    const SingleFlight own({.folder = where, .jobs = 1});
    const Flight first = take(own, {"k"}), second = take(own, {"k"});
    CHECK(first.keys().size() == 1);
    CHECK(second.keys().size() == 1);
    const Result<Turn> a = own.turn(first, {}), b = own.turn(second, {});
    CHECK(a);
    CHECK(b);
  }
}

TEST_CASE("single flight, report 47: the child of a fork does not keep its parent's lease") {
  const Folder folder;
  const SingleFlight own = flights(folder);
  pid_t child = -1;
  {
    const Flight flight = take(own, {"k"});
    child = in_child([] {
      std::this_thread::sleep_for(std::chrono::seconds(30));
      return true;
    });
  }
  CHECK(seconds_of([&] { CHECK(take(own, {"k"}).keys().size() == 1); }) < 2);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_CASE("single flight, report 5: files that somebody deletes trouble nobody") {
  const Folder folder;
  const SingleFlight own = flights(folder);
  const Flight first = take(own, {"k"});
  const Result<Turn> turn = own.turn(first, {});
  REQUIRE(turn);
  for (const auto& file : fs::directory_iterator(folder.path())) fs::remove(file.path());
  first.renew();
  turn->renew();
  CHECK(take(own, {"k"}).keys().size() == 1);
  fs::remove_all(folder.path());
  CHECK(take(own, {"k"}).keys().size() == 1);
}

}  // namespace ordo::cache
