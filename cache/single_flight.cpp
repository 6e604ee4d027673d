#include "cache/single_flight.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "cache/places.hpp"

namespace ordo::cache {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

int default_jobs() {
  if (const char* text = std::getenv("ORDO_COMPILE_JOBS"); text != nullptr) {
    int jobs = 0;
    const auto [end, error] = std::from_chars(text, text + std::strlen(text), jobs);
    if (error == std::errc{} && *end == '\0' && jobs >= 1 && jobs <= 4096) return jobs;
  }
  // A compile takes one processor and a few hundred MB, and the machine has other work.
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 2, 16);
}

/// A locked file. Its name is removed with the lock, so that the folder does not fill.
class LockedFile {
 public:
  /// nullopt where another holds it, or (`usable` turns false) the file cannot be made: no folder, or a full disk.
  static std::optional<LockedFile> try_lock(const std::string& path, bool& usable) {
    for (;;) {
      const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
      if (file < 0) {
        usable = false;
        return std::nullopt;
      }
      LockedFile locked(path, file);
      struct stat opened{}, named{};
      if (::flock(file, LOCK_EX | LOCK_NB) != 0) {
        locked.forget();
        return std::nullopt;
      }
      // Between open and flock the one before may have removed the name: then the lock is of a file that nobody else will find.
      if (::fstat(file, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino) return locked;
      locked.forget();
    }
  }
  LockedFile(LockedFile&& other) noexcept : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}
  LockedFile& operator=(LockedFile&&) = delete;
  ~LockedFile() {
    if (file_ < 0) return;
    ::unlink(path_.c_str());  // before the lock goes
    ::flock(file_, LOCK_UN);  // closing would not do where a fork has copied the descriptor
    ::close(file_);
  }

  void write(const std::string& text) const { (void)!::pwrite(file_, text.data(), text.size(), 0); }
  void renew() const { (void)::futimens(file_, nullptr); }

 private:
  LockedFile(std::string path, int file) : path_(std::move(path)), file_(file) {}
  void forget() {
    ::close(file_);
    file_ = -1;
  }
  std::string path_;
  int file_;
};

/// What a lease's file says of its holder.
struct Holder {
  std::string text;     ///< "process 1234"
  milliseconds silent;  ///< since the holder last renewed it
};

std::optional<Holder> holder_of(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return std::nullopt;
  std::array<char, 256> text{};
  struct stat facts{};
  const ssize_t size = ::pread(file, text.data(), text.size() - 1, 0);
  const bool known = ::fstat(file, &facts) == 0;
  ::close(file);
  if (!known || size < 0) return std::nullopt;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const std::int64_t silent = (now.tv_sec - facts.st_mtim.tv_sec) * 1000 + (now.tv_nsec - facts.st_mtim.tv_nsec) / 1'000'000;
  return Holder{std::string(text.data(), static_cast<std::size_t>(size)), milliseconds(silent)};
}

std::string self_text() {
  std::array<char, 64> name{};
  const int file = ::open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
  if (file >= 0) {
    (void)!::read(file, name.data(), name.size() - 1);
    ::close(file);
  }
  std::string_view text(name.data());
  text = text.substr(0, text.find('\n'));
  return fmt::format("process {} ({})", ::getpid(), text);
}

/// Pauses between looks: short at first, for compiles that are nearly done.
class Pause {
 public:
  void operator()() {
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 2, milliseconds(100));
  }

 private:
  milliseconds pause_{2};
};

/// Tells once, when the wait has become noticeable, whom it is for.
class Teller {
 public:
  Teller(const Wait& wait, milliseconds after) : wait_(wait), after_(after) {}
  void operator()(const std::string& whom) {
    if (told_ || !wait_.waiting || Clock::now() - start_ < after_) return;
    told_ = true;
    wait_.waiting(whom);
  }

 private:
  const Wait& wait_;
  milliseconds after_;
  Clock::time_point start_ = Clock::now();
  bool told_ = false;
};

Error cancelled() { return {ErrorCode::cancelled, "Compiling was cancelled by the caller."}; }

/// At most one a second, among threads.
class Throttle {
 public:
  bool operator()() {
    const Clock::time_point now = Clock::now();
    Clock::time_point last = last_.load();
    return now - last >= milliseconds(1000) && last_.compare_exchange_strong(last, now);
  }

