// The command as a user meets it: the real binary, its exit codes, its standard output and its messages.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "cli/layer_file.hpp"
#include "cli/progress.hpp"
#include "cli/report.hpp"
#include "runtime/io/safetensors.hpp"
#include "runtime/measure/nvml.hpp"
#include "tests/unit/command.hpp"

namespace {

using namespace ordo;
using namespace ordo::test;
using Folder = CommandFolder;

io::Tensor tensor(const std::string& dtype, std::vector<std::int64_t> shape) {
  std::int64_t bytes = dtype == "F32" ? 4 : 2;
  for (const std::int64_t size : shape) bytes *= size;
  return {dtype, std::move(shape), std::vector<std::byte>(static_cast<std::size_t>(bytes))};
}

// q, k, v, do of zeros: 2 x 10 queries, 2 x 12 keys, 4 and 2 heads.
io::SafeTensors layer() {
  io::SafeTensors content;
  content.tensors["q"] = content.tensors["do"] = tensor("BF16", {2, 10, 4, 64});
  content.tensors["k"] = content.tensors["v"] = tensor("BF16", {2, 12, 2, 64});
  return content;
}

std::string contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos ? part : "not in: " + text;
}

}  // namespace

TEST_CASE("cli: help has an example for every verb") {
  const Folder folder;
  CHECK(ordo_command(folder, "--help").code == 0);
  CHECK(ordo_command(folder, "--version").out.starts_with("ordo "));
  for (const std::string verb : {"doctor", "plan", "generate", "compile", "run", "check", "bench", "inspect", "simulate", "tune",
                                 "query", "tuning", "precompile", "cache", "manifest", "explain-miss"}) {
    const Outcome help = ordo_command(folder, verb + " --help");
    CHECK(help.code == 0);
    CHECK(help.err.empty());
    CHECK(help.out.find("Example") != std::string::npos);
    CHECK(contains(help.out, ":\n  ordo " + verb) == ":\n  ordo " + verb);
  }
}

TEST_CASE("cli: query, export, hash and diff without a GPU") {
  const Folder folder;
  const std::string cache = " --cache " + folder.file("tuning.db") + " --device cpu --target h200";
  const std::string shape = " --seqlen 2048 --heads 16 --mask causal";
  const Json best = json_of(ordo_command(folder, "query attention-backward --json" + shape + cache));
  CHECK(best["source"] == "predicted");
  CHECK(best["plan"] == json_of(ordo_command(folder, "plan attention-backward --json --target h200" + shape))["plan"]);
  CHECK(best["ranking"].size() > 1);
  const Outcome table_of_plans = ordo_command(folder, "query attention-backward" + shape + cache);
  CHECK(contains(table_of_plans.out, " head_group ") == " head_group ");
  CHECK(contains(table_of_plans.out, " group ") != " group ");

  const std::string table = folder.file("plans.json");
  REQUIRE(ordo_command(folder, "tuning export -o " + table + shape + cache).code == 0);
  const Json exported = Json::parse(std::ifstream(table));
  CHECK(exported["decisions"].size() == 1);
  CHECK(exported["decisions"][0]["plan"] == best["plan"]);
  const Json hash = json_of(ordo_command(folder, "tuning hash --json " + table + cache));
  CHECK(hash["hash"] == exported["hash"]);
  CHECK(ordo_command(folder, "tuning diff " + table + " " + table).code == 0);
  REQUIRE(ordo_command(folder, "tuning export -o " + folder.file("other.json") + " --seqlen 2048 --heads 8" + cache).code == 0);
  const Outcome differ = ordo_command(folder, "tuning diff " + table + " " + folder.file("other.json"));
  CHECK(differ.code == 1);
  CHECK(differ.out.find("only in the first") != std::string::npos);
  CHECK(ordo_command(folder, "tuning import " + table + cache).code == 0);
  const Outcome list = ordo_command(folder, "bench --suite --list --cells hd128-causal-512 --accumulate ordered --target h200");
  CHECK(list.code == 0);
  CHECK(list.out.find("hd128-causal-512  attention-backward") == 0);
  const Outcome candidates =
      ordo_command(folder, "bench --suite --list --plans candidates --cells hd128-causal-512 --accumulate ordered --target h200");
  CHECK(candidates.code == 0);
  CHECK(candidates.out.size() > 4 * list.out.size());
}

