#include <doctest/doctest.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <string_view>
#include <thread>

#include "cache/store.hpp"
#include "codegen/hash/sha256.hpp"
#include "tests/unit/scratch.hpp"

namespace ordo::cache {
namespace {

namespace fs = std::filesystem;

using test::Environment;
using test::Folder;

Entry entry(const std::string& key, std::size_t size = 3000, const std::string& toolchain = "NVRTC 13.0.88") {
  Entry e;
  e.key = key;
  e.source_key = "source of " + key;
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

std::string numbered(const char* prefix, int number) { return std::string(prefix).append(std::to_string(number)); }

Store open(const std::string& path) {
  Result<Store> store = Store::open(path);
  REQUIRE_MESSAGE(store, store.error().message);
  return *std::move(store);
}

std::optional<Entry> get(const Store& store, const std::string& key) {
  Result<std::optional<Entry>> found = store.get(key);
  REQUIRE_MESSAGE(found, found.error().message);
  return *std::move(found);
}

void put(Store& store, const Entry& e) {
  const Result<void> stored = store.put(e);
  REQUIRE_MESSAGE(stored, stored.error().message);
}

/// Changes a file behind the store's back.
void sql(const std::string& path, const std::string& statement) {
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &db) == SQLITE_OK);
  char* message = nullptr;
  const int code = sqlite3_exec(db, statement.c_str(), nullptr, nullptr, &message);
  REQUIRE_MESSAGE(code == SQLITE_OK, message);
  sqlite3_close(db);
}

void check_refused(const std::string& path, std::string_view part) {
  const Result<Store> store = Store::open(path);
  REQUIRE_FALSE(store);
  CHECK(store.error().code == ErrorCode::cache);
  CHECK_MESSAGE(store.error().message.find(part) != std::string::npos, store.error().message);
  CHECK_MESSAGE(store.error().message.find(path) != std::string::npos, store.error().message);
}

/// Runs `body` in a child process; its exit code is 0 when the body returns true.
template <class Body>
pid_t in_child(Body body) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(body() ? 0 : 1);
  return child;
}

