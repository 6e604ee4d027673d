#include "cli/launcher.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>
#include <thread>

namespace ordo::cli {
namespace {

using Clock = std::chrono::steady_clock;

volatile std::sig_atomic_t asked_to_end = 0;

extern "C" void note_signal(int signal) { asked_to_end = signal; }

/// Takes SIGINT and SIGTERM for as long as it lives.
class Signals {
 public:
  Signals() {
    asked_to_end = 0;
    struct sigaction action{};
    action.sa_handler = note_signal;
    sigaction(SIGINT, &action, &interrupt_);
    sigaction(SIGTERM, &action, &terminate_);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals() {
    sigaction(SIGINT, &interrupt_, nullptr);
    sigaction(SIGTERM, &terminate_, nullptr);
  }

 private:
  struct sigaction interrupt_{}, terminate_{};
};

class Job {
 public:
  explicit Job(const LaunchRequest& request) : request_(request) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() {
    signal_all(SIGKILL);
    for (const pid_t id : running_) {
      if (id > 0) ::waitpid(id, nullptr, 0);
    }
  }

  Result<void> start() {
    for (int rank = 0; rank < request_.ranks; ++rank) {
      if (auto started = start(rank); !started) return started;
    }
    return {};
  }

  int wait() {
    constexpr auto kPause = std::chrono::milliseconds(10);
    while (reap()) {
      if (asked_to_end != 0 && code_ == 0) end_all(128 + asked_to_end);
      if (ending_ && Clock::now() > kill_at_) signal_all(SIGKILL);
      std::this_thread::sleep_for(kPause);
    }
    return code_;
  }

 private:
  Result<void> start(int rank) {
    std::vector<std::string> variables = {fmt::format("RANK={}", rank),
                                          fmt::format("LOCAL_RANK={}", rank),
                                          fmt::format("WORLD_SIZE={}", request_.ranks),
                                          fmt::format("LOCAL_WORLD_SIZE={}", request_.ranks),
                                          "MASTER_ADDR=127.0.0.1",
                                          fmt::format("MASTER_PORT={}", request_.port)};
    for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);  // of equal names the first counts
    std::vector<std::string> words = request_.command;
    const auto pointers = [](std::vector<std::string>& from) {
      std::vector<char*> out;
      out.reserve(from.size() + 1);
      for (std::string& text : from) out.push_back(text.data());
      out.push_back(nullptr);
      return out;
    };
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes, 0);
    pid_t id = 0;
    const int error =
        posix_spawnp(&id, words[0].c_str(), nullptr, &attributes, pointers(words).data(), pointers(variables).data());
    posix_spawnattr_destroy(&attributes);
    if (error != 0) {
      return Error{ErrorCode::io, fmt::format("'{}' cannot be started: {}", words[0], std::generic_category().message(error))};
    }
    running_.push_back(id);
    return {};
  }

  // Whether any rank still runs.
  bool reap() {
    bool any = false;
    for (std::size_t rank = 0; rank < running_.size(); ++rank) {
      if (running_[rank] <= 0) continue;
      int status = 0;
      const pid_t found = ::waitpid(running_[rank], &status, WNOHANG);
      if (found == 0 || (found < 0 && errno == EINTR)) {
        any = true;
        continue;
      }
      ::kill(-running_[rank], SIGKILL);  // what it left behind
      running_[rank] = 0;
      const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      if (code == 0 || ending_) continue;
      fmt::print(stderr, "ordo launch: rank {} ended with {}; the others are stopped\n", rank,
                 WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status)) : fmt::format("exit code {}", code));
      end_all(code);
    }
    return any;
  }

  void end_all(int code) {
    code_ = code;
    ending_ = true;
    kill_at_ = Clock::now() + request_.grace;
    signal_all(SIGTERM);
  }

  void signal_all(int signal) const {
    for (const pid_t id : running_) {
      if (id > 0) ::kill(-id, signal);
    }
  }

  const LaunchRequest& request_;
  std::vector<pid_t> running_;  ///< by rank; 0 once it ended
  int code_ = 0;
  bool ending_ = false;
  Clock::time_point kill_at_;
};

}  // namespace

Result<int> launch_ranks(const LaunchRequest& request) {
  const Signals signals;
  Job job(request);
  if (auto started = job.start(); !started) return started.error();
  return job.wait();
}

}  // namespace ordo::cli