TEST_CASE("cli: plan, and back through --plan as text and as file") {
  const Folder folder;
  const std::string shape =
      " attention-backward --batch 2 --seqlen-q 1000 --seqlen-k 3000 --heads 8 --kv-heads 2 --head-dim 64 --mask causal --dtype "
      "fp16 --target h100";
  const Json plan = json_of(ordo_command(folder, "plan --json" + shape));
  for (const char* key : {"schedule", "accumulate", "tile_q", "tile_kv", "predicted_registers", "predicted_ms", "reason",
                          "candidates", "plan", "fingerprint"}) {
    CAPTURE(key);
    CHECK(plan.contains(key));
  }
  CHECK(plan["accumulate"] == "ordered");
  CHECK(plan["candidates"].size() >= 2);
  CHECK(plan["candidates"][0]["plan"] == plan["plan"]);
  CHECK(plan["target"] == "h100");

  const Outcome text = ordo_command(folder, "plan" + shape);
  CHECK(text.out.starts_with(plan["plan"].get<std::string>() + "\n"));
  write_file(folder.file("a.plan"), text.out);
  auto from_file = words("plan --json" + shape + " --plan " + folder.file("a.plan"));
  CHECK(json_of(ordo_command(folder, from_file))["plan"] == plan["plan"]);
  auto from_text = words("plan --json --seqlen-q 1000 --seqlen-k 3000 attention-backward --plan");
  from_text.push_back(plan["plan"]);  // dtype, mask and heads come from the plan
  const Json back = json_of(ordo_command(folder, from_text));
  CHECK(back["plan"] == plan["plan"]);
  CHECK(back["problem"] ==
        "attention-backward batch=1 seqlen_q=1000 seqlen_k=3000 heads=4 kv_heads=1 head_dim=64 mask=causal dtype=fp16");

  CHECK(json_of(ordo_command(
            folder, "plan attention-backward --json --schedule shift --accumulate exact --target sm_90a:78"))["schedule"] ==
        "shift");
}

TEST_CASE("cli: generate") {
  const Folder folder;
  const std::string path = folder.file("k.cu");
  const Outcome written = ordo_command(folder, "generate attention-backward --target h200 -o " + path);
  CHECK(written.code == 0);
  const std::string text = slurp(path);
  CHECK(contains(text, "__global__") == "__global__");
  CHECK(text.find("#include") == std::string::npos);
  CHECK(ordo_command(folder, "generate attention-backward --target h200").out == text);
  const Json all = json_of(
      ordo_command(folder, "generate attention-backward --accumulate exact --kernel all --json -o " + folder.file("all")));
  CHECK(all["files"].size() >= 2);
  for (const Json& file : all["files"]) CHECK(fs::file_size(file["path"].get<std::string>()) > 1000);
  CHECK(contains(ordo_command(folder, "generate attention-backward --kernel preprocess").out, "ordo_preprocess") ==
        "ordo_preprocess");
}

TEST_CASE("cli: check on the CPU") {
  const Folder folder;
  for (const char* accumulate : {"ordered", "exact"}) {
    const Json json =
        json_of(ordo_command(folder, std::string("check attention-backward --device cpu --seqlen-q 100 --seqlen-k 257 --heads 4 "
                                                 "--kv-heads 2 --mask causal --repeats 4 --seed 7 --json --accumulate ") +
                                         accumulate));
    CHECK(json["passed"] == true);
    CHECK(json["same_bits"] == true);
    CHECK(json["repeats"] == 4);
    CHECK(json["exact"].is_null() == (accumulate == std::string("ordered")));
    if (!json["exact"].is_null()) {
      CHECK(json["exact"]["probability_sum"].get<double>() == doctest::Approx(1).epsilon(1e-4));
      CHECK(json["exact"]["bound_over_actual"].get<double>() > 1);
    }
    for (const char* name : {"dq", "dk", "dv"}) {
      const double error = json["max_relative_error"][name];
      CHECK(error > 1e-4);  // 16-bit results are never exact
      CHECK(error < 5e-3);
    }
  }
  const Outcome text = ordo_command(folder, "check attention-backward --device cpu --seqlen 64 --threads 1");
  CHECK(text.code == 0);
  CHECK(contains(text.out, "passed\n") == "passed\n");
}