int exit_code(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

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

TEST_CASE("cache: the file says what it is, and keeps a rollback journal") {
  const Folder folder;
  Store store = open(folder.file("cache.db"));
  put(store, entry("a"));
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(folder.file("cache.db").c_str(), &db) == SQLITE_OK);
  for (const auto& [pragma, value] : {std::pair{"PRAGMA application_id", "1869767791"},
                                      {"PRAGMA user_version", "1"},
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

TEST_CASE("cache: an intact row is immutable, a damaged one is a miss and is replaced") {
  const Folder folder;
  Store store = open(folder.file("cache.db"));
  put(store, entry("a"));
  put(store, entry("b"));
  Entry other = entry("z");
  other.key = "a";
  put(store, other);
  CHECK(get(store, "a")->bytes == entry("a").bytes);

  for (const char* damage : {
           "UPDATE blobs SET data = zeroblob(length(data)) WHERE id = (SELECT blob FROM kernels WHERE key = 'a')",
           "UPDATE blobs SET data = substr(data, 1, 100) WHERE id = (SELECT blob FROM kernels WHERE key = 'a')",
           "UPDATE blobs SET codec = 99 WHERE id = (SELECT blob FROM kernels WHERE key = 'a')",
           "DELETE FROM blobs WHERE id = (SELECT blob FROM kernels WHERE key = 'a')",
           "UPDATE kernels SET registers = 167 WHERE key = 'a'",
           "UPDATE kernels SET entry = 'ordo_mail' WHERE key = 'a'",
           "UPDATE kernels SET sha256 = 'x' WHERE key = 'a'",
           "UPDATE kernels SET compile_ms = 'soon' WHERE key = 'a'",
       }) {
    CAPTURE(damage);
    sql(folder.file("cache.db"), damage);
    CHECK_FALSE(get(store, "a"));
    CHECK(get(store, "b")->bytes == entry("b").bytes);
    put(store, entry("a"));
    REQUIRE(get(store, "a"));
    CHECK(get(store, "a")->bytes == entry("a").bytes);
  }
  // The bytes of another kernel under this key are not served either, though they are intact.
  sql(folder.file("cache.db"), "UPDATE kernels SET blob = (SELECT blob FROM kernels WHERE key = 'b') WHERE key = 'a'");
  CHECK_FALSE(get(store, "a"));
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

TEST_CASE("cache: files that are not ours are refused and left alone") {
  const Folder folder;
  std::ofstream(folder.file("text")) << std::string(5000, 'x');
  check_refused(folder.file("text"), "not an SQLite file");
  sql(folder.file("other"), "CREATE TABLE t(x)");
  check_refused(folder.file("other"), "another program");
  sql(folder.file("app"), "PRAGMA application_id=7; PRAGMA user_version=1");
  check_refused(folder.file("app"), "another program");
  sql(folder.file("claims"), "PRAGMA application_id=1869767791; PRAGMA user_version=1; CREATE TABLE kernels(x)");
  check_refused(folder.file("claims"), "no such");
  check_refused(folder.file("text") + "/cache.db", "cannot be");
  fs::create_directory(folder.file("directory"));
  check_refused(folder.file("directory"), "cannot be opened");
  const Result<Store> nameless = Store::open("");
  REQUIRE_FALSE(nameless);
  CHECK(nameless.error().code == ErrorCode::cache);
  CHECK(fs::file_size(folder.file("text")) == 5000);
}

TEST_CASE("cache: an empty file becomes a cache") {
  const Folder folder;
  std::ofstream(folder.file("cache.db")).flush();
  Store store = open(folder.file("cache.db"));
  put(store, entry("a"));
  CHECK(get(store, "a"));
}

TEST_CASE("cache: a newer schema is read, never written") {
  const Folder folder;
  {
    Store store = open(folder.file("cache.db"));
    put(store, entry("a"));
  }
  sql(folder.file("cache.db"), "PRAGMA user_version=2; ALTER TABLE kernels ADD COLUMN more TEXT");
  Store store = open(folder.file("cache.db"));
  CHECK(get(store, "a"));
  const Result<void> stored = store.put(entry("b"));
  REQUIRE_FALSE(stored);
  CHECK(stored.error().code == ErrorCode::cache);
  CHECK(stored.error().message.find("newer") != std::string::npos);
}

TEST_CASE("cache: newest finds the entry of the newest toolchain, by number, and skips damaged ones") {
  const Folder folder;
  Store store = open(folder.file("cache.db"));
  for (const auto& [key, toolchain] :
       {std::pair{"a", "NVRTC 12.9.86"}, {"b", "NVRTC 13.0.88"}, {"c", "NVRTC 13.0.9"}, {"d", "NVRTC 9.9.99"}}) {
    Entry e = entry(key, 100, toolchain);
    e.source_key = "s";
    put(store, e);
  }
  put(store, entry("other", 100, "NVRTC 99.0.0"));
  Result<std::optional<Entry>> found = store.newest("s");
  REQUIRE(found);
  REQUIRE(*found);
  CHECK((*found)->key == "b");
  sql(folder.file("cache.db"), "UPDATE blobs SET data = x'00' WHERE id = (SELECT blob FROM kernels WHERE key = 'b')");
  found = store.newest("s");
  REQUIRE(found);
  REQUIRE(*found);
  CHECK((*found)->key == "c");
  found = store.newest("nothing");
  REQUIRE(found);
  CHECK_FALSE(*found);
}

TEST_CASE("cache: many threads on one store") {
  const Folder folder;
  Store store = open(folder.file("cache.db"));
  std::vector<std::thread> threads;
  threads.reserve(4);
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        const std::string key = numbered("k", (i + t * 5) % 10);
        if (!store.put(entry(key, 500))) ++wrong;
        const Result<std::optional<Entry>> found = store.get(key);
        if (!found || !*found || (*found)->bytes != entry(key, 500).bytes) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  const Result<std::vector<Entry>> entries = store.list();
  REQUIRE(entries);
  CHECK(entries->size() == 10);
}

TEST_CASE("cache: processes that create and fill one file at the same time all succeed") {
  const Folder folder;
  std::vector<pid_t> children;
  children.reserve(6);
  for (int p = 0; p < 6; ++p) {
    children.push_back(in_child([&] {
      Result<Store> store = Store::open(folder.file("cache.db"));
      if (!store) return false;
      for (int i = 0; i < 8; ++i) {
        const std::string key = numbered("k", i);
        if (!store->put(entry(key))) return false;
        const Result<std::optional<Entry>> found = store->get(key);
        if (!found || !*found || (*found)->bytes != entry(key).bytes) return false;
      }
      return true;
    }));
  }
  for (const pid_t child : children) CHECK(exit_code(child) == 0);
  const Result<std::vector<Entry>> entries = open(folder.file("cache.db")).list();
  REQUIRE(entries);
  CHECK(entries->size() == 8);
}

TEST_CASE("cache: a store survives fork in parent and child") {
  const Folder folder;
  Store store = open(folder.file("cache.db"));
  put(store, entry("before"));
  const pid_t child = in_child([&] {
    const Result<std::optional<Entry>> found = store.get("before");
    return found && *found && store.put(entry("of the child"));
  });
  CHECK(exit_code(child) == 0);
  CHECK(get(store, "of the child"));
  put(store, entry("after"));
  CHECK(get(store, "after"));
}

TEST_CASE("cache: a process killed while it writes loses nothing that was stored") {
  const Folder folder;
  Store store = open(folder.file("cache.db"));
  put(store, entry("kept", 200000));
  for (int round = 0; round < 20; ++round) {
    const pid_t child = in_child([&] {
      Result<Store> own = Store::open(folder.file("cache.db"));
      for (int i = 0; own && i < 1000; ++i) (void)own->put(entry(numbered(numbered("k", round).append(".").c_str(), i), 50000));
      return true;
    });
    usleep(2000 + 1500 * static_cast<unsigned>(round));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    REQUIRE(get(open(folder.file("cache.db")), "kept"));
  }
  CHECK(get(store, "kept")->bytes == entry("kept", 200000).bytes);
  const Result<std::vector<Entry>> entries = store.list();
  REQUIRE(entries);
  for (const Entry& e : *entries) CHECK(get(store, e.key));
}

TEST_CASE("cache: damage anywhere in the file never serves wrong bytes and never crashes") {
  const Folder folder;
  {
    Store store = open(folder.file("cache.db"));
    for (int i = 0; i < 6; ++i) put(store, entry(numbered("k", i), 9000));
  }
  std::ifstream in(folder.file("cache.db"), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::mt19937 random(7);
  int missed = 0;
  for (int round = 0; round < 400; ++round) {
    std::string damaged = whole;
    for (unsigned i = 0; i < 1 + random() % 20; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
    if (round % 4 == 0) damaged.resize(random() % damaged.size());
    if (round % 4 == 1)
      std::fill_n(damaged.begin() + static_cast<std::ptrdiff_t>(random() % (damaged.size() - 4096)), 4096, '\xff');
    const std::string path = folder.file("damaged.db");
    std::ofstream(path, std::ios::binary | std::ios::trunc) << damaged;
    Result<Store> store = Store::open(path);
    if (!store) {
      ++missed;
      continue;
    }
    for (int i = 0; i < 6; ++i) {
      const std::string key = numbered("k", i);
      const Result<std::optional<Entry>> found = store->get(key);
      if (!found || !*found) {
        ++missed;
        continue;
      }
      REQUIRE((*found)->bytes == entry(key, 9000).bytes);
      REQUIRE((*found)->registers == 168);
    }
    (void)store->list();
    (void)store->newest("source of k0");
    if (round % 8 == 0) (void)store->put(entry("new"));  // each waits for the disk
    fs::remove(path + "-journal");
  }
  CHECK(missed > 20);
}

TEST_CASE("cache: everything that can change the cubin changes the key, and parts cannot run into each other") {
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

TEST_CASE("cache: where the file is") {
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
