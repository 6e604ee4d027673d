// A layer below SQLite that makes one operation of a run go wrong: short and torn writes, I/O errors, a full disk, flipped bits.
#pragma once

#include <cstdint>
#include <string>

namespace ordo::test {

enum class Fault {
  io_error,     ///< the operation fails
  torn_write,   ///< a write stops half-way and fails
  full_disk,    ///< from here on nothing can be written
  bit_flip,     ///< a read gives one bit wrong
  short_read,   ///< a read gives fewer bytes than asked for, the rest zero
  silent_tear,  ///< a write stops half-way, and says it did not
};
inline constexpr int fault_kinds = 6;
const char* name_of(Fault fault);

/// SQLite's default while this lives: files that are opened meanwhile go through it. One at a time.
class FaultVfs {
 public:
  FaultVfs();
  FaultVfs(const FaultVfs&) = delete;
  FaultVfs& operator=(const FaultVfs&) = delete;
  ~FaultVfs();

  /// The `operation`-th operation from now on, counted from 0, goes wrong; `random` chooses the bit, and where a write tears.
  static void arm(Fault fault, std::uint64_t operation, std::uint64_t random);
  static void disarm();
  /// Operations since arm() or disarm().
  static std::uint64_t operations();
  /// Whether the fault has happened.
  static bool happened();
};

}  // namespace ordo::test
