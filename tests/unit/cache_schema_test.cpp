// Files of older and newer schemas.
#include <fstream>

#include "cache/schema.hpp"
#include "tests/unit/cache_support.hpp"

namespace ordo::cache {
namespace {

/// A file of schema 1 with one kernel, as the first version of ordo left it.
void make_schema_1(const std::string& path) {
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &db) == SQLITE_OK);
  const Result<void> made = migrate(db, 1);
  REQUIRE_MESSAGE(made, made.error().message);
  sqlite3_close(db);
  sql(path,
      "INSERT INTO blobs VALUES(1, 0, x'616263');"
      "INSERT INTO kernels VALUES(1, 'k', 's', 'main', 'p', 'NVRTC 13.0.88', 'sm_90a', 'e', 1, 2, 3, 4, 0, 5.0, "
      "'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad', 1000, 1000, "
      "'8bd137a2a5283cba53d74153405e47048e26cd533de02a6f7112ae42e6ed0ec2', 1)");
}

std::int64_t number(const std::string& path, const char* query) {
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &db) == SQLITE_OK);
  const Result<std::int64_t> value = query_integer(db, query);
  REQUIRE_MESSAGE(value, value.error().message);
  sqlite3_close(db);
  return *value;
}

}  // namespace

TEST_CASE("cache schema: steps are in order and the last is what is written") {
  std::int64_t last = 0;
  for (const Migration& step : migrations()) {
    CHECK(step.version == last + 1);
    last = step.version;
  }
  CHECK(schema_version() == last);
}

TEST_CASE("cache schema: an older file is brought up to date in place and keeps its entries") {
  const Folder folder;
  const std::string path = folder.file("cache.db");
  make_schema_1(path);
  CHECK(number(path, "PRAGMA user_version") == 1);
  Store store = open(path);
  CHECK(number(path, "PRAGMA user_version") == schema_version());
  CHECK(number(path, "SELECT stored_bytes FROM kernels WHERE key = 'k'") == 3);
  const std::optional<Entry> kept = get(store, "k");
  REQUIRE(kept);
  CHECK(kept->bytes.size() == 3);
  put(store, entry("b"));
  CHECK(get(store, "b"));
}

TEST_CASE("cache schema: processes that open an older file at once all succeed") {
  const Folder folder;
  int failed = 0;
  for (int round = 0; round < 10; ++round) {
    const std::string path = folder.file(numbered("old", round).append(".db"));
    make_schema_1(path);
    std::vector<pid_t> children;
    children.reserve(4);
    for (int p = 0; p < 4; ++p)
      children.push_back(in_child([&] {
        Result<Store> store = Store::open(path);
        return store && store->put(entry(numbered("k", static_cast<int>(getpid())), 100));
      }));
    for (const pid_t child : children) failed += exit_code(child) != 0 ? 1 : 0;
    CHECK(number(path, "SELECT count(*) FROM kernels") == 5);
  }
  CHECK(failed == 0);
}

TEST_CASE("cache schema: a step that fails leaves the file as it was") {
  const Folder folder;
  const std::string path = folder.file("cache.db");
  make_schema_1(path);
  sql(path, "CREATE TABLE counters(x)");  // in the way of the next step
  const Result<Store> store = Store::open(path);
  REQUIRE_FALSE(store);
  CHECK(store.error().message.find("counters") != std::string::npos);
  CHECK(number(path, "PRAGMA user_version") == 1);
  CHECK(number(path, "SELECT count(*) FROM pragma_table_info('kernels') WHERE name = 'stored_bytes'") == 0);
}

}  // namespace ordo::cache