TEST_CASE("cli: run computes what it is not given, and writes gradients with their plan") {
  const Folder folder;
  io::SafeTensors content = layer();
  for (auto& [name, values] : content.tensors) {
    for (std::size_t i = 0; i < values.data.size(); i += 2) {  // bf16 between 1 and 2, or their negatives
      values.data[i] = static_cast<std::byte>(i * 37 % 251);
      values.data[i + 1] = static_cast<std::byte>(i % 7 < 3 ? 0x3f : 0xbf);
    }
  }
  content.tensors["unrelated"] = tensor("I16", {3});
  const std::string in = folder.file("in.safetensors"), out = folder.file("out.safetensors");
  REQUIRE(io::write_safetensors(in, content).ok());
  const std::string command = "run attention-backward --device cpu --no-compile --mask causal --input " + in + " --output " + out;
  const Json json = json_of(ordo_command(folder, command + " --json"));
  CHECK(json["passed"] == true);
  CHECK(json["same_bits"] == true);
  CHECK(json["exact"].is_null());
  const auto gradients = io::read_safetensors(out);
  REQUIRE(gradients.ok());
  CHECK(gradients->metadata.at("plan") == json["plan"].get<std::string>());
  CHECK(gradients->metadata.at("fingerprint") == json["fingerprint"].get<std::string>());
  CHECK(gradients->tensors.at("dq").shape == content.tensors["q"].shape);
  CHECK(gradients->tensors.at("dk").shape == content.tensors["k"].shape);
  CHECK(gradients->tensors.at("dv").dtype == "BF16");

  CHECK(ordo_command(folder, command + " --verify no --threads 1").code == 0);
  const auto again = io::read_safetensors(out);
  REQUIRE(again.ok());
  CHECK(again->tensors.at("dq").data == gradients->tensors.at("dq").data);

  // An LSE that belongs to something else: exact accumulation must not pass it.
  io::Tensor lse = tensor("F32", {2, 4, 10});
  for (std::size_t i = 0; i < lse.data.size(); i += 4) {
    const float wrong = -20;
    std::memcpy(lse.data.data() + i, &wrong, 4);
  }
  content.tensors["lse"] = lse;
  REQUIRE(io::write_safetensors(in, content).ok());
  const Outcome wrong = ordo_command(folder, command + " --accumulate exact");
  CHECK(wrong.code == 1);
  CHECK(contains(wrong.out, "the LSE does not belong") == "the LSE does not belong");
  const Outcome told = ordo_command(folder, command + " --accumulate ordered");
  CHECK(told.code == 0);
  CHECK(contains(told.err, "the lse does not belong") == "the lse does not belong");
}

TEST_CASE("cli: run goes on without NVRTC, compile does not") {
  const Folder folder;
  const std::string in = folder.file("in.safetensors");
  REQUIRE(io::write_safetensors(in, layer()).ok());
  const std::vector<std::string> none = {"ORDO_NVRTC=/nonexistent"};
  const Outcome run =
      ordo_command(folder, words("run attention-backward --device cpu --input " + in + " --output " + folder.file("out")), none);
  CHECK(run.code == 0);
  CHECK(contains(run.err, "without compiled kernels") == "without compiled kernels");
  const Outcome compile = ordo_command(folder, words("compile attention-backward --target h200"), none);
  CHECK(compile.code == 3);
  CHECK(compile.out.empty());
  CHECK(contains(compile.err, "/nonexistent") == "/nonexistent");
  const Outcome doctor = ordo_command(folder, {"doctor", "--json"}, none);
  CHECK(json_of(doctor)["nvrtc"]["ok"] == false);
}

TEST_CASE("cli doctor, report 37: NVRTC's builtins are opened beside it, by path, wherever the loader looks") {
  const Folder folder;
  const Json found = json_of(ordo_command(folder, "doctor --json"))["nvrtc"];
  if (found["ok"] == false) return;
  const fs::path library = found["library"].get<std::string>();
  const Json again =
      json_of(ordo_command(folder, {"doctor", "--json"}, {"ORDO_NVRTC=" + library.string(), "LD_LIBRARY_PATH="}))["nvrtc"];
  REQUIRE(again["ok"] == true);
  const fs::path builtins = again["builtins"].get<std::string>();
  CHECK(builtins.parent_path() == library.parent_path());
  CHECK(builtins.filename().string().starts_with("libnvrtc-builtins.so."));
}

TEST_CASE("cli doctor, reports 35 and 39: what the machine has, with the versions of NVRTC, of the driver and of the build") {
  const Folder folder;
  const Json json = json_of(ordo_command(folder, "doctor --json"));
  CHECK_FALSE(json["ordo"]["version"].get<std::string>().empty());
  CHECK(std::stod(json["ordo"]["cuda_headers"].get<std::string>()) >= 12.8);
  CHECK((json["nvrtc"]["ok"] == false || json["nvrtc"]["version"].get<std::string>().starts_with("NVRTC ")));
  CHECK((json["driver"]["ok"] == false || json["driver"].contains("cuda_version")));
  for (const char* key : {"ordo", "driver", "gpu", "nvrtc", "cache", "sqlite"}) {
    CAPTURE(key);
    CHECK(json[key].contains("ok"));
    CHECK((json[key]["ok"] == true || !json[key]["error"].get<std::string>().empty() || json[key].contains("devices")));
  }
  CHECK(json["sqlite"]["version"].get<std::string>().starts_with("3."));
  CHECK(json["cache"]["path"] == folder.file("cache.db"));
  CHECK_FALSE(fs::exists(folder.file("cache.db")));  // looking makes nothing
  write_file(folder.file("cache.db"), "this is no database, but long enough to be one: " + std::string(4096, 'x'));
  const Outcome broken = ordo_command(folder, "doctor --json");
  CHECK(json_of(broken)["cache"]["ok"] == false);
}

