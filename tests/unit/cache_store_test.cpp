// Compression, eviction, clean-up, read-only files, and files put aside.
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "cache/codec.hpp"
#include "cache/places.hpp"
#include "tests/unit/cache_support.hpp"

namespace ordo::cache {
namespace {

/// An entry whose bytes shrink, as a cubin's do.
Entry compressible(const std::string& key, std::size_t size = 60000) {
  Entry e = entry(key, 0);
  for (std::size_t i = 0; i < size; ++i) e.bytes.push_back(static_cast<std::byte>((i * i) % 251 % 7));
  e.sha256 = sha256_hex(e.bytes);
  return e;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::vector<std::string> keys(const Store& store) {
  Result<std::vector<Entry>> entries = store.list();
  REQUIRE(entries);
  std::vector<std::string> all;
  for (const Entry& e : *entries) all.push_back(e.key);
  return all;
}

}  // namespace

TEST_CASE("cache codec: what shrinks is compressed, what does not is kept, and damage is noticed") {
  const Entry small = compressible("a"), random = entry("b", 5000);
  Encoded packed = encode(small.bytes);
  CHECK(packed.codec == Codec::zstd);
  CHECK(packed.data.size() < small.bytes.size() / 3);
  CHECK(decode(1, packed.data) == small.bytes);
  CHECK(encode(small.bytes).data == packed.data);
  const Encoded plain = encode(random.bytes);
  CHECK(plain.codec == Codec::plain);
  CHECK(decode(0, plain.data) == random.bytes);
  CHECK_FALSE(decode(7, plain.data));
  CHECK_FALSE(decode(1, plain.data));
  CHECK_FALSE(decode(1, {}));
  packed.data.resize(packed.data.size() - 1);
  CHECK_FALSE(decode(1, packed.data));
}

TEST_CASE("cache store, report 7: cubins lie compressed, stamps and sizes are kept, several entries go in one transaction") {
  const Folder folder;
  Store store = open(folder.file("cache.db"));
  std::vector<Entry> both{compressible("a"), compressible("b")};
  both[0].templates = std::string(64, 't');
  both[0].flags = "--x --y";
  both[0].created = 100;
  both[0].used = 200;
  CHECK(store.apply({.entries = both}));
  const std::optional<Entry> a = get(store, "a");
  REQUIRE(a);
  CHECK(a->bytes == both[0].bytes);
  CHECK(a->templates == both[0].templates);
  CHECK(a->flags == "--x --y");
  CHECK(a->created == 100);
  CHECK(a->used == 200);
  CHECK(a->file_bytes < static_cast<std::int64_t>(a->bytes.size()));
  CHECK(get(store, "b")->used > 1700000000);
  const std::string one[] = {"a", "never there"};
  CHECK(store.apply({.used = one}));
  CHECK(get(store, "a")->used > 1700000000);
  CHECK(get(store, "a")->created == 100);

  both[1].sha256 = both[0].sha256 = "wrong";
  std::vector<Entry> mixed{compressible("c"), both[0]};
  CHECK_FALSE(store.apply({.entries = mixed}));
  CHECK_FALSE(get(store, "c"));  // all or nothing
}

TEST_CASE("cache store: counters add up, toolchains are remembered, and a damaged one is forgotten") {
  const Folder folder;
  Store store = open(folder.file("cache.db"));
  CHECK(store.apply({.counters = {{"x", 1.5}, {"y", 1}}, .toolchains = {{"build-id:12", "NVRTC 13.0.88"}}}));
  CHECK(store.apply({.counters = {{"x", 2}}, .toolchains = {{"build-id:12", "NVRTC 13.0.88"}, {"file:a", "NVRTC 12.8.1"}}}));
  const auto counters = store.counters();
  REQUIRE(counters);
  CHECK(*counters == std::map<std::string, double>{{"x", 3.5}, {"y", 1}});
  CHECK(*store.toolchain_of("build-id:12") == "NVRTC 13.0.88");
  CHECK_FALSE(*store.toolchain_of("build-id:13"));
  sql(folder.file("cache.db"), "UPDATE toolchains SET toolchain = 'NVRTC 13.0.89' WHERE library = 'build-id:12'");
  CHECK_FALSE(*store.toolchain_of("build-id:12"));
  CHECK(*store.toolchain_of("file:a") == "NVRTC 12.8.1");
}

TEST_CASE("cache store, report 28: a finite size, and what was unused for longest goes first by our own stamps") {
  const Folder folder;
  constexpr std::int64_t limit = 1 << 20;
  Result<Store> opened = Store::open(folder.file("cache.db"), {.limit_bytes = limit});
  REQUIRE(opened);
  Store& store = *opened;
  for (int i = 0; i < 60; ++i) {
    Entry e = entry(numbered("k", 100 + i), 40000);
    e.used = 1000 + i;
    put(store, e);
    if (i == 10) {
      const std::string again[] = {"k100"};  // the oldest is asked for again
      REQUIRE(store.apply({.used = again}));
    }
    const Result<Sizes> sizes = store.sizes();
    REQUIRE(sizes);
    CHECK(sizes->used_bytes <= limit);
  }
  CHECK(get(store, "k100"));
  CHECK_FALSE(get(store, "k101"));
  CHECK(get(store, "k159"));
  CHECK(store.sizes()->file_bytes < 2 * limit);
  CHECK(keys(store).size() > 15);
}

TEST_CASE("cache store: gc removes damage, the unused, other toolchains, orphans and free pages") {
  const Folder folder;
  const std::string path = folder.file("cache.db");
  Store store = open(path);
  for (int i = 0; i < 20; ++i) put(store, entry(numbered("k", i), 30000));
  Entry old = entry("old", 30000), other = entry("other", 30000, "NVRTC 12.8.93");
  old.used = 1000;
  put(store, old);
  put(store, other);
  sql(path, "UPDATE blobs SET data = zeroblob(10) WHERE id = (SELECT blob FROM kernels WHERE key = 'k3')");
  sql(path, "INSERT INTO blobs(codec, data) VALUES(0, zeroblob(200000))");
  sql(path, "DELETE FROM blobs WHERE id = (SELECT blob FROM kernels WHERE key = 'k4')");
  CHECK(*store.damaged() == std::vector<std::string>{"k3", "k4"});
  const Result<VerifyReport> report = store.verify();
  REQUIRE(report);
  CHECK(report->entries == 20);
  CHECK(report->damaged.size() == 2);
  CHECK(report->structure == "ok");
  const Result<GcReport> gc = store.gc({.unused_days = 30, .keep_toolchain = "NVRTC 13.0.88"});
  REQUIRE_MESSAGE(gc, gc.error().message);
  CHECK(gc->damaged == 2);
  CHECK(gc->removed == 2);
  CHECK(gc->after.entries == 18);
  CHECK(gc->after.file_bytes < gc->before.file_bytes - 200000);
  CHECK(gc->after.file_bytes == gc->after.used_bytes);
  const Result<GcReport> smaller = store.gc({.limit_bytes = 300000});
  REQUIRE(smaller);
  CHECK(smaller->after.file_bytes <= 300000);
  CHECK(smaller->after.entries > 0);
  for (const std::string& key : keys(store)) CHECK(get(store, key));
}

TEST_CASE(
    "cache store, reports 12 and 30: a finished file is read where nothing can be written, in any journal mode, and never "
    "touched") {
  const Folder folder;
  const std::string path = folder.file("with ?#% in its name.db");
  {
    Store store = open(path);
    put(store, entry("a"));
  }
  sql(path, "PRAGMA journal_mode=WAL");
  const std::string before = read_file(path);
  REQUIRE(::chmod(path.c_str(), 0444) == 0);
  REQUIRE(::chmod(folder.path().c_str(), 0555) == 0);
  Result<Store> shipped = Store::open(path, {.access = Access::immutable});
  REQUIRE_MESSAGE(shipped, shipped.error().message);
  CHECK(get(*shipped, "a")->bytes == entry("a").bytes);
  CHECK_FALSE(shipped->put(entry("b")));
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
  REQUIRE(::chmod(folder.path().c_str(), 0755) == 0);
  CHECK(read_file(path) == before);
  CHECK_FALSE(Store::open(folder.file("absent"), {.access = Access::immutable}));
  CHECK_FALSE(Store::open(folder.file("absent"), {.access = Access::existing}));
  CHECK_FALSE(fs::exists(folder.file("absent")));
}

TEST_CASE("cache store, report 11: a damaged file is put aside, heard of once, and work goes on with a new one") {
  const Folder folder;
  const std::string path = folder.file("cache.db");
  std::vector<std::string> heard;
  const StoreOptions options{.quarantined = [&](const std::string& message) { heard.push_back(message); }};
  const auto damage = [&](const std::string& how) {
    std::string text = read_file(path);
    if (how == "header") std::fill(text.begin(), text.begin() + 40, 'x');
    if (how == "schema page") std::fill(text.begin() + 100, text.begin() + 16384, '\xff');
    if (how == "truncated") text.resize(700);
    if (how == "a stub") text.resize(50);
    if (how == "all data pages") std::fill(text.begin() + 16384, text.end(), '\xff');
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  };
  for (const char* how : {"header", "schema page", "truncated", "a stub", "all data pages"}) {
    CAPTURE(how);
    heard.clear();
    fs::remove(path);
    {
      Store store = open(path);
      for (int i = 0; i < 10; ++i) put(store, entry(numbered("k", i), 30000));
    }
    damage(how);
    Result<Store> store = Store::open(path, options);
    REQUIRE_MESSAGE(store, store.error().message);
    const Result<std::optional<Entry>> lost = store->get("k1");
    REQUIRE_MESSAGE(lost, lost.error().message);
    CHECK_FALSE(*lost);
    put(*store, entry("new"));
    CHECK(get(*store, "new"));
    REQUIRE(heard.size() == 1);
    CHECK(heard[0].find(path + ".corrupt-") != std::string::npos);
    CHECK(store->verify()->structure == "ok");
    const std::string aside =
        heard[0].substr(heard[0].find(path + ".corrupt-"), heard[0].find(" and a new") - heard[0].find(path + ".corrupt-"));
    CHECK_MESSAGE(fs::exists(aside), aside);
    fs::remove(aside);
  }
}

TEST_CASE("cache store, report 11: damage while the file is open, and by several processes at once") {
  const Folder folder;
  const std::string path = folder.file("cache.db");
  {
    Store store = open(path);
    for (int i = 0; i < 10; ++i) put(store, entry(numbered("k", i), 30000));
  }
  std::string text = read_file(path);
  std::fill(text.begin() + 100, text.end(), '\xff');
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  std::vector<pid_t> children;
  children.reserve(6);
  for (int p = 0; p < 6; ++p) {
    children.push_back(in_child([&] {
      Result<Store> store = Store::open(path, {.quarantined = [](const std::string&) {}});
      return store && store->put(entry(numbered("of ", static_cast<int>(getpid())))) &&
             *store->get(numbered("of ", static_cast<int>(getpid())));
    }));
  }
  int failed = 0;
  for (const pid_t child : children) failed += exit_code(child) != 0 ? 1 : 0;
  CHECK(failed == 0);
  CHECK(keys(open(path)).size() == 6);  // nobody put another's new file aside
  int aside = 0;
  for (const auto& file : fs::directory_iterator(folder.path()))
    aside += file.path().string().find(".corrupt-") != std::string::npos ? 1 : 0;
  CHECK(aside == 1);
}

TEST_CASE("cache store: a file that is not ours is refused, also where damaged ones are put aside") {
  const Folder folder;
  std::ofstream(folder.file("text")) << std::string(5000, 'x');
  sql(folder.file("other"), "CREATE TABLE t(x)");
  for (const char* name : {"text", "other"}) {
    int heard = 0;
    const Result<Store> store = Store::open(folder.file(name), {.quarantined = [&](const std::string&) { ++heard; }});
    REQUIRE_FALSE(store);
    CHECK(store.error().message.find("not a kernel cache of ordo") != std::string::npos);
    CHECK(heard == 0);
    CHECK(fs::exists(folder.file(name)));
  }
}

TEST_CASE("cache places, reports 4 and 8: filesystems between hosts are known") {
  for (const std::int64_t type : {0x6969L, 0x0bd00bd0L, 0x47504653L, 0xfe534d42L, 0x65735546L})
    CHECK(is_network_filesystem(type));
  for (const std::int64_t type : {0xef53L, 0x58465342L, 0x01021994L, 0x794c7630L})
    CHECK_FALSE(is_network_filesystem(type));  // ext4, xfs, tmpfs, overlay
}

TEST_CASE("cache places: sizes, layers, and a private folder that is nobody else's") {
  CHECK(parse_size("0") == 0);
  CHECK(parse_size("123") == 123);
  CHECK(parse_size("4K") == 4096);
  CHECK(parse_size("2G") == std::int64_t{2} << 30);
  for (const char* text : {"", "K", "-1", "1.5G", "12X", "99999999999999999999", "9223372036854775807K", "1 G"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_size(text));
  }
  {
    const Environment limit("ORDO_CACHE_LIMIT", "500M"), layers("ORDO_CACHE_LAYERS", ":/a.db::/b c.db:");
    CHECK(default_limit_bytes() == 500 << 20);
    CHECK(default_layers() == std::vector<std::string>{"/a.db", "/b c.db"});
  }
  const Environment limit("ORDO_CACHE_LIMIT", "much"), no_layers("ORDO_CACHE_LAYERS", nullptr);
  CHECK(default_limit_bytes() == std::int64_t{2} << 30);
  CHECK(default_layers().empty());

  const Folder folder;
  const Environment runtime("XDG_RUNTIME_DIR", folder.path().c_str()), temporary("TMPDIR", folder.path().c_str());
  CHECK(private_folder() == folder.file("ordo"));
  REQUIRE(::chmod(folder.file("ordo").c_str(), 0777) == 0);  // others may write: not ours alone
  const std::string second = folder.file("ordo-") + std::to_string(::getuid());
  CHECK(private_folder() == second);
  fs::remove(second);
  fs::create_symlink("/tmp", second);
  CHECK_FALSE(private_folder());
}

}  // namespace ordo::cache
