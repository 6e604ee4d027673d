#include "ordo/shape_list.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/scratch.hpp"

namespace ordo {
namespace {

ShapeList parse(const std::string& text) {
  Result<ShapeList> list = parse_shape_list(text, "list.toml");
  REQUIRE_MESSAGE(list, list.error().message);
  return *std::move(list);
}

void check_refused(const std::string& text, const std::string& part) {
  const Result<ShapeList> list = parse_shape_list(text, "list.toml");
  REQUIRE_FALSE_MESSAGE(list, text);
  CHECK(list.error().code == ErrorCode::invalid_argument);
  CHECK_MESSAGE(list.error().message.find(part) != std::string::npos, list.error().message);
  CHECK_MESSAGE(list.error().message.starts_with("list.toml"), list.error().message);
}

}  // namespace

TEST_CASE("shape list: every combination of a table's lists, ranks with their share of the heads") {
  const ShapeList list = parse(R"(
name = "Llama 3 8B"
[[attention-backward]]
heads = 32
kv_heads = 8
head_dim = 128
tensor_parallel = [1, 8, 16]
batch = [1, 2]
seqlen = [2048, 8192]
mask = ["causal"]
accumulate = ["ordered", "exact"]
)");
  CHECK(list.name == "Llama 3 8B");
  REQUIRE(list.problems.size() == 3 * 2 * 2 * 2);
  const ListedProblem& first = list.problems.front();
  CHECK(first.problem ==
        AttentionBackward{
            .batch = 1, .seqlen_q = 2048, .seqlen_k = 2048, .heads = 32, .kv_heads = 8, .head_dim = 128, .mask = Mask::causal});
  CHECK(first.request.accumulate == Accumulate::ordered);
  CHECK_FALSE(first.request.schedule);
  const ListedProblem& last = list.problems.back();
  CHECK(last.problem.heads == 2);
  CHECK(last.problem.kv_heads == 1);  // 16 ranks share 8 KV heads
  CHECK(last.problem.batch == 2);
  CHECK(last.problem.seqlen_k == 8192);
  CHECK(last.request.accumulate == Accumulate::exact);
}

TEST_CASE("shape list: defaults, pairs of lengths, single values, duplicates once") {
  const ShapeList list = parse(R"(
[[attention-backward]]
heads = 4
seqlen_q = [1, 100]
seqlen_k = [4096, 200]
dtype = "fp16"
static_shape = true
schedule = "descending"
[[attention-backward]]
heads = 4
seqlen_q = 100
seqlen_k = 200
dtype = "fp16"
static_shape = true
schedule = "descending"
)");
  REQUIRE(list.problems.size() == 2);
  CHECK(list.problems[0].problem.seqlen_q == 1);
  CHECK(list.problems[0].problem.seqlen_k == 4096);
  CHECK(list.problems[1].problem.kv_heads == 4);
  CHECK(list.problems[1].problem.dtype == DType::fp16);
  CHECK(list.problems[1].problem.mask == Mask::full);
  CHECK(list.problems[1].request.static_shape);
  CHECK(list.problems[1].request.schedule == Schedule::descending);
}

TEST_CASE("shape list: plans by their text, and what is written reads back") {
  ShapeList list = parse("[[plan]]\ntext = \"" + to_text(Plan{}) + "\"\n[[plan]]\ntext = \"" + to_text(Plan{}) + "\"");
  REQUIRE(list.plans.size() == 1);
  CHECK(list.plans[0] == Plan{});
  list.overlap_plans.push_back({.op = OverlapOp::all_gather_gemm, .ranks = 2});
  list.name = "a \"name\" with \\ and \n";
  ListedProblem listed;
  listed.problem = {.batch = 2,
                    .seqlen_q = 7,
                    .seqlen_k = 9,
                    .heads = 6,
                    .kv_heads = 3,
                    .head_dim = 64,
                    .mask = Mask::causal,
                    .dtype = DType::fp16};
  list.problems.push_back(listed);
  listed.request = {Schedule::descending, Accumulate::exact, true};
  list.problems.push_back(listed);
  const ShapeList again = parse(to_toml(list));
  CHECK(again.name == "a \"name\" with \\ and  ");
  CHECK(again.problems == list.problems);
  CHECK(again.plans == list.plans);
  CHECK(again.overlap_plans == list.overlap_plans);
}

TEST_CASE("shape list: what is wrong is named with its line") {
  const std::string table = "[[attention-backward]]\nheads = 8\n";
  check_refused("", "empty");
  check_refused("name = ", "list.toml:1");
  check_refused("nam = \"x\"", "unknown key 'nam'");
  check_refused("name = 3", "name");
  check_refused("attention-backward = 3", "must be a table");
  check_refused("attention-backward = [3]", "must be a table");
  check_refused("[[attention-backward]]\nseqlen = 1", "heads is missing");
  check_refused(table, "lengths");
  check_refused(table + "seqlen = 5\nseqlen_q = 5", "lengths");
  check_refused(table + "seqlen_q = [5, 6]\nseqlen_k = [5]", "pairs");
  check_refused(table + "seqlen = []", "list.toml:3: seqlen: an empty list");
  check_refused(table + "seqlen = 0", "less than 1");
  check_refused(table + "seqlen = 5.0", "whole number");
  check_refused(table + "seqlen = 99999999999999999999", "list.toml:3");
  check_refused(table + "seqlen = 5\nkvheads = 2", "list.toml:4: unknown key 'kvheads'");
  check_refused(table + "seqlen = 5\nkv_heads = 3", "kv_heads");
  check_refused(table + "seqlen = 5\nhead_dim = 96", "head_dim");
  check_refused(table + "seqlen = 5\nmask = \"casual\"", "casual");
  check_refused(table + "seqlen = 5\nmask = 7", "in quotes");
  check_refused(table + "seqlen = 5\nstatic_shape = 1", "true or false");
  check_refused(table + "seqlen = 5\ntensor_parallel = 3", "does not divide");
  check_refused("[[attention-backward]]\nheads = 12\nkv_heads = 4\nseqlen = 5\ntensor_parallel = 6", "neither divides");
  check_refused("[[plan]]", "needs its text");
  check_refused("[[plan]]\ntext = \"attention-backward tile_q=7\"", "list.toml:2");
  check_refused("[[plan]]\ntext = \"\"\nmore = 1", "unknown key 'more'");
  std::string many = "batch = [1";
  for (int i = 2; i < 1100; ++i) many += "," + std::to_string(i);
  many += "]\nseqlen = [1";
  for (int i = 2; i < 1100; ++i) many += "," + std::to_string(i);
  check_refused(table + many + "]", "more than 1000000");
}

TEST_CASE("shape list: letters beyond ASCII in strings and comments, and nowhere else") {
  const std::string table = "[[attention-backward]]\nheads = 1\nseqlen = 64\n";
  CHECK(parse("\xef\xbb\xbfname = \"Mod\u00e8le \u6a21\u578b \U0001f600\"  # \u00e9\n" + table).name ==
        "Mod\u00e8le \u6a21\u578b \U0001f600");
  for (const std::string letter : {"\u00e9", "\ufebf", "\u3042", "\U0001f600"}) {
    const auto bare = parse_shape_list(table + letter + " = 1\n", "list.toml");
    REQUIRE_FALSE(bare);
    CHECK_MESSAGE(bare.error().message.starts_with("list.toml:4: "), bare.error().message);
  }
  for (const char* bytes : {"\xff", "\xc3", "\xed\xa0\x80", "\xf5\x80\x80\x80"}) {
    const auto broken = parse_shape_list(table + "# " + bytes, "list.toml");
    REQUIRE_FALSE(broken);
    CHECK(broken.error().message == "list.toml:4: not UTF-8");
  }
}

TEST_CASE("shape list: files") {
  const test::Folder folder;
  const Result<ShapeList> absent = read_shape_list(folder.file("absent.toml"));
  REQUIRE_FALSE(absent);
  CHECK(absent.error().code == ErrorCode::io);
  CHECK(absent.error().message.find("absent.toml") != std::string::npos);
  CHECK_FALSE(read_shape_list(folder.path().string()));
  std::ofstream(folder.file("list.toml")) << "[[attention-backward]]\nheads = 1\nseqlen = 5\n";
  const Result<ShapeList> list = read_shape_list(folder.file("list.toml"));
  REQUIRE(list);
  CHECK(list->problems.size() == 1);
}

}  // namespace ordo
