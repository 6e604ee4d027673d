#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ordo/ordo.h"
#include "runtime/compiler.hpp"
#include "runtime/driver.hpp"
#include "tests/unit/scratch.hpp"

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
  problem.struct_size = 5000;  // never set, say
  CHECK(ordo_plan_create(engine, &problem, nullptr, &plan) == ORDO_INVALID_ARGUMENT);
  CHECK(message_has("set it to sizeof(ordo_attention_backward)"));
  ordo_engine_destroy(engine);
}

TEST_CASE("C: a newer caller's longer structure is taken while what this library does not know is zero") {
  ordo_engine* engine = make_engine();
  struct {
    ordo_attention_backward known;
    std::int64_t later;
  } problem{make_problem(), 0};
  static_assert(offsetof(decltype(problem), later) == sizeof(ordo_attention_backward));
  problem.known.struct_size = sizeof(problem);
  ordo_plan* plan = nullptr;
  CHECK(ordo_plan_create(engine, &problem.known, nullptr, &plan) == ORDO_OK);
  ordo_plan_destroy(plan);
  plan = nullptr;
  problem.later = std::int64_t{1} << 56;  // the last byte
  CHECK(ordo_plan_create(engine, &problem.known, nullptr, &plan) == ORDO_INVALID_ARGUMENT);
  CHECK(plan == nullptr);
  CHECK(message_has("the caller was built with a later ordo.h"));

  // What is filled in need not be zero before, and the fields that are not known are zero afterwards.
  struct {
    ordo_cache_counters known;
    std::int64_t later, beyond;
  } counters{};
  std::memset(&counters, 0xff, sizeof(counters));
  counters.known.struct_size = offsetof(decltype(counters), beyond);
  REQUIRE(ordo_engine_counters(engine, &counters.known) == ORDO_OK);
  CHECK(counters.known.misses == 0);
  CHECK(counters.later == 0);
  CHECK(counters.beyond == -1);
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

TEST_CASE("C: a query ranks plans, and the runners-up are plans of their own") {
  ordo_engine* engine = make_engine();
  const ordo_attention_backward problem = make_problem();
  ordo_plan* best = nullptr;
  REQUIRE(ordo_plan_query(engine, &problem, nullptr, &best) == ORDO_OK);
  CHECK(std::string(ordo_plan_source(best)) == "predicted");  // nothing was measured
  CHECK(ordo_plan_ms(best) > 0);
  CHECK(std::string(ordo_plan_text(best)).find("accumulate=ordered") != std::string::npos);
  REQUIRE(ordo_plan_runners_up(best) > 2);
  std::set<std::string> texts{ordo_plan_text(best)};
  double before = 0;
  for (size_t i = 0; i < ordo_plan_runners_up(best); ++i) {
    ordo_plan* next = nullptr;
    REQUIRE(ordo_plan_runner_up(best, i, &next) == ORDO_OK);
    CHECK(texts.insert(ordo_plan_text(next)).second);
    CHECK(ordo_plan_ms(next) >= before);
    before = ordo_plan_ms(next);
    CHECK(ordo_plan_runners_up(next) == 0);
    ordo_plan_destroy(next);
  }
  ordo_plan* none = best;
  CHECK(ordo_plan_runner_up(best, ordo_plan_runners_up(best), &none) == ORDO_INVALID_ARGUMENT);
  CHECK(none == nullptr);
  CHECK(message_has("runners-up"));
  CHECK(ordo_plan_query(nullptr, &problem, nullptr, &none) == ORDO_INVALID_ARGUMENT);
  CHECK(ordo_plan_query(engine, nullptr, nullptr, &none) == ORDO_INVALID_ARGUMENT);
  ordo_plan_destroy(best);
  ordo_engine_destroy(engine);
}

TEST_CASE("C: without a GPU a tuning says so") {
  if (ordo::driver().ok()) return;
  ordo_engine* engine = make_engine();
  const ordo_attention_backward problem = make_problem();
  ordo_plan* plan = nullptr;
  CHECK(ordo_plan_tune(engine, &problem, nullptr, nullptr, nullptr, &plan) == ORDO_NO_DEVICE);
  CHECK(plan == nullptr);
  ordo_engine_destroy(engine);
}

TEST_CASE("C: a list is prepared with progress, then a sealed engine finds it and nothing else") {
  if (!ordo::Compiler::open()) return;
  const ordo::test::Folder folder;
  std::ofstream(folder.file("list.toml")) << R"(
[[attention-backward]]
heads = 8
kv_heads = 2
head_dim = 64
batch = 2
seqlen = 1024
mask = "causal"
)";
  const std::string cache = folder.file("cache.db"), manifest = folder.file("seen.toml"), list = folder.file("list.toml");
  ordo_engine_options options{};
  options.struct_size = sizeof(options);
  options.cache_path = cache.c_str();
  options.target = "h200";
  options.manifest_path = manifest.c_str();
  options.cache_limit_bytes = -1;
  options.compile_jobs = 2;
  ordo_engine* engine = nullptr;
  REQUIRE(ordo_engine_create(&options, &engine) == ORDO_OK);

  std::vector<std::string> seen;
  const auto note = [](const char* doing, double share, void* data) {
    CHECK(share == 1);
    static_cast<std::vector<std::string>*>(data)->push_back(doing);
    return 0;
  };
  ordo_prepare_report report{};
  CHECK(ordo_engine_prepare_list(engine, list.c_str(), note, &seen, &report) == ORDO_INVALID_ARGUMENT);
  CHECK(message_has("ordo_prepare_report.struct_size is 0"));
  report.struct_size = sizeof(report);
  REQUIRE(ordo_engine_prepare_list(engine, list.c_str(), note, &seen, &report) == ORDO_OK);
  CHECK(seen == std::vector<std::string>{"1 of 1"});
  CHECK(report.plans == 1);
  CHECK(report.kernels == report.compiled);
  CHECK(report.loaded == 0);
  CHECK(ordo_engine_prepare_list(engine, folder.file("absent.toml").c_str(), nullptr, nullptr, nullptr) == ORDO_IO);
  CHECK(std::filesystem::exists(manifest));

  CHECK(ordo_engine_sealed(engine) == 0);
  ordo_engine_seal(engine);
  CHECK(ordo_engine_sealed(engine) == 1);
  ordo_attention_backward problem = make_problem();
  ordo_kernel* kernel = nullptr;
  REQUIRE(ordo_kernel_prepare_for(engine, &problem, nullptr, &kernel) == ORDO_OK);
  CHECK(std::string(ordo_kernel_plan_text(kernel)).find("mask=causal") != std::string::npos);
  ordo_kernel_destroy(kernel);
  problem.mask = "full";
  CHECK(ordo_kernel_prepare_for(engine, &problem, nullptr, &kernel) == ORDO_NOT_PREPARED);
  CHECK(kernel == nullptr);
  CHECK(message_has("mask=full"));

  ordo_cache_counters counters{};
  counters.struct_size = sizeof(counters);
  REQUIRE(ordo_engine_counters(engine, &counters) == ORDO_OK);
  CHECK(counters.compiles == report.compiled);
  CHECK(counters.compile_seconds > 0);
  counters = {};
  counters.struct_size = offsetof(ordo_cache_counters, compiles);  // a caller that knows less gets no more
  REQUIRE(ordo_engine_counters(engine, &counters) == ORDO_OK);
  CHECK(counters.misses == report.compiled);
  CHECK(counters.compiles == 0);
  ordo_engine_destroy(engine);

  // Another engine reads the file as a finished layer, and writes none of its own.
  options.cache_path = nullptr, options.manifest_path = nullptr;
  options.cache_layers = cache.c_str();
  const ordo::test::Environment own("ORDO_CACHE", folder.file("own.db").c_str());
  REQUIRE(ordo_engine_create(&options, &engine) == ORDO_OK);
  problem = make_problem();
  REQUIRE(ordo_kernel_prepare_for(engine, &problem, nullptr, &kernel) == ORDO_OK);
  counters.struct_size = sizeof(counters);
  REQUIRE(ordo_engine_counters(engine, &counters) == ORDO_OK);
  CHECK(counters.shipped_hits == report.kernels);
  CHECK(counters.compiles == 0);
  CHECK_FALSE(std::filesystem::exists(folder.file("own.db")));
  ordo_kernel_destroy(kernel);
  const auto stop = [](const char*, double, void*) { return 1; };
  std::ofstream(list)
      << "[[attention-backward]]\nheads = 8\nhead_dim = [64, 128]\nseqlen = [512, 1024, 2048, 4096, 8192]\nmask = "
         "[\"causal\", \"full\"]\n";  // more than the compiles that are under way when the first ends
  CHECK(ordo_engine_prepare_list(engine, list.c_str(), stop, nullptr, nullptr) == ORDO_CANCELLED);
  ordo_engine_destroy(engine);

  options.lock_file = "/nonexistent/lock.json";
  CHECK(ordo_engine_create(&options, &engine) == ORDO_IO);
  CHECK(message_has("/nonexistent/lock.json"));
}

