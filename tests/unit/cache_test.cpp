#include <fstream>
#include <set>
#include <string_view>

#include "tests/unit/cache_support.hpp"

namespace ordo::cache {

TEST_CASE("cache: an entry comes back whole, also after the file is opened again") {
  const Folder folder;
  const Entry e = entry("a");
  {
    Store store = open(folder.file("new/folder/cache.db"));
    CHECK(store.path() == folder.file("new/folder/cache.db"));
    CHECK_FALSE(get(store, "a"));
    put(store, e);
  }
  const std::optional<Entry> found = get(open(folder.file("new/folder/cache.db")), "a");
  REQUIRE(found);
  CHECK(found->key == e.key);
  CHECK(found->source_key == e.source_key);
  CHECK(found->name == e.name);
  CHECK(found->plan == e.plan);
  CHECK(found->toolchain == e.toolchain);
  CHECK(found->arch == e.arch);
  CHECK(found->registers == e.registers);
  CHECK(found->stack_bytes == e.stack_bytes);
  CHECK(found->shared_bytes == e.shared_bytes);
  CHECK(found->barriers == e.barriers);
  CHECK(found->spill_bytes == e.spill_bytes);
  CHECK(found->compile_ms == e.compile_ms);
  CHECK(found->entry == e.entry);
  CHECK(found->sha256 == e.sha256);
  CHECK(found->bytes == e.bytes);
}

TEST_CASE("cache, reports 12 and 16: one file that says what it is, with a rollback journal") {
  const Folder folder;
  Store store = open(folder.file("cache.db"));
  put(store, entry("a"));
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(folder.file("cache.db").c_str(), &db) == SQLITE_OK);
  for (const auto& [pragma, value] : {std::pair{"PRAGMA application_id", "1869767791"},
                                      {"PRAGMA user_version", "3"},
                                      {"PRAGMA journal_mode", "delete"},
                                      {"PRAGMA page_size", "16384"},
                                      {"PRAGMA integrity_check", "ok"}}) {
    sqlite3_stmt* statement = nullptr;
    REQUIRE(sqlite3_prepare_v2(db, pragma, -1, &statement, nullptr) == SQLITE_OK);
    REQUIRE(sqlite3_step(statement) == SQLITE_ROW);
    CHECK(std::string_view(reinterpret_cast<const char*>(sqlite3_column_text(statement, 0))) == value);
    sqlite3_finalize(statement);
  }
  sqlite3_close(db);
}

TEST_CASE("cache: in memory") {
  Result<Store> store = Store::in_memory();
  REQUIRE(store);
  CHECK(store->path() == ":memory:");
  put(*store, entry("a"));
  CHECK(get(*store, "a"));
  Result<Store> other = Store::in_memory();
  REQUIRE(other);
  CHECK_FALSE(get(*other, "a"));
}

TEST_CASE("cache: list has everything but bytes, ordered by key; erase removes") {
  const Folder folder;
  Store store = open(folder.file("cache.db"));
  for (const char* key : {"c", "a", "b"}) put(store, entry(key));
  Result<std::vector<Entry>> entries = store.list();
  REQUIRE(entries);
  REQUIRE(entries->size() == 3);
  CHECK((*entries)[0].key == "a");
  CHECK((*entries)[2].key == "c");
  CHECK((*entries)[1].sha256 == entry("b").sha256);
  CHECK((*entries)[1].bytes.empty());
  CHECK(store.erase("b"));
  CHECK(store.erase("never there"));
  CHECK_FALSE(get(store, "b"));
  CHECK(get(store, "c"));
  entries = store.list();
  REQUIRE(entries);
  CHECK(entries->size() == 2);
}

TEST_CASE("cache: what is put must be consistent") {
  Result<Store> store = Store::in_memory();
  REQUIRE(store);
  Entry wrong = entry("a");
  wrong.sha256 = entry("b").sha256;
  Result<void> stored = store->put(wrong);
  REQUIRE_FALSE(stored);
  CHECK(stored.error().code == ErrorCode::invalid_argument);
  wrong = entry("a", 0);
  CHECK_FALSE(store->put(wrong));
  CHECK_FALSE(store->put(entry("")));
}

