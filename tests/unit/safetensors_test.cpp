#include "runtime/io/safetensors.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/io/safetensors_header.hpp"

namespace {

using ordo::io::read_safetensors;
using ordo::io::SafeTensors;
using ordo::io::write_safetensors;

// A folder of its own, removed at the end.
struct Folder {
  std::filesystem::path path;
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "ordo_safetensors_XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string file(const char* name) const { return (path / name).string(); }
};

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out << bytes;
  REQUIRE(out.good());
}

std::string length_prefix(std::uint64_t length) {
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[static_cast<std::size_t>(i)] = static_cast<char>(length >> (8 * i));
  return out;
}

std::string with_header(const std::string& header, std::size_t data_bytes = 0) {
  return length_prefix(header.size()) + header + std::string(data_bytes, 'x');
}

SafeTensors sample() {
  SafeTensors content;
  content.tensors["half"] = {"F16", {3}, std::vector<std::byte>(6, std::byte{1})};
  content.tensors["q"] = {"BF16", {1, 2, 2, 3}, std::vector<std::byte>(24, std::byte{2})};
  content.tensors["lse"] = {"F32", {1, 2}, std::vector<std::byte>(8, std::byte{3})};
  content.tensors["scalar"] = {"F64", {}, std::vector<std::byte>(8, std::byte{4})};
  content.tensors["empty"] = {"I64", {0, 7}, {}};
  content.metadata = {{"plan", "attention-backward \"quoted\""}, {"unit", "µs"}};
  return content;
}

}  // namespace

TEST_CASE("safetensors: what is written reads back") {
  const Folder folder;
  const std::string path = folder.file("a.safetensors");
  const SafeTensors content = sample();
  REQUIRE(write_safetensors(path, content).ok());
  auto read = read_safetensors(path);
  REQUIRE(read.ok());
  CHECK(read->metadata == content.metadata);
  REQUIRE(read->tensors.size() == content.tensors.size());
  for (const auto& [name, tensor] : content.tensors) {
    CAPTURE(name);
    REQUIRE(read->tensors.count(name) == 1);
    const auto& got = read->tensors.at(name);
    CHECK(got.dtype == tensor.dtype);
    CHECK(got.shape == tensor.shape);
    CHECK(got.data == tensor.data);
  }
  // The data starts at a multiple of eight, and nothing is left beside the file.
  std::ifstream in(path, std::ios::binary);
  unsigned char low = 0;
  in.read(reinterpret_cast<char*>(&low), 1);
  CHECK(low % 8 == 0);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);
}

TEST_CASE("safetensors: an existing file is replaced, through a symbolic link") {
  const Folder folder;
  const std::string path = folder.file("a.safetensors"), link = folder.file("link.safetensors");
  write_file(path, "old");
  std::filesystem::create_symlink(path, link);
  REQUIRE(write_safetensors(link, sample()).ok());
  CHECK(std::filesystem::is_symlink(link));
  CHECK(read_safetensors(path).ok());
}

