// The files in which a process looks kernels up: finished ones that others made, over a file of its own that it writes to.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/store.hpp"

namespace ordo::cache {

struct LayersOptions {
  std::string path;                ///< the writable file; empty: default_path()
  std::vector<std::string> files;  ///< read-only ones, looked into first and in this order; default_layers() come after them
  bool memory_only = false;        ///< no file at all
  std::optional<std::int64_t> limit_bytes;  ///< of the writable file; absent: default_limit_bytes()
  /// Hears of what a person should know, once a `cause`. Called with no lock held.
  std::function<void(const std::string& cause, const std::string& message)> warn;
};

/// Thread-safe. Every file is opened when it is first needed; the writable one is made when something is first stored. Nothing
/// here fails: what a file cannot do is warned of, and what it cannot keep is kept in this process' memory.
class Layers {
 public:
  explicit Layers(LayersOptions options);

  struct Found {
    Entry entry;
    std::string layer;  ///< "memory", "local" for the writable file, "shipped" for the read-only ones
  };
  /// Says what is wrong with an entry that is intact.
  using Check = std::function<Result<void>(const Entry&)>;
  /// The first intact entry of a key that passes `check`. One that does not is warned of.
  std::optional<Found> find(const std::string& key, const Check& check);
  /// The same of a source key, by the newest toolchain of each layer.
  std::optional<Found> newest(const std::string& source_key, const Check& check);
  /// What a compiler's library is, as any layer knows.
  std::optional<std::string> toolchain_of(const std::string& library);

  /// Whether other processes will see what apply() stores: there is a writable file, made now if need be, and it has not failed
  /// yet.
  bool shares();

  /// Stores in the writable file, else in memory. `changes` with nothing but stamps, counters or toolchains are written only
  /// where the file is there already.
  void apply(const Changes& changes);

  /// The writable file's name; ":memory:" where there is none.
  [[nodiscard]] std::string path() const;
  /// All files that are looked into, the writable one last.
  [[nodiscard]] std::vector<std::string> paths() const;

 private:
  struct File {
    std::string path;
    Access access = Access::immutable;
    std::optional<Store> store;
    bool tried = false;  ///< opening it has failed: it is left alone from then on
  };
  struct Open {
    Store store;
    const char* layer;
  };

  template <class Look>
  std::optional<Found> look(const Look& look_in, const Check& check);
  std::vector<Open> open_for_reading();
  std::optional<Store> open(File& file, bool make);
  std::optional<Store> writable(bool make);
  std::optional<Store> memory(bool make);
  void warn(const std::string& cause, const std::string& message) const;

  LayersOptions options_;
  std::atomic<bool> failed_{false};  ///< a write to the file has
  std::mutex mutex_;                 // of the three below
  std::vector<File> shipped_;
  std::optional<File> local_;
  std::optional<Store> memory_;
};

}  // namespace ordo::cache