TEST_CASE("cli: compile, then a hit, then inspect") {
  const Folder folder;
  if (json_of(ordo_command(folder, "doctor --json"))["nvrtc"]["ok"] == false) {
    MESSAGE("skipped for lack of NVRTC");
    return;
  }
  const std::string shape = " attention-backward --seqlen 1024 --heads 4 --mask full --target h200 --json";
  const Json miss = json_of(ordo_command(folder, "compile" + shape));
  for (const char* key :
       {"key", "cache", "arch", "launch_registers", "spill_bytes", "stack_bytes", "shared_bytes", "compile_ms", "cubin_sha256"}) {
    CAPTURE(key);
    CHECK(miss.contains(key));
    for (const Json& kernel : miss["kernels"]) CHECK(kernel.contains(key));
  }
  CHECK(miss["cache"] == "miss");
  CHECK(miss["arch"] == "sm_90a");
  CHECK(miss["spill_bytes"] == 0);
  CHECK(miss["compile_ms"].get<double>() > 0);
  CHECK(miss["kernels"].size() >= 2);
  CHECK(miss["kernels"][0]["name"] == "main");
  CHECK(miss["kernels"][0]["key"] == miss["key"]);
  const Json hit = json_of(ordo_command(folder, "compile" + shape));
  CHECK(hit["cache"] == "hit");
  CHECK(hit["cubin_sha256"] == miss["cubin_sha256"]);
  const Json seen = json_of(ordo_command(folder, "inspect" + shape));
  for (const char* key : {"key", "launch_registers", "shared_bytes", "stack_bytes", "cubin_sha256"})
    CHECK(seen[key] == miss[key]);
  const Json by_key = json_of(ordo_command(folder, "inspect --json --key " + miss["key"].get<std::string>().substr(0, 12)));
  CHECK(by_key["key"] == miss["key"]);
  CHECK(json_of(ordo_command(folder, "inspect --json --list"))["kernels"].size() == miss["kernels"].size());
  // Another plan shares some kernels with it but not all: no hit.
  CHECK(json_of(ordo_command(folder, "compile attention-backward --schedule descending --target h200 --json"))["cache"] ==
        "miss");
  CHECK(ordo_command(folder, "inspect attention-backward --dtype fp16 --target h200").code == 3);
  CHECK(ordo_command(folder, "inspect --key ffffffffffffffffffff").code == 2);
}

TEST_CASE("cli: simulate gives the closed forms") {
  const Folder folder;
  const auto makespan = [&](const std::string& line) {
    const Json json = json_of(ordo_command(folder, "simulate --json --compute 5 --reduce 2 " + line));
    for (const char* key : {"makespan", "lower_bound", "stall_total", "critical_path", "proof"}) CHECK(json.contains(key));
    return json["makespan"].get<double>();
  };
  // M N (C + R) + (N - 1) R, M N (C + R), M (N + 1) (C + R) / 2
  CHECK(makespan("--schedule ascending --mask full --kv-tiles 6 --q-tiles 6 --heads 3 --workers 6") == 3 * 6 * 7 + 5 * 2);
  CHECK(makespan("--schedule shift --mask full --kv-tiles 6 --q-tiles 6 --heads 3 --workers 6") == 3 * 6 * 7);
  CHECK(makespan("--schedule symmetric_shift --mask causal --kv-tiles 6 --q-tiles 6 --heads 4 --workers 6") == 4 * 7 * 7 / 2);
  CHECK(makespan("--schedule arrival --mask full --kv-tiles 6 --q-tiles 6 --heads 3 --workers 6") == 3 * 6 * 7);
  CHECK(makespan("--schedule arrival --mask causal --kv-tiles 6 --q-tiles 6 --heads 4 --workers 6") == 4 * 7 * 7 / 2);
  const std::string more =
      "--schedule alternate --mask causal --kv-tiles 6 --q-tiles 6 --heads 4 --kv-heads 2 --workers 6 --handover 1 --unit 3 "
      "--diagonal 6 --staging ";
  CHECK(makespan(more + "0") > 4 * 7 * 7 / 2);
  CHECK(makespan(more + "2") < makespan(more + "0"));  // adds beside the computing
  const std::string svg = folder.file("chart.svg");
  const Outcome chart =
      ordo_command(folder, "simulate --schedule descending --mask causal --kv-tiles 5 --q-tiles 7 --workers 3 --svg " + svg);
  CHECK(chart.code == 0);
  CHECK(contains(slurp(svg), "</svg>") == "</svg>");
  const Outcome apart = ordo_command(folder,
                                     "simulate --schedule ascending --mask causal --kv-tiles 5 --q-tiles 7 --heads 2 "
                                     "--workers 3 --staging 1 --svg " +
                                         svg);
  CHECK(apart.code == 0);
  CHECK(contains(apart.out, "waits to add") == "waits to add");
  CHECK(contains(slurp(svg), ">wait</text>") == ">wait</text>");
}

