// What a Store holds: its connection, made anew after a fork or when the file turns out to be damaged.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cache/connection.hpp"
#include "cache/damage.hpp"
#include "cache/sqlite.hpp"
#include "cache/store.hpp"

namespace ordo::cache {

/// Seconds since 1970.
std::int64_t now_seconds();

/// Removes the entries unused for longest until the file's pages in use are nine tenths of `limit_bytes`; nothing where they are
/// within it, or for 0. Inside a Transaction.
Result<void> evict(Connection& connection, std::int64_t limit_bytes);

/// Locks; asks again and again for some 10 to 20 us before it sleeps. A look-up holds the connection for some 15 us, and
/// to put a thread to sleep and wake it costs as much: two threads would look up less than one alone.
std::unique_lock<std::mutex> lock_soon(std::mutex& mutex);

struct Store::Impl {
  std::string path;
  StoreOptions options;

  Impl(std::string file, StoreOptions chosen) : path(std::move(file)), options(std::move(chosen)) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();

  /// Runs `body(connection)`, which returns a Result, with the connection to itself. Where that finds damage and damaged files
  /// are to be quarantined, once more on a new file.
  template <class Body>
  auto run(const Body& body) -> decltype(body(std::declval<Connection&>())) {
    Met met;
    auto result = attempt(body, met);
    if (result || !met.damage || !options.quarantined || !put_aside(met)) return result;
    return attempt(body, met);
  }

  /// run() inside a write transaction.
  template <class Body>
  Result<void> change(const Body& body) {
    return run([&](Connection& c) -> Result<void> {
      if (!c.writable) return read_only();
      Result<Transaction> transaction = Transaction::begin(c.db.get());
      if (!transaction) return transaction.error();
      if (Result<void> ok = body(c); !ok) return ok;
      return transaction->commit();
    });
  }

 private:
  /// What an attempt met: which file, and whether it is damaged.
  struct Met {
    dev_t device = 0;
    ino_t inode = 0;
    bool damage = false;
  };

  template <class Body>
  auto attempt(const Body& body, Met& met) -> decltype(body(std::declval<Connection&>())) {
    const DamageWatch watch;
    const Result<Connection*> c = connection(met.device, met.inode);
    if (!c) {
      met.damage = watch.seen();
      return c.error();
    }
    const std::unique_lock lock = lock_soon((*c)->mutex);
    auto result = body(**c);
    met.damage = watch.seen();
    return result;
  }

  /// The connection of this process, opened if need be. Tells the file it is of, or that could not be opened.
  Result<Connection*> connection(dev_t& device, ino_t& inode);
  /// Whether it is worth another attempt: the damaged file is out of the way.
  bool put_aside(const Met& met);
  [[nodiscard]] Error read_only() const;

  /// Replaced in the child of a fork, where the parent's connection is left alone (closing it would drop the parent's locks), and
  /// when the file is put aside.
  std::atomic<Connection*> current_{nullptr};
  std::mutex mutex_;                                  ///< of `retired_`, and held while current_ is replaced
  std::vector<std::unique_ptr<Connection>> retired_;  ///< perhaps still in another thread's hands
};

}  // namespace ordo::cache
