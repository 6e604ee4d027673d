#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <thread>

#include "ordo/ordo.h"

extern "C" int ordo_c_header_test(void);  // c_header_test.c

namespace {

ordo_engine* make_engine() {
  ordo_engine_options options{};
  options.struct_size = sizeof(options);
  options.memory_cache_only = 1;
  options.target = "h200";
  ordo_engine* engine = nullptr;
  REQUIRE(ordo_engine_create(&options, &engine) == ORDO_OK);
  REQUIRE(engine != nullptr);
  return engine;
}

ordo_attention_backward make_problem() {
  ordo_attention_backward problem{};
  problem.struct_size = sizeof(problem);
  problem.batch = 2, problem.seqlen_q = problem.seqlen_k = 1024, problem.heads = 8, problem.kv_heads = 2;
  problem.head_dim = 64;
  problem.mask = "causal";
  return problem;
}

bool message_has(const char* text) { return std::strstr(ordo_last_error(), text) != nullptr; }

}  // namespace

TEST_CASE("C: the header compiles as C and the structures have the same size there") { CHECK(ordo_c_header_test() == 0); }

TEST_CASE("C: a plan from a problem, its text, and back") {
  CHECK(ordo_abi_version() == ORDO_ABI_VERSION);
  CHECK(std::string(ordo_version()).find('.') != std::string::npos);
  ordo_engine* engine = make_engine();
  const ordo_attention_backward problem = make_problem();
  ordo_plan_request request{};
  request.struct_size = sizeof(request);
  request.accumulate = "exact";
  ordo_plan* plan = nullptr;
  REQUIRE(ordo_plan_create(engine, &problem, &request, &plan) == ORDO_OK);
  const std::string text = ordo_plan_text(plan);
  CHECK(text.find("accumulate=exact") != std::string::npos);
  CHECK(text.find("mask=causal") != std::string::npos);
  CHECK(text.find("dtype=bf16") != std::string::npos);
  CHECK(text.find("group=4") != std::string::npos);
  CHECK(std::strlen(ordo_plan_reason(plan)) > 0);
  CHECK(ordo_plan_predicted_ms(plan) > 0);
  ordo_plan* read = nullptr;
  REQUIRE(ordo_plan_parse(text.c_str(), &read) == ORDO_OK);
  CHECK(ordo_plan_text(read) == text);
  CHECK(std::string(ordo_plan_reason(read)).empty());
  ordo_plan_destroy(plan);
  ordo_plan_destroy(read);
  ordo_engine_destroy(engine);
}

TEST_CASE("C: an older caller's shorter structure is taken, a wrong size is not") {
  ordo_engine* engine = make_engine();
  ordo_attention_backward problem = make_problem();
  problem.struct_size = offsetof(ordo_attention_backward, mask);  // knows neither mask nor dtype: both default
  ordo_plan* plan = nullptr;
  REQUIRE(ordo_plan_create(engine, &problem, nullptr, &plan) == ORDO_OK);
  CHECK(std::string(ordo_plan_text(plan)).find("mask=full") != std::string::npos);
  ordo_plan_destroy(plan);
  problem.struct_size = 0;
  CHECK(ordo_plan_create(engine, &problem, nullptr, &plan) == ORDO_INVALID_ARGUMENT);
  CHECK(plan == nullptr);
  CHECK(message_has("ordo_attention_backward.struct_size is 0"));
  ordo_engine_destroy(engine);
}

TEST_CASE("C: bad arguments get a status and a message") {
  CHECK(ordo_engine_create(nullptr, nullptr) == ORDO_INVALID_ARGUMENT);
  CHECK(message_has("out is NULL"));
  ordo_engine* engine = make_engine();
  ordo_plan* plan = nullptr;
  CHECK(ordo_plan_create(engine, nullptr, nullptr, &plan) == ORDO_INVALID_ARGUMENT);
  ordo_attention_backward problem = make_problem();
  CHECK(ordo_plan_create(nullptr, &problem, nullptr, &plan) == ORDO_INVALID_ARGUMENT);
  problem.head_dim = 80;
  CHECK(ordo_plan_create(engine, &problem, nullptr, &plan) == ORDO_INVALID_PROBLEM);
  CHECK(message_has("80"));
  problem = make_problem();
  problem.mask = "sideways";
  CHECK(ordo_plan_create(engine, &problem, nullptr, &plan) != ORDO_OK);
  CHECK(message_has("sideways"));
  problem.mask = "full", problem.dtype = "fp8";
  CHECK(ordo_plan_create(engine, &problem, nullptr, &plan) != ORDO_OK);
  CHECK(message_has("fp8"));
  problem = make_problem();
  ordo_plan_request request{};
  request.struct_size = sizeof(request);
  request.schedule = "sorted";
  CHECK(ordo_plan_create(engine, &problem, &request, &plan) != ORDO_OK);
  CHECK(message_has("sorted"));
  CHECK(ordo_plan_parse("attention-backward tile_q=7", &plan) == ORDO_INVALID_PLAN);
  CHECK(ordo_plan_parse(nullptr, &plan) == ORDO_INVALID_ARGUMENT);
  ordo_kernel* kernel = nullptr;
  CHECK(ordo_kernel_prepare(engine, nullptr, &kernel) == ORDO_INVALID_ARGUMENT);
  size_t bytes = 1;
  CHECK(ordo_kernel_workspace_bytes(nullptr, &problem, &bytes) == ORDO_INVALID_ARGUMENT);
  CHECK(ordo_kernel_launch(nullptr, &problem, nullptr, nullptr, 0, nullptr) == ORDO_INVALID_ARGUMENT);
  ordo_engine_options options{};
  options.struct_size = sizeof(options);
  options.target = "abacus";
  ordo_engine* none = nullptr;
  CHECK(ordo_engine_create(&options, &none) != ORDO_OK);
  CHECK(none == nullptr);
  CHECK(message_has("abacus"));
  ordo_engine_destroy(engine);
  ordo_engine_destroy(nullptr);
  ordo_plan_destroy(nullptr);
  ordo_kernel_destroy(nullptr);
  CHECK(std::string(ordo_plan_text(nullptr)).empty());
}

TEST_CASE("C: messages belong to their thread") {
  CHECK(ordo_plan_parse("nonsense", nullptr) == ORDO_INVALID_ARGUMENT);
  const std::string mine = ordo_last_error();
  std::string theirs = "unset";
  std::thread([&] { theirs = ordo_last_error(); }).join();
  CHECK(theirs.empty());
  CHECK(ordo_last_error() == mine);
}

TEST_CASE("C: every status has a name") {
  for (int status = ORDO_OK; status <= ORDO_OUT_OF_MEMORY; ++status)
    CHECK(std::string(ordo_status_name(static_cast<ordo_status>(status))) != "unknown");
}