TEST_CASE("cli: calibrate fits to a CSV, and planning uses it and says so") {
  const Folder folder;
  const std::string shape = "attention-backward --target h200 --json --heads 16 --seqlen 2048";
  const Json before = json_of(ordo_command(folder, "plan " + shape));
  std::string csv = "impl,batch,seqlen,heads,kv_heads,ms_median,plan\n";
  for (const Json& candidate : before["candidates"])
    csv += "ordo,1,2048,16,16," + std::to_string(2 * candidate["predicted_ms"].get<double>()) + ",\"" +
           candidate["plan"].get<std::string>() + "\"\n";
  write_file(folder.file("slow.csv"), csv);
  const Outcome none = ordo_command(folder, "calibrate --target h200 --from " + folder.file("no.csv"));
  CHECK(none.code == 3);
  CHECK(contains(none.err, "no.csv cannot be read") == "no.csv cannot be read");
  const Json fitted = json_of(ordo_command(folder, "calibrate --target h200 --json --from " + folder.file("slow.csv")));
  CHECK(fitted["rows"] == before["candidates"].size());
  CHECK(fitted["constants"]["target"] == "h200");
  CHECK(fitted["file"] == folder.file("config") + "/ordo/cost-h200.json");
  const Json after = json_of(ordo_command(folder, "plan " + shape));
  CHECK(after["predicted_ms"].get<double>() > 1.5 * before["predicted_ms"].get<double>());
  CHECK(contains(after["reason"].get<std::string>(), "slow.csv") == "slow.csv");
  CHECK(json_of(ordo_command(folder, "plan attention-backward --json --target h20"))["reason"].get<std::string>().find(
            "scaled") != std::string::npos);
  write_file(folder.file("config") + "/ordo/cost-h200.json", "{");
  const Outcome broken = ordo_command(folder, "plan " + shape);
  CHECK(json_of(broken)["predicted_ms"] == before["predicted_ms"]);
  CHECK(contains(broken.err, "run ordo calibrate again") == "run ordo calibrate again");
}

TEST_CASE("cli: audit") {
  const Folder folder;
  CHECK(ordo_command(folder, "audit --target h200 --filter nonsense").code == 2);
  const Outcome audit = ordo_command(
      folder,
      "audit --json --target h200 --filter head_dim=64 --filter mask=full --filter ascending --filter consumer_registers=216");
  if (audit.code == 3) return;  // no NVRTC
  const Json json = json_of(audit);
  REQUIRE(json["rows"].size() == 1);
  for (const char* key : {"key", "plan", "predicted_registers", "actual_registers", "predicted_spill", "actual_spill_bytes"})
    CHECK(json["rows"][0].contains(key));
  CHECK(json["rows"][0]["predicted_spill"] == true);
  CHECK(json["rows"][0]["actual_spill_bytes"] > 0);
}