TEST_CASE("safetensors: every class of bad file is one io error that names the file") {
  const Folder folder;
  const std::string ok = R"({"q":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}})";
  struct Case {
    std::string what;
    std::string bytes;
    const char* expected;
  };
  const Case cases[] = {
      {"empty", "", "too short"},
      {"seven bytes", "1234567", "too short"},
      {"length beyond the file", length_prefix(1000) + ok, "truncated"},
      {"length near 2^64", length_prefix(~std::uint64_t{0}) + ok, "at most"},
      {"length of 2^62", length_prefix(std::uint64_t{1} << 62) + ok, "at most"},
      {"length just above the limit", length_prefix(100'000'001) + ok, "at most"},
      {"no header", with_header(""), "not JSON"},
      {"spaces only", with_header("        "), "not JSON"},
      {"not JSON", with_header("hello, world"), "not JSON"},
      {"unfinished JSON", with_header(R"({"q":{"dtype":"BF16","shape":[4])"), "not JSON"},
      {"text after the object", with_header(ok + "x", 8), "not JSON"},
      {"a NUL hides what follows", with_header(ok + std::string("\0{}", 3), 8), "NUL"},
      {"bad UTF-8", with_header("{\"\xff\xfe\":{}}"), "not JSON"},
      {"an array", with_header("[1,2]"), "must be a JSON object"},
      {"a number", with_header("7"), "must be a JSON object"},
      {"null", with_header("null"), "must be a JSON object"},
      {"deep nesting", with_header(std::string(1'000'000, '[')), "must be a JSON object"},
      {"deep nesting of objects", with_header([] {
         std::string s;
         for (int i = 0; i < 100'000; ++i) s += "{\"a\":";
         return s;
       }()),
       "unknown key 'a'"},
      {"tensor is a string", with_header(R"({"q":"BF16"})"), "must be an object"},
      {"tensor is null", with_header(R"({"q":null})"), "must be an object"},
      {"tensor is an array", with_header(R"({"q":[]})"), "must be an object"},
      {"nothing stated", with_header(R"({"q":{}})"), "lacks"},
      {"no shape", with_header(R"({"q":{"dtype":"BF16","data_offsets":[0,8]}})", 8), "lacks"},
      {"unknown key", with_header(R"({"q":{"dtype":"BF16","shape":[4],"data_offsets":[0,8],"strides":[1]}})", 8),
       "unknown key 'strides'"},
      {"dtype is a number", with_header(R"({"q":{"dtype":16,"shape":[4],"data_offsets":[0,8]}})", 8), "'q', dtype"},
      {"dtype unknown", with_header(R"({"q":{"dtype":"BF17","shape":[4],"data_offsets":[0,8]}})", 8), "unknown dtype 'BF17'"},
      {"shape is a number", with_header(R"({"q":{"dtype":"BF16","shape":4,"data_offsets":[0,8]}})", 8), "'q', shape"},
      {"negative size", with_header(R"({"q":{"dtype":"BF16","shape":[-4],"data_offsets":[0,8]}})", 8), "found -4"},
      {"fractional size", with_header(R"({"q":{"dtype":"BF16","shape":[4.0],"data_offsets":[0,8]}})", 8), "integers"},
      {"size beyond 64 bits", with_header(R"({"q":{"dtype":"BF16","shape":[99999999999999999999],"data_offsets":[0,8]}})", 8),
       "integers"},
      {"nested shape", with_header(R"({"q":{"dtype":"BF16","shape":[[4]],"data_offsets":[0,8]}})", 8), "integers"},
      {"sizes whose product wraps to 8 bytes",
       with_header(R"({"q":{"dtype":"BF16","shape":[4294967296,4294967296,4],"data_offsets":[0,8]}})", 8), "more than 2^64"},
      {"too many dimensions",
       with_header(
           "{\"q\":{\"dtype\":\"U8\",\"shape\":[" +
               [] {
                 std::string s = "1";
                 for (int i = 0; i < 100; ++i) s += ",1";
                 return s;
               }() +
               "],\"data_offsets\":[0,1]}}",
           1),
       "more than 64 dimensions"},
      {"one offset", with_header(R"({"q":{"dtype":"BF16","shape":[4],"data_offsets":[0]}})", 8), "two numbers"},
      {"three offsets", with_header(R"({"q":{"dtype":"BF16","shape":[4],"data_offsets":[0,8,8]}})", 8), "third"},
      {"negative offset", with_header(R"({"q":{"dtype":"BF16","shape":[4],"data_offsets":[-8,0]}})", 8), "found -8"},
      {"ends before it begins", with_header(R"({"q":{"dtype":"BF16","shape":[4],"data_offsets":[8,0]}})", 8), "before it begins"},
      {"offsets disagree with the shape", with_header(R"({"q":{"dtype":"BF16","shape":[5],"data_offsets":[0,8]}})", 8),
       "needs 10"},
      {"gap at the start", with_header(R"({"q":{"dtype":"BF16","shape":[4],"data_offsets":[8,16]}})", 16), "gap"},
      {"gap between",
       with_header(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})",
                   9),
       "gap"},
      {"overlap",
       with_header(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                   6),
       "overlap"},
      {"data cut short", with_header(ok, 7), "truncated"},
      {"offsets near 2^64",
       with_header(R"({"q":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,18446744073709551615]}})", 8),
       "integers"},
      {"a tensor of 2^62 bytes",
       with_header(R"({"q":{"dtype":"U8","shape":[4611686018427387904],"data_offsets":[0,4611686018427387904]}})", 8),
       "truncated"},
      {"bytes after the last tensor", with_header(ok, 9), "1 bytes follow"},
      {"data without tensors", with_header("{}", 4), "4 bytes follow"},
      {"name twice",
       with_header(
           R"({"q":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"q":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
       "'q' stands twice"},
      {"metadata twice", with_header(R"({"__metadata__":{},"__metadata__":{}})"), "stands twice"},
      {"key twice", with_header(R"({"q":{"dtype":"U8","dtype":"I8","shape":[0],"data_offsets":[0,0]}})"), "'dtype' stands twice"},
      {"metadata key twice", with_header(R"({"__metadata__":{"a":"1","a":"2"}})"), "'a' stands twice"},
      {"metadata is not an object", with_header(R"({"__metadata__":"x"})"), "must be an object"},
      {"metadata holds a number", with_header(R"({"__metadata__":{"a":1}})"), "strings to strings"},
      {"metadata is nested", with_header(R"({"__metadata__":{"a":{"b":"c"}}})"), "strings to strings"},
  };
  const std::string path = folder.file("bad.safetensors");
  for (const Case& c : cases) {
    CAPTURE(c.what);
    write_file(path, c.bytes);
    auto read = read_safetensors(path);
    REQUIRE_FALSE(read.ok());
    CHECK(read.error().code == ordo::ErrorCode::io);
    CHECK(read.error().message.find(path) != std::string::npos);
    CAPTURE(read.error().message);
    CHECK(read.error().message.find(c.expected) != std::string::npos);
    CHECK(read.error().message.size() < 600);
  }
}

