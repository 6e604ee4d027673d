#include "ordo/target.hpp"

#include <doctest/doctest.h>

#include <string>

#include "codegen/hash/sha256.hpp"

using namespace ordo;

TEST_CASE("target: names round-trip") {
  for (const char* name : {"h100", "h200", "h800", "h20"}) {
    const auto target = parse_target(name);
    REQUIRE(target);
    CHECK(to_text(*target) == name);
    CHECK(target->arch == "sm_90a");
    CHECK(target->shared_bytes_per_block == 232448);
  }
  CHECK(parse_target("h20")->sm_count == 78);
  CHECK(parse_target("h200")->sm_count == 132);
  CHECK(*parse_target("h200") == Target{});
}

TEST_CASE("target: sm_90a:SMS") {
  const auto target = parse_target("sm_90a:114");
  REQUIRE(target);
  CHECK(target->sm_count == 114);
  CHECK(target->name == "sm_90a");
  CHECK(target->tensor_tflops == doctest::Approx(989.0 * 114 / 132));
  CHECK(to_text(*target) == "sm_90a:114");
  CHECK(*parse_target(to_text(*target)) == *target);
  CHECK(parse_target("sm_90a:1"));
  CHECK(parse_target("sm_90a:1024"));
}

TEST_CASE("target: a device with other SMs than its name's card keeps its count in the text") {
  Target target = *parse_target("h200");
  target.sm_count = 66;  // a MIG slice, say
  CHECK(parse_target(to_text(target))->sm_count == 66);
}

TEST_CASE("target: what is refused says what exists") {
  for (const char* text : {"", "H200", "h300", "b200", "sm_90a", "sm_90a:", "sm_90a:0", "sm_90a:1025", "sm_90a:-4", "sm_90a:12x",
                           "sm_100a:148", ":132", "sm_90a:99999999999999999999"}) {
    CAPTURE(text);
    const auto target = parse_target(text);
    REQUIRE_FALSE(target);
    CHECK(target.error().code == ErrorCode::invalid_argument);
    CHECK(target.error().message.find("sm_90a:SMS") != std::string::npos);
  }
}

TEST_CASE("sha256: known answers") {
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_hex(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}