TEST_CASE("cache: an empty file becomes a cache") {
  const Folder folder;
  std::ofstream(folder.file("cache.db")).flush();
  Store store = open(folder.file("cache.db"));
  put(store, entry("a"));
  CHECK(get(store, "a"));
}

TEST_CASE("cache: newest finds the entry of the newest toolchain, by number, and skips damaged ones") {
  const Folder folder;
  Store store = open(folder.file("cache.db"));
  const std::string one_source = "s";
  for (const auto& [key, toolchain] :
       {std::pair{"a", "NVRTC 12.9.86"}, {"b", "NVRTC 13.0.88"}, {"c", "NVRTC 13.0.9"}, {"d", "NVRTC 9.9.99"}}) {
    Entry e = entry(key, 100, toolchain);
    e.source_key = one_source;
    put(store, e);
  }
  put(store, entry("other", 100, "NVRTC 99.0.0"));
  Result<std::optional<Entry>> found = store.newest(one_source);
  REQUIRE(found);
  REQUIRE(*found);
  CHECK((*found)->key == "b");
  sql(folder.file("cache.db"), "UPDATE blobs SET data = x'00' WHERE id = (SELECT blob FROM kernels WHERE key = 'b')");
  found = store.newest(one_source);
  REQUIRE(found);
  REQUIRE(*found);
  CHECK((*found)->key == "c");
  found = store.newest("nothing");
  REQUIRE(found);
  CHECK_FALSE(*found);
}

TEST_CASE(
    "cache, reports 18, 20 and 21: everything that can change the cubin changes the key, and parts cannot run into each other") {
  const std::vector<std::string> flags = {"--a", "--b"};
  const std::string key = kernel_key("source", flags, "NVRTC 13.0.88", "sm_90a");
  CHECK(key.size() == 64);
  CHECK(kernel_key("source", flags, "NVRTC 13.0.88", "sm_90a") == key);
  const std::set<std::string> keys = {
      key,
      kernel_key("source ", flags, "NVRTC 13.0.88", "sm_90a"),
      kernel_key("source", {"--a"}, "NVRTC 13.0.88", "sm_90a"),
      kernel_key("source", {"--b", "--a"}, "NVRTC 13.0.88", "sm_90a"),
      kernel_key("source", {"--a--b"}, "NVRTC 13.0.88", "sm_90a"),
      kernel_key("source", {"--a", "--b", ""}, "NVRTC 13.0.88", "sm_90a"),
      kernel_key("source", flags, "NVRTC 13.0.48", "sm_90a"),
      kernel_key("source", flags, "NVRTC 13.0.88", "sm_90"),
      kernel_key("source", flags, "NVRTC 13.0.88s", "m_90a"),
      kernel_key("", flags, "NVRTC 13.0.88", "sm_90a"),
  };
  CHECK(keys.size() == 10);
  const std::string source = source_key("source", flags, "sm_90a");
  CHECK(source == source_key("source", flags, "sm_90a"));
  CHECK(source != key);
  CHECK(source != source_key("source", flags, "sm_90"));
  CHECK(source != source_key("source2", flags, "sm_90a"));
}

TEST_CASE("cache, report 31: where the file is, and that there may be no place") {
  const Environment cache("ORDO_CACHE", "/c/file.db"), xdg("XDG_CACHE_HOME", "/x"), home("HOME", "/h");
  CHECK(default_path() == "/c/file.db");
  const Environment no_cache("ORDO_CACHE", nullptr);
  CHECK(default_path() == "/x/ordo/cache.db");
  {
    const Environment relative("XDG_CACHE_HOME", "x");
    CHECK(default_path() == "/h/.cache/ordo/cache.db");
  }
  const Environment no_xdg("XDG_CACHE_HOME", "");
  CHECK(default_path() == "/h/.cache/ordo/cache.db");
  const Environment no_home("HOME", nullptr);
  CHECK_FALSE(default_path());
}

}  // namespace ordo::cache