TEST_CASE("safetensors: every truncation and every flipped header byte is safe") {
  const Folder folder;
  const std::string path = folder.file("a.safetensors");
  REQUIRE(write_safetensors(path, sample()).ok());
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_file(path, whole.substr(0, size));
    CHECK_FALSE(read_safetensors(path).ok());
  }
  for (std::size_t i = 0; i < whole.size() - 46; ++i) {
    for (const char flip : {'\x01', '\x20', '\x80'}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      write_file(path, damaged);
      (void)read_safetensors(path);  // may still be well-formed (a changed name): only must not crash
    }
  }
}

TEST_CASE("safetensors: files that cannot be opened") {
  const Folder folder;
  for (const std::string& path : {folder.file("missing"), folder.path.string(), std::string("/dev/null"), std::string()}) {
    CAPTURE(path);
    auto read = read_safetensors(path);
    REQUIRE_FALSE(read.ok());
    CHECK(read.error().code == ordo::ErrorCode::io);
  }
}

TEST_CASE("safetensors: what cannot be written is refused and leaves nothing behind") {
  const Folder folder;
  const SafeTensors content = sample();
  for (const std::string& path :
       {folder.file("no/such/folder/x"), folder.path.string(), std::string("/dev/null"), std::string()}) {
    CAPTURE(path);
    auto written = write_safetensors(path, content);
    REQUIRE_FALSE(written.ok());
    CHECK(written.error().code == ordo::ErrorCode::io);
  }
  struct stat null_device{};
  REQUIRE(::stat("/dev/null", &null_device) == 0);
  CHECK(S_ISCHR(null_device.st_mode));

  const std::string path = folder.file("a.safetensors");
  const auto refused = [&](auto change) {
    SafeTensors bad = content;
    change(bad);
    return !write_safetensors(path, bad).ok();
  };
  CHECK(refused([](SafeTensors& c) { c.tensors["q"].data.pop_back(); }));
  CHECK(refused([](SafeTensors& c) { c.tensors["q"].dtype = "BF17"; }));
  CHECK(refused([](SafeTensors& c) { c.tensors["q"].shape[0] = -1; }));
  CHECK(refused([](SafeTensors& c) { c.tensors["__metadata__"] = c.tensors["q"]; }));
  CHECK(refused([](SafeTensors& c) { c.metadata["a"] = "\xff"; }));
  CHECK(std::filesystem::is_empty(folder.path));
}

TEST_CASE("safetensors: names from a file cannot disturb a terminal") {
  CHECK(ordo::io::printable("\x1b[31mred\n'") == "'\\x1b[31mred\\x0a\\x27'");
  CHECK(ordo::io::printable(std::string(1000, 'a')).size() < 100);
}