TEST_CASE("cli: bad usage is one clear error, before anything is compiled") {
  const Folder folder;
  write_file(folder.file("empty.plan"), "");
  write_file(folder.file("bad.plan"), "attention-backward dtype=bf16 head_dim=banana");
  write_file(folder.file("big.plan"), std::string(100000, 'a'));
  struct Case {
    std::string line;
    int code;
    const char* expected;
  };
  const std::string plan = "plan attention-backward ",
                    run = "run attention-backward --input /nonexistent --output " + folder.file("out");
  const Case cases[] = {
      {"", 2, "ordo needs a verb: doctor, plan, "},
      {"frobnicate", 2, "'frobnicate' is not a verb of ordo; it has: doctor, plan, "},
      {"chekc attention-backward", 2, "'chekc' is not a verb of ordo; did you mean 'check'?"},
      {"compile overlap", 2, "'compile' does not take overlap: plan, simulate, check and bench do"},
      {"cache", 2, "ordo cache needs a verb: list, show, "},
      {"cache lst", 2, "'lst' is not a verb of ordo cache; did you mean 'list'?"},
      {"tuning frobnicate", 2, "'frobnicate' is not a verb of ordo tuning; it has: "},
      {"plan", 2, "family is required"},
      {"plan forward", 2, "not in {attention-backward}"},
      {plan + "--frobnicate", 2, "--frobnicate"},
      {plan + "extra", 2, "extra"},
      {plan + "--seqlen", 2, "--seqlen"},
      {plan + "--seqlen -1", 2, "-1"},
      {plan + "--seqlen 0", 2, "0"},
      {plan + "--seqlen 12x", 2, "not an integer"},
      {plan + "--seqlen 1e3", 2, "not an integer"},
      {plan + "--seqlen 0x10", 2, "not an integer"},
      {plan + "--seqlen 99999999999999999999", 2, "not an integer"},
      {plan + "--seqlen 9000000000000000000", 2, "seqlen"},
      {plan + "--seqlen-q 100", 2, "go together"},
      {plan + "--seqlen 100 --seqlen-q 50 --seqlen-k 70", 2, "--seqlen sets both lengths: give it alone"},
      {plan + "--seqlen 100 --seqlen-k 100", 2, "--seqlen sets both lengths: give it alone"},
      {plan + "--batch 0", 2, "batch"},
      {plan + "--batch -3", 2, "batch"},
      {plan + "--batch 9000000000000000000", 2, "batch"},
      {plan + "--heads 0", 2, "heads"},
      {plan + "--heads -8", 2, "heads"},
      {plan + "--heads 6 --kv-heads 4", 2, "divide"},
      {plan + "--heads 4 --kv-heads 0", 2, "kv_heads"},
      {plan + "--heads 2 --kv-heads 4", 2, "kv_heads"},
      {plan + "--head-dim 80", 2, "80"},
      {plan + "--head-dim 0", 2, "head_dim"},
      {plan + "--head-dim 256", 2, "256"},
      {plan + "--mask sideways", 2, "sideways"},
      {plan + "--dtype fp32", 2, "fp32"},
      {plan + "--schedule zigzag", 2, "zigzag"},
      {plan + "--schedule shift --mask causal", 2, "shift"},
      {plan + "--schedule alternate --mask full", 2, "alternate"},
      {plan + "--accumulate approximately", 2, "approximately"},
      {plan + "--accumulate exact --seqlen 1000000", 2, "exact"},
      {plan + "--target h900", 2, "h900"},
      {plan + "--target sm_90a:0", 2, "sm_90a"},
      {plan + "--target sm_80:108", 2, "sm_80"},
      {plan + "--device banana", 2, "neither cpu nor a device number"},
      {plan + "--device -1", 2, "neither cpu nor a device number"},
      {plan + "--device 99", 3, ""},
      {plan + "--plan /nonexistent.plan", 2, "neither a plan's text"},
      {plan + "--plan " + folder.file("empty.plan"), 2, "attention-backward"},
      {plan + "--plan " + folder.file("bad.plan"), 2, "banana"},
      {plan + "--plan " + folder.file("big.plan"), 3, "too large"},
      {plan + "--plan /dev/zero", 2, "neither"},
      {plan + "--plan x --schedule shift", 2, "excludes"},
      {"generate attention-backward --kernel conquer", 2, "conquer"},
      {"generate attention-backward --kernel all", 2, "-o"},
      {"generate attention-backward --json", 2, "-o"},
      {"generate attention-backward -o /nonexistent/folder/k.cu", 3, "/nonexistent/folder/k.cu"},
      {"generate attention-backward -o /", 3, "/"},
      {"compile attention-backward --head-dim 96", 2, "96"},
      {"check attention-backward --repeats 0", 2, "repeats"},
      {"check attention-backward --repeats many", 2, "not an integer"},
      {"check attention-backward --seed -1", 2, "seed"},
      {"check attention-backward --threads 0", 2, "threads"},
      {"check attention-backward --device cpu --seqlen 2000000000", 2, "tiles"},
      {"check attention-backward --device cpu --seqlen 128 --batch 10000000", 2, "memory"},
      {"bench attention-backward --device cpu", 3, "GPU"},
      {"bench attention-backward --warmup -1", 2, "warmup"},
      {"bench", 2, "say what to time"},
      {"bench --suite --device cpu", 3, "GPU"},
      {"bench --suite --cells nowhere", 2, "no cell"},
      {"bench --suite --accumulate ordered,roughly", 2, "roughly"},
      {"bench --suite --list --set colour=red --cells hd64-full-512 --accumulate ordered", 2, "no plan is left"},
      {"bench --suite --overheads", 2, "excludes"},
      {"bench --cells hd64", 2, "--suite"},
      {"bench --overheads --device cpu", 3, "GPU"},
      {"tune attention-backward --device cpu --seqlen 512", 3, "GPU"},
      {"tune attention-backward --rounds 0", 2, "rounds"},
      {"tune attention-backward --margin 2", 2, "margin"},
      {"tune attention-backward --shapes /nonexistent.toml", 3, "/nonexistent.toml"},
      {"query attention-backward --head-dim 96", 2, "96"},
      {"query attention-backward --accumulate roughly", 2, "roughly"},
      {"tuning", 2, "ordo tuning needs a verb: export, import, "},
      {"tuning hash /nonexistent.json", 3, "/nonexistent.json"},
      {"tuning import " + folder.file("bad.plan"), 2, "no decision table"},
      {"tuning diff", 2, "required"},
      {"inspect", 2, "--key"},
      {"inspect attention-backward", 3, "no cache file"},
      {"inspect --key ab --list", 2, "excludes"},
      {"run attention-backward", 2, "required"},
      {run, 3, "no such file"},
      {run + " --mask diagonal", 2, "diagonal"},
      {run + " --verify maybe", 2, "maybe"},
      {run + " --scale zero", 2, "--scale"},
      {"simulate --schedule shift --kv-tiles 0 --q-tiles 1 --workers 1", 2, "kv"},
      {"simulate --schedule shift --kv-tiles 4 --q-tiles 4 --workers 4 --mask causal", 2, "shift"},
      {"simulate --schedule waltz --kv-tiles 4 --q-tiles 4 --workers 4", 2, "waltz"},
      {"simulate --schedule arrival --visits sideways --kv-tiles 4 --q-tiles 4 --workers 4", 2, "sideways"},
      {"simulate --schedule shift --staging 99 --kv-tiles 4 --q-tiles 4 --workers 4", 2, "staging"},
      {"simulate --schedule shift --heads 4 --kv-heads 3 --kv-tiles 4 --q-tiles 4 --workers 4", 2, "kv-heads"},
      {"simulate --schedule ascending --kv-tiles 100000 --q-tiles 100000 --workers 4", 2, ""},
      {"simulate --schedule ascending --kv-tiles 4 --q-tiles 4 --workers 4 --compute -1", 2, ""},
  };
  for (const Case& c : cases) {
    CAPTURE(c.line);
    const Outcome outcome = ordo_command(folder, c.line);
    CAPTURE(outcome.err);
    CHECK(outcome.code == c.code);
    CHECK(outcome.out.empty());
    CHECK(outcome.err.find("error: ") != std::string::npos);
    CHECK(outcome.err.find(c.expected) != std::string::npos);
    CHECK(outcome.err.size() < 1500);
    CHECK_FALSE(fs::exists(folder.file("cache.db")));
    CHECK_FALSE(fs::exists(folder.file("out")));
  }
}