 private:
  std::atomic<Clock::time_point> last_{Clock::time_point{}};
};

}  // namespace

struct Flight::State {
  std::vector<std::string> keys;
  std::vector<LockedFile> files;
  Throttle due;
};

Flight::Flight(std::unique_ptr<State> state) : state_(std::move(state)) {}
Flight::Flight(Flight&&) noexcept = default;
Flight::~Flight() = default;
const std::vector<std::string>& Flight::keys() const { return state_->keys; }

void Flight::renew() const {
  if (!state_->due()) return;
  for (const LockedFile& file : state_->files) file.renew();
}

struct Turn::State {
  std::optional<LockedFile> file;  ///< absent where the turn is that of a process that hangs, or nobody counts
  Throttle due;
};

Turn::Turn(std::unique_ptr<State> state) : state_(std::move(state)) {}
Turn::Turn(Turn&&) noexcept = default;
Turn::~Turn() = default;
void Turn::renew() const {
  if (state_->file && state_->due()) state_->file->renew();
}

SingleFlight::SingleFlight(SingleFlightOptions options) : options_(std::move(options)) {
  if (options_.jobs <= 0) options_.jobs = default_jobs();
}

std::optional<std::string> SingleFlight::folder() const {
  std::optional<std::string> found = options_.folder ? options_.folder : private_folder();
  if (found && ::access(found->c_str(), W_OK | X_OK) != 0) found.reset();
  return found;
}

Result<Flight> SingleFlight::acquire(std::vector<std::string> keys, const Wait& wait) const {
  auto state = std::make_unique<Flight::State>();
  Flight flight(std::move(state));
  std::sort(keys.begin(), keys.end());
  const std::optional<std::string> where = folder();
  for (std::string& key : keys) {
    const std::string path = where ? fmt::format("{}/{}.lease", *where, key) : std::string();
    Teller tell(wait, options_.tell_after);
    for (Pause pause;; pause()) {
      if (wait.cancelled && wait.cancelled()) return cancelled();
      bool usable = where.has_value();
      std::optional<LockedFile> file = usable ? LockedFile::try_lock(path, usable) : std::nullopt;
      if (file) file->write(self_text());
      // Asked with the lock held: whoever held it until now may have stored the kernel.
      if (wait.done && wait.done(key)) break;
      const bool held = file.has_value();
      if (held) flight.state_->files.push_back(*std::move(file));
      const std::optional<Holder> holder = held || !usable ? std::nullopt : holder_of(path);
      if (held || !usable || (holder && holder->silent > options_.timeout)) {
        flight.state_->keys.push_back(std::move(key));
        break;
      }
      if (holder) tell(holder->text + ", which compiles the same kernel");
      flight.renew();
    }
  }
  return flight;
}

Result<Turn> SingleFlight::turn(const Flight& flight, const Wait& wait) const {
  const auto got = [](std::optional<LockedFile> file) {
    auto state = std::make_unique<Turn::State>();
    if (file) {
      file->write(self_text());
      state->file.emplace(*std::move(file));
    }
    return Turn(std::move(state));
  };
  const std::optional<std::string> where = folder();
  if (!where) return got(std::nullopt);
  Teller tell(wait, options_.tell_after);
  const std::string self = self_text();
  for (Pause pause;; pause()) {
    if (wait.cancelled && wait.cancelled()) return cancelled();
    std::string other;
    for (int slot = 0; slot < options_.jobs; ++slot) {
      const std::string path = fmt::format("{}/turn-{}", *where, slot);
      bool usable = true;
      std::optional<LockedFile> file = LockedFile::try_lock(path, usable);
      if (file || !usable) return got(std::move(file));
      const std::optional<Holder> holder = holder_of(path);
      if (holder && holder->silent > options_.timeout) return got(std::nullopt);
      if (holder && holder->text != self) other = holder->text;
    }
    if (!other.empty())
      tell(fmt::format("{}, which has one of this host's {} turns to compile (ORDO_COMPILE_JOBS)", other, options_.jobs));
    flight.renew();
  }
}

}  // namespace ordo::cache
