// The cache among threads, processes, damage and files that are not its own.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <fstream>
#include <string_view>
#include <thread>

#include "tests/unit/cache_support.hpp"

namespace ordo::cache {
namespace {

void check_refused(const std::string& path, std::string_view part) {
  const Result<Store> store = Store::open(path);
  REQUIRE_FALSE(store);
  CHECK(store.error().code == ErrorCode::cache);
  CHECK_MESSAGE(store.error().message.find(part) != std::string::npos, store.error().message);
  CHECK_MESSAGE(store.error().message.find(path) != std::string::npos, store.error().message);
}

}  // namespace

TEST_CASE("cache, reports 6 and 27: an intact row is immutable, a damaged one is a miss and is replaced") {
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

TEST_CASE("cache: a newer schema is read, never written") {
  const Folder folder;
  {
    Store store = open(folder.file("cache.db"));
    put(store, entry("a"));
  }
  sql(folder.file("cache.db"), "PRAGMA user_version=99; ALTER TABLE kernels ADD COLUMN more TEXT");
  Store store = open(folder.file("cache.db"));
  CHECK(get(store, "a"));
  const Result<void> stored = store.put(entry("b"));
  REQUIRE_FALSE(stored);
  CHECK(stored.error().code == ErrorCode::cache);
  CHECK(stored.error().message.find("newer") != std::string::npos);
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

TEST_CASE("cache, report 17: a file that another process is making is not taken for a foreign one") {
  const Folder folder;
  int failed = 0;
  for (int round = 0; round < 40; ++round) {  // a header read in pieces failed in one round of seven
    const std::string path = folder.file(numbered("made", round).append(".db"));
    std::vector<pid_t> children;
    children.reserve(6);
    for (int p = 0; p < 6; ++p) children.push_back(in_child([&] { return Store::open(path).ok(); }));
    for (const pid_t child : children) failed += exit_code(child) != 0 ? 1 : 0;
  }
  CHECK(failed == 0);
}

TEST_CASE("cache, reports 1 and 17: processes that create and fill one file at the same time all succeed") {
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

TEST_CASE("cache, report 47: a store survives fork in parent and child") {
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

}  // namespace ordo::cache