TEST_CASE("cli: bad input files for run") {
  const Folder folder;
  const std::string in = folder.file("in.safetensors"), out = folder.file("out.safetensors");
  struct Case {
    std::string what;
    std::function<void(io::SafeTensors&)> change;
    const char* expected;
  };
  const Case cases[] = {
      {"no q", [](io::SafeTensors& c) { c.tensors.erase("q"); }, "no tensor 'q'"},
      {"no do", [](io::SafeTensors& c) { c.tensors.erase("do"); }, "no tensor 'do'"},
      {"nothing", [](io::SafeTensors& c) { c.tensors.clear(); }, "Found: none"},
      {"q of fp32", [](io::SafeTensors& c) { c.tensors["q"] = tensor("F32", {2, 10, 4, 64}); }, "BF16 or F16"},
      {"k of another dtype", [](io::SafeTensors& c) { c.tensors["k"] = tensor("F16", {2, 12, 2, 64}); }, "'k' is F16"},
      {"do of another dtype", [](io::SafeTensors& c) { c.tensors["do"] = tensor("F16", {2, 10, 4, 64}); }, "'do' is F16"},
      {"q of three dimensions", [](io::SafeTensors& c) { c.tensors["q"] = tensor("BF16", {20, 4, 64}); }, "four dimensions"},
      {"another batch", [](io::SafeTensors& c) { c.tensors["k"] = c.tensors["v"] = tensor("BF16", {1, 12, 2, 64}); },
       "'k' has the shape"},
      {"another head_dim", [](io::SafeTensors& c) { c.tensors["k"] = c.tensors["v"] = tensor("BF16", {2, 12, 2, 128}); },
       "'k' has the shape"},
      {"v longer than k", [](io::SafeTensors& c) { c.tensors["v"] = tensor("BF16", {2, 13, 2, 64}); }, "'v' has the shape"},
      {"do shorter than q", [](io::SafeTensors& c) { c.tensors["do"] = tensor("BF16", {2, 9, 4, 64}); }, "'do' has the shape"},
      {"head_dim 80",
       [](io::SafeTensors& c) {
         for (const char* n : {"q", "do"}) c.tensors[n] = tensor("BF16", {2, 10, 4, 80});
         for (const char* n : {"k", "v"}) c.tensors[n] = tensor("BF16", {2, 12, 2, 80});
       },
       "80"},
      {"heads not divisible", [](io::SafeTensors& c) { c.tensors["k"] = c.tensors["v"] = tensor("BF16", {2, 12, 3, 64}); },
       "divide"},
      {"no heads", [](io::SafeTensors& c) { c.tensors["q"] = c.tensors["do"] = tensor("BF16", {2, 10, 0, 64}); }, "heads"},
      {"no queries", [](io::SafeTensors& c) { c.tensors["q"] = c.tensors["do"] = tensor("BF16", {2, 0, 4, 64}); }, "seqlen_q"},
      {"o of another shape", [](io::SafeTensors& c) { c.tensors["o"] = tensor("BF16", {2, 10, 4, 63}); }, "'o' has the shape"},
      {"lse of bf16", [](io::SafeTensors& c) { c.tensors["lse"] = tensor("BF16", {2, 4, 10}); }, "'lse' is BF16"},
      {"lse as [batch, seqlen, heads]", [](io::SafeTensors& c) { c.tensors["lse"] = tensor("F32", {2, 10, 4}); },
       "'lse' has the shape"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    io::SafeTensors content = layer();
    c.change(content);
    REQUIRE(io::write_safetensors(in, content).ok());
    const Outcome outcome = ordo_command(folder, "run attention-backward --input " + in + " --output " + out);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 2);
    CHECK(outcome.out.empty());
    CHECK(outcome.err.find(c.expected) != std::string::npos);
    CHECK(outcome.err.find(in) != std::string::npos);
    CHECK_FALSE(fs::exists(folder.file("cache.db")));
    CHECK_FALSE(fs::exists(out));
  }
  REQUIRE(io::write_safetensors(in, layer()).ok());
  const std::string whole = slurp(in);
  std::string hostile = whole;
  hostile.replace(0, 8, std::string(8, '\xff'));
  for (const std::string& bytes :
       {whole.substr(0, whole.size() - 1), whole.substr(0, 20), std::string(), hostile, std::string(100, '[')}) {
    write_file(in, bytes);
    const Outcome outcome = ordo_command(folder, "run attention-backward --input " + in + " --output " + out);
    CHECK(outcome.code == 3);
    CHECK(outcome.out.empty());
    CHECK(outcome.err.find(in) != std::string::npos);
  }
  REQUIRE(io::write_safetensors(in, layer()).ok());
  const std::string command = "run attention-backward --device cpu --input " + in + " --output ";
  CHECK(ordo_command(folder, command + in).code == 2);  // would replace the input
  CHECK(slurp(in) == whole);
  for (const std::string& place : {folder.file("no/folder/out"), std::string("/dev/null"), folder.file("")}) {
    CAPTURE(place);
    CHECK(ordo_command(folder, command + place).code == 3);
  }
  CHECK(ordo_command(folder, command + out + " --scale 0").code == 2);
  CHECK(ordo_command(folder, command + out + " --scale -1").code == 2);
  CHECK(ordo_command(folder, command + out + " --scale 1e300").code == 2);
  CHECK(ordo_command(folder, command + out + " --schedule shift --mask causal").code == 2);
  CHECK_FALSE(fs::exists(folder.file("cache.db")));
  CHECK_FALSE(fs::exists(out));
}

