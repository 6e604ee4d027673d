// Problem: canonical text, rules, and the shared key=value reader.
#include "ordo/problem.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>

using namespace ordo;

namespace {

AttentionBackward sample() {
  AttentionBackward problem;
  problem.batch = 2;
  problem.seqlen_q = 1000;
  problem.seqlen_k = 4096;
  problem.heads = 32;
  problem.kv_heads = 8;
  problem.mask = Mask::causal;
  problem.dtype = DType::fp16;
  return problem;
}

void check_refused(const AttentionBackward& problem, const std::string& expected) {
  const auto valid = problem.validate();
  REQUIRE_FALSE(valid);
  CHECK(valid.error().code == ErrorCode::invalid_problem);
  CAPTURE(valid.error().message);
  CHECK(valid.error().message.find(expected) != std::string::npos);
}

void check_unreadable(const std::string& text, const std::string& expected) {
  CAPTURE(text);
  const auto problem = parse_problem(text);
  REQUIRE_FALSE(problem);
  CHECK(problem.error().code == ErrorCode::invalid_problem);
  CAPTURE(problem.error().message);
  CHECK(problem.error().message.find(expected) != std::string::npos);
}

}  // namespace

TEST_CASE("problem: text round-trips") {
  const AttentionBackward problem = sample();
  CHECK(to_text(problem) ==
        "attention-backward batch=2 seqlen_q=1000 seqlen_k=4096 heads=32 kv_heads=8 head_dim=128 mask=causal dtype=fp16");
  const auto read = parse_problem(to_text(problem));
  REQUIRE(read);
  CHECK(*read == problem);
}

TEST_CASE("problem: keys come in any order, with any white space, and have defaults") {
  const auto read = parse_problem("  attention-backward\tseqlen_k=7 \r\n seqlen_q=5\n");
  REQUIRE(read);
  CHECK(read->seqlen_q == 5);
  CHECK(read->seqlen_k == 7);
  CHECK(read->batch == 1);
  CHECK(read->mask == Mask::full);
}

TEST_CASE("problem: texts that are refused") {
  const std::string sizes = " seqlen_q=5 seqlen_k=7";
  check_unreadable("", "begins with \"\"");
  check_unreadable("gemm m=1", "\"gemm\"");
  check_unreadable("attention-backward", "seqlen_q is 0");
  check_unreadable("attention-backward" + sizes + " seqlen_q=5", "seqlen_q appears twice");
  check_unreadable("attention-backward" + sizes + " window=3", "no key \"window\"");
  check_unreadable("attention-backward" + sizes + " causal", "not key=value");
  check_unreadable("attention-backward" + sizes + " =3", "no key \"\"");
  check_unreadable("attention-backward" + sizes + " batch=", "batch=\"\" is not a whole number");
  check_unreadable("attention-backward" + sizes + " batch=2x", "not a whole number");
  check_unreadable("attention-backward" + sizes + " batch=+2", "not a whole number");
  check_unreadable("attention-backward" + sizes + " batch=0x10", "not a whole number");
  check_unreadable("attention-backward" + sizes + " batch=1e3", "not a whole number");
  check_unreadable("attention-backward" + sizes + " batch=9223372036854775808", "out of range");
  check_unreadable("attention-backward" + sizes + " batch=99999999999999999999999999", "out of range");
  check_unreadable("attention-backward" + sizes + " batch=-1", "batch is -1");
  check_unreadable("attention-backward" + sizes + " mask=windowed", "full, causal");
  check_unreadable("attention-backward" + sizes + " mask=Causal", "full, causal");
  check_unreadable("attention-backward" + sizes + " dtype=fp32", "bf16, fp16");
  check_unreadable("attention-backward" + sizes + " batch==1", "not a whole number");
}

TEST_CASE("problem: a hostile text is quoted short and printable") {
  const std::string hostile = "attention-backward seqlen_q=" + std::string(100000, '\x01');
  const auto problem = parse_problem(hostile);
  REQUIRE_FALSE(problem);
  CHECK(problem.error().message.size() < 300);
  CHECK(problem.error().message.find('\x01') == std::string::npos);
}

TEST_CASE("problem, reports 61, 64 and 67: rules") {
  CHECK(sample().validate());
  AttentionBackward problem = sample();
  const auto with = [&](auto member, std::int64_t value) {
    AttentionBackward changed = sample();
    changed.*member = value;
    return changed;
  };
  for (const std::int64_t bad :
       {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min(),
        (std::int64_t{1} << 31) - (std::int64_t{1} << 16) + 1, std::numeric_limits<std::int64_t>::max()}) {
    check_refused(with(&AttentionBackward::batch, bad), "batch is");
    check_refused(with(&AttentionBackward::seqlen_q, bad), "seqlen_q is");
    check_refused(with(&AttentionBackward::seqlen_k, bad), "seqlen_k is");
    check_refused(with(&AttentionBackward::heads, bad), "heads is");
    check_refused(with(&AttentionBackward::kv_heads, bad), "kv_heads is");
  }
  check_refused(with(&AttentionBackward::kv_heads, 5), "kv_heads must divide heads");
  check_refused(with(&AttentionBackward::kv_heads, 64), "kv_heads must divide heads");
  check_refused(with(&AttentionBackward::head_dim, 80), "head_dim is 80");
  check_refused(with(&AttentionBackward::head_dim, 256), "head_dim is 256");
  problem.dtype = static_cast<DType>(9);
  check_refused(problem, "dtype");
}

TEST_CASE("problem, report 66: element counts stay within 2^62") {
  AttentionBackward problem;
  problem.batch = std::int64_t{1} << 25;
  problem.seqlen_q = std::int64_t{1} << 30;
  problem.seqlen_k = 1;
  CHECK(problem.validate());  // exactly 2^62
  problem.batch += 1;
  check_refused(problem, "seqlen_q*head_dim");
  std::swap(problem.seqlen_q, problem.seqlen_k);
  check_refused(problem, "seqlen_k*head_dim");
  problem.batch = problem.heads = problem.kv_heads = std::int64_t{1} << 30;  // the product overflows 64 bits
  check_refused(problem, "2^62");
}

TEST_CASE("problem: flops are the field's convention") {
  AttentionBackward problem;
  problem.batch = 1;
  problem.heads = problem.kv_heads = 16;
  problem.seqlen_q = problem.seqlen_k = 16384;
  CHECK(problem.flops() == doctest::Approx(10.0 * 16 * 16384.0 * 16384.0 * 128));
  problem.mask = Mask::causal;
  CHECK(problem.flops() == doctest::Approx(5.0 * 16 * 16384.0 * 16384.0 * 128));
}

TEST_CASE("error codes have distinct names") {
  CHECK(to_string(ErrorCode::invalid_problem) == "invalid_problem");
  CHECK(to_string(ErrorCode::internal) == "internal");
  for (int a = 0; a <= static_cast<int>(ErrorCode::internal); ++a) {
    CHECK(to_string(static_cast<ErrorCode>(a)) != "unknown");
    for (int b = 0; b < a; ++b) CHECK(to_string(static_cast<ErrorCode>(a)) != to_string(static_cast<ErrorCode>(b)));
  }
}
