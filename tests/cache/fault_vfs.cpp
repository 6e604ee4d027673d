#include "tests/cache/fault_vfs.hpp"

#include <sqlite3.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace ordo::test {
namespace {

struct State {
  bool armed = false, happened = false;
  Fault fault = Fault::io_error;
  std::uint64_t at = 0, count = 0, random = 0;
};
State state;
sqlite3_vfs* real = nullptr;
sqlite3_vfs shim;

/// Whether this operation is the one. After a full disk every later write is too.
bool now(bool writes) {
  const std::uint64_t index = state.count++;
  if (!state.armed) return false;
  if (state.fault == Fault::full_disk && state.happened) return writes;
  if (index < state.at || state.happened) return false;
  const bool reads_only = state.fault == Fault::bit_flip || state.fault == Fault::short_read;
  const bool writes_only =
      state.fault == Fault::torn_write || state.fault == Fault::full_disk || state.fault == Fault::silent_tear;
  if ((reads_only && writes) || (writes_only && !writes)) return false;  // the next that fits
  state.happened = true;
  return true;
}

struct File {
  sqlite3_file base;
  sqlite3_file* inner() { return reinterpret_cast<sqlite3_file*>(this + 1); }
};
sqlite3_file* inner(sqlite3_file* file) { return reinterpret_cast<File*>(file)->inner(); }

int close(sqlite3_file* f) { return inner(f)->pMethods->xClose(inner(f)); }

int read(sqlite3_file* f, void* out, int size, sqlite3_int64 offset) {
  const bool wrong = now(false);
  if (wrong && state.fault == Fault::io_error) return SQLITE_IOERR_READ;
  const int code = inner(f)->pMethods->xRead(inner(f), out, size, offset);
  if (!wrong || code != SQLITE_OK || size <= 0) return code;
  auto* bytes = static_cast<unsigned char*>(out);
  if (state.fault == Fault::bit_flip) {
    bytes[state.random % static_cast<unsigned>(size)] ^= static_cast<unsigned char>(1U << (state.random >> 32) % 8);
    return code;
  }
  const int got = static_cast<int>(state.random % static_cast<unsigned>(size));
  std::memset(bytes + got, 0, static_cast<std::size_t>(size - got));
  return SQLITE_IOERR_SHORT_READ;
}

int write(sqlite3_file* f, const void* data, int size, sqlite3_int64 offset) {
  if (!now(true)) return inner(f)->pMethods->xWrite(inner(f), data, size, offset);
  if (state.fault == Fault::full_disk) return SQLITE_FULL;
  if (state.fault == Fault::io_error) return SQLITE_IOERR_WRITE;
  const int part = static_cast<int>(state.random % static_cast<unsigned>(std::max(size, 1)));
  if (part > 0) (void)inner(f)->pMethods->xWrite(inner(f), data, part, offset);
  return state.fault == Fault::silent_tear ? SQLITE_OK : SQLITE_IOERR_WRITE;
}

int truncate(sqlite3_file* f, sqlite3_int64 size) {
  return now(true) && state.fault != Fault::silent_tear ? SQLITE_IOERR_TRUNCATE : inner(f)->pMethods->xTruncate(inner(f), size);
}
int sync(sqlite3_file*, int) {  // waiting for the disk would only make the test slow
  return now(true) && state.fault != Fault::silent_tear ? SQLITE_IOERR_FSYNC : SQLITE_OK;
}
int file_size(sqlite3_file* f, sqlite3_int64* size) {
  return now(false) && state.fault == Fault::io_error ? SQLITE_IOERR_FSTAT : inner(f)->pMethods->xFileSize(inner(f), size);
}
int lock(sqlite3_file* f, int level) {
  return now(false) && state.fault == Fault::io_error ? SQLITE_IOERR_LOCK : inner(f)->pMethods->xLock(inner(f), level);
}
int unlock(sqlite3_file* f, int level) { return inner(f)->pMethods->xUnlock(inner(f), level); }
int check_lock(sqlite3_file* f, int* out) { return inner(f)->pMethods->xCheckReservedLock(inner(f), out); }
int control(sqlite3_file* f, int op, void* arg) { return inner(f)->pMethods->xFileControl(inner(f), op, arg); }
int sector_size(sqlite3_file* f) { return inner(f)->pMethods->xSectorSize(inner(f)); }
int characteristics(sqlite3_file*) { return 0; }

const sqlite3_io_methods methods{1,       close,      read,    write,       truncate,        sync,    file_size, lock,
                                 unlock,  check_lock, control, sector_size, characteristics, nullptr, nullptr,   nullptr,
                                 nullptr, nullptr,    nullptr};

int open(sqlite3_vfs*, const char* name, sqlite3_file* out, int flags, int* out_flags) {
  auto* file = reinterpret_cast<File*>(out);
  file->base.pMethods = nullptr;
  if (now((flags & SQLITE_OPEN_CREATE) != 0)) return state.fault == Fault::full_disk ? SQLITE_FULL : SQLITE_CANTOPEN;
  const int code = real->xOpen(real, name, file->inner(), flags, out_flags);
  if (code == SQLITE_OK) file->base.pMethods = &methods;
  return code;
}
int remove(sqlite3_vfs*, const char* name, int sync_folder) {
  (void)sync_folder;
  return now(true) && state.fault == Fault::io_error ? SQLITE_IOERR_DELETE : real->xDelete(real, name, 0);
}

}  // namespace

const char* name_of(Fault fault) {
  constexpr const char* names[fault_kinds] = {"io_error", "torn_write", "full_disk", "bit_flip", "short_read", "silent_tear"};
  return names[static_cast<int>(fault)];
}

FaultVfs::FaultVfs() {
  real = sqlite3_vfs_find(nullptr);
  shim = *real;
  shim.zName = "ordo_fault";
  shim.szOsFile = static_cast<int>(sizeof(File)) + real->szOsFile;
  shim.xOpen = open;
  shim.xDelete = remove;
  sqlite3_vfs_register(&shim, 1);
  disarm();
}

FaultVfs::~FaultVfs() {
  disarm();
  sqlite3_vfs_unregister(&shim);
  sqlite3_vfs_register(real, 1);
}

void FaultVfs::arm(Fault fault, std::uint64_t operation, std::uint64_t random) {
  state = {.armed = true, .happened = false, .fault = fault, .at = operation, .count = 0, .random = random};
}
void FaultVfs::disarm() { state = {}; }
std::uint64_t FaultVfs::operations() { return state.count; }
bool FaultVfs::happened() { return state.happened; }

}  // namespace ordo::test