TEST_CASE("cli: exit codes, texts and device numbers") {
  for (const ErrorCode code :
       {ErrorCode::invalid_problem, ErrorCode::invalid_plan, ErrorCode::invalid_argument, ErrorCode::unsupported})
    CHECK(cli::exit_code(code) == 2);
  for (const ErrorCode code : {ErrorCode::toolchain, ErrorCode::compile, ErrorCode::bad_cubin, ErrorCode::no_device,
                               ErrorCode::driver, ErrorCode::io, ErrorCode::cache, ErrorCode::internal}) {
    CHECK(cli::exit_code(code) == 3);
  }
  CHECK(cli::bytes_text(0) == "0 B");
  CHECK(cli::bytes_text(1234567) == "1.23 MB");
  CHECK(cli::progress_line("x", 0, 5) == "x [------------------------] 0 %");
  CHECK(cli::progress_line("x", 0.5, 5) == "x [############------------] 50 %, 5 s left");
  CHECK(cli::progress_line("x", 2, 5) == "x [########################] 100 %, 0 s left");
  CHECK(cli::progress_line("x", 0.01, 10).ends_with("16 min left"));
  CHECK(measure::physical_index(nullptr, 3) == 3u);
  CHECK(measure::physical_index("2,0", 0) == 2u);
  CHECK(measure::physical_index("2,0", 1) == 0u);
  CHECK_FALSE(measure::physical_index("2,0", 2).has_value());
  CHECK_FALSE(measure::physical_index("GPU-8932f937", 0).has_value());
  CHECK_FALSE(measure::physical_index("", 0).has_value());
  CHECK_FALSE(measure::physical_index(nullptr, -1).has_value());
}