TEST_CASE("C: every function refuses NULL and says what is missing") {
  ordo_prepare_report report{};
  CHECK(ordo_engine_prepare_list(nullptr, "list.toml", nullptr, nullptr, &report) == ORDO_INVALID_ARGUMENT);
  CHECK(message_has("engine is NULL"));
  ordo_engine* engine = make_engine();
  CHECK(ordo_engine_prepare_list(engine, nullptr, nullptr, nullptr, nullptr) == ORDO_INVALID_ARGUMENT);
  CHECK(message_has("path is NULL"));
  CHECK(ordo_engine_counters(engine, nullptr) == ORDO_INVALID_ARGUMENT);
  CHECK(ordo_engine_counters(nullptr, nullptr) == ORDO_INVALID_ARGUMENT);
  CHECK(ordo_kernel_load(nullptr, nullptr) == ORDO_INVALID_ARGUMENT);
  ordo_engine_destroy(engine);
  ordo_engine_seal(nullptr);
  CHECK(ordo_engine_sealed(nullptr) == 0);
  CHECK(std::string(ordo_kernel_plan_text(nullptr)).empty());
  CHECK(std::string(ordo_plan_source(nullptr)).empty());
  CHECK(ordo_plan_ms(nullptr) == 0);
  CHECK(ordo_plan_runners_up(nullptr) == 0);
}

