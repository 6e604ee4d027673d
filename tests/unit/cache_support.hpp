// What the tests of the cache share.
#pragma once

#include <doctest/doctest.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <random>
#include <string>

#include "cache/store.hpp"
#include "codegen/hash/sha256.hpp"
#include "tests/unit/scratch.hpp"

namespace ordo::cache {

namespace fs = std::filesystem;

using test::Environment;
using test::Folder;

inline Entry entry(const std::string& key, std::size_t size = 3000, const std::string& toolchain = "NVRTC 13.0.88") {
  Entry e;
  e.key = key;
  e.source_key = std::string("source of ").append(key);
  e.name = "main";
  e.plan = "attention-backward dtype=bf16 head_dim=128";
  e.toolchain = toolchain;
  e.arch = "sm_90a";
  e.registers = 168;
  e.stack_bytes = 16;
  e.shared_bytes = 199680;
  e.barriers = 7;
  e.spill_bytes = 4;
  e.compile_ms = 812.25;
  e.entry = "ordo_main";
  std::mt19937 random(static_cast<unsigned>(std::hash<std::string>{}(key)));
  for (std::size_t i = 0; i < size; ++i) e.bytes.push_back(static_cast<std::byte>(random()));
  e.sha256 = sha256_hex(e.bytes);
  return e;
}

inline std::string numbered(const char* prefix, int number) { return std::string(prefix).append(std::to_string(number)); }

inline Store open(const std::string& path) {
  Result<Store> store = Store::open(path);
  REQUIRE_MESSAGE(store, store.error().message);
  return *std::move(store);
}

inline std::optional<Entry> get(const Store& store, const std::string& key) {
  Result<std::optional<Entry>> found = store.get(key);
  REQUIRE_MESSAGE(found, found.error().message);
  return *std::move(found);
}

inline void put(Store& store, const Entry& e) {
  const Result<void> stored = store.put(e);
  REQUIRE_MESSAGE(stored, stored.error().message);
}

/// Changes a file behind the store's back.
inline void sql(const std::string& path, const std::string& statement) {
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &db) == SQLITE_OK);
  char* message = nullptr;
  const int code = sqlite3_exec(db, statement.c_str(), nullptr, nullptr, &message);
  REQUIRE_MESSAGE(code == SQLITE_OK, message);
  sqlite3_close(db);
}

/// Runs `body` in a child process; its exit code is 0 when the body returns true.
template <class Body>
inline pid_t in_child(Body body) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(body() ? 0 : 1);
  return child;
}

inline int exit_code(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace ordo::cache