TEST_CASE("C: an overlapped product is planned from its text") {
  ordo_engine* engine = make_engine();
  ordo_overlap_plan* plan = nullptr;
  REQUIRE(ordo_overlap_plan_create(engine, "overlap-gemm op=all-gather-gemm m=8192 n=8192 k=8192 ranks=2", 1, &plan) == ORDO_OK);
  CHECK(std::string(ordo_overlap_plan_text(plan)).find("op=all-gather-gemm") != std::string::npos);
  CHECK(std::strlen(ordo_overlap_plan_reason(plan)) > 0);
  CHECK(ordo_overlap_plan_overlaps(plan) == 1);
  CHECK(ordo_overlap_plan_predicted_ms(plan) > 0);
  ordo_overlap_plan_destroy(plan);
  CHECK(ordo_overlap_plan_create(engine, "overlap-gemm op=all-gather-gemm m=0 n=8 k=8 ranks=2", 1, &plan) ==
        ORDO_INVALID_PROBLEM);
  CHECK(plan == nullptr);
  CHECK(ordo_overlap_plan_create(engine, nullptr, 1, &plan) == ORDO_INVALID_ARGUMENT);
  CHECK(message_has("problem is NULL"));
  CHECK(ordo_overlap_plan_create(nullptr, "overlap-gemm", 1, &plan) == ORDO_INVALID_ARGUMENT);
  ordo_engine_destroy(engine);
}

TEST_CASE("C: a communicator's bad options are said") {
  ordo_communicator* group = nullptr;
  CHECK(ordo_communicator_create(nullptr, &group) == ORDO_INVALID_ARGUMENT);
  ordo_communicator_options options{};
  options.struct_size = sizeof options;
  options.timeout_ms = -1;
  CHECK(ordo_communicator_create(&options, &group) == ORDO_INVALID_ARGUMENT);
  CHECK(message_has("timeout_ms"));
  options.timeout_ms = 100;
  options.transport = "pigeon";
  CHECK(ordo_communicator_create(&options, &group) == ORDO_INVALID_ARGUMENT);
  CHECK(message_has("pigeon"));
  options.transport = nullptr;
  options.address = "nowhere";
  options.ranks = 2;
  CHECK(ordo_communicator_create(&options, &group) == ORDO_INVALID_ARGUMENT);
  CHECK(message_has("nowhere"));
  CHECK(group == nullptr);
  CHECK(ordo_communicator_status(nullptr) == ORDO_INVALID_ARGUMENT);
  CHECK(ordo_communicator_barrier(nullptr) == ORDO_INVALID_ARGUMENT);
  CHECK(ordo_communicator_rank(nullptr) == -1);
  CHECK(std::string(ordo_communicator_transport(nullptr)).empty());
  ordo_communicator_destroy(nullptr);
  ordo_engine* engine = make_engine();
  ordo_overlapped_gemm* product = nullptr;
  CHECK(ordo_overlapped_gemm_create(nullptr, engine, "overlap-gemm", nullptr, &product) == ORDO_INVALID_ARGUMENT);
  CHECK(message_has("communicator is NULL"));
  ordo_matrix matrix{};
  CHECK(ordo_overlapped_gemm_output(nullptr, &matrix) == ORDO_INVALID_ARGUMENT);
  CHECK(ordo_overlapped_gemm_launch(nullptr, nullptr, nullptr) == ORDO_INVALID_ARGUMENT);
  CHECK(ordo_overlapped_gemm_a_stride(nullptr) == 0);
  ordo_overlapped_gemm_destroy(nullptr);
  ordo_engine_destroy(engine);
}
