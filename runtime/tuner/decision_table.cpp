#include "ordo/decision_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "codegen/fields.hpp"
#include "codegen/hash/sha256.hpp"
#include "codegen/schedule/proof.hpp"

namespace ordo {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr std::uintmax_t kLargestFile = std::uintmax_t{256} << 20;

/// What orders decisions and tells them apart.
std::string key_of(const Decision& decision) {
  return fmt::format("{} accumulate={}", to_text(decision.problem), to_string(decision.plan.accumulate));
}

Json json_of(const Decision& d) {
  return {{"problem", to_text(d.problem)},
          {"plan", to_text(d.plan)},
          {"fingerprint", d.fingerprint},
          {"source", to_string(d.source)},
          {"ms", d.ms},
          {"reason", d.reason}};
}

Json json_of(const MeasuredRound& m) {
  return {{"problem", m.problem},   {"plan", m.plan},           {"kernels", m.kernels},     {"target", m.target},
          {"device", m.device},     {"sm_count", m.sm_count},   {"driver", m.driver},       {"toolchain", m.toolchain},
          {"policy", m.policy},     {"round", m.round},         {"ms_median", m.ms_median}, {"ms_min", m.ms_min},
          {"launches", m.launches}, {"clock_mhz", m.clock_mhz}, {"watts", m.watts}};
}

Result<Decision> decision_of(const Json& json) {
  auto problem = parse_problem(json.at("problem").get<std::string>());
  if (!problem) return problem.error();
  auto plan = parse_plan(json.at("plan").get<std::string>());
  if (!plan) return plan.error();
  if (auto fits = check_fit(*problem, *plan); !fits) return fits.error();
  auto source = parse_plan_source(json.at("source").get<std::string>());
  if (!source) return source.error();
  Decision d{*problem,
             *plan,
             order_fingerprint(*problem, *plan),
             *source,
             json.at("ms").get<double>(),
             json.at("reason").get<std::string>()};
  if (const auto written = json.at("fingerprint").get<std::string>(); written != d.fingerprint)
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("the plan for {} is said to have the order fingerprint {}, but has {}: the file was edited, or made by "
                    "an ordo that orders sums in another way",
                    to_text(*problem), written, d.fingerprint)};
  return d;
}

MeasuredRound round_of(const Json& json) {
  MeasuredRound m;
  json.at("problem").get_to(m.problem);
  json.at("plan").get_to(m.plan);
  json.at("kernels").get_to(m.kernels);
  json.at("target").get_to(m.target);
  json.at("device").get_to(m.device);
  json.at("sm_count").get_to(m.sm_count);
  json.at("driver").get_to(m.driver);
  json.at("toolchain").get_to(m.toolchain);
  json.at("policy").get_to(m.policy);
  json.at("round").get_to(m.round);
  json.at("ms_median").get_to(m.ms_median);
  json.at("ms_min").get_to(m.ms_min);
  json.at("launches").get_to(m.launches);
  json.at("clock_mhz").get_to(m.clock_mhz);
  json.at("watts").get_to(m.watts);
  return m;
}

/// May throw what nlohmann's json throws.
Result<DecisionTable> table_of(const Json& json) {
  if (const int version = json.at("ordo_decisions").get<int>(); version != kVersion)
    return Error{ErrorCode::invalid_argument, fmt::format("it has version {}; this ordo reads version {}", version, kVersion)};
  auto target = parse_target(json.at("target").get<std::string>());
  if (!target) return target.error();
  DecisionTable table{*target, {}, {}};
  for (const Json& entry : json.at("decisions")) {
    auto decision = decision_of(entry);
    if (!decision) return decision.error();
    table.decisions.push_back(*std::move(decision));
  }
  for (const Json& entry : json.at("measurements")) table.measurements.push_back(round_of(entry));
  std::sort(table.decisions.begin(), table.decisions.end(),
            [](const Decision& a, const Decision& b) { return key_of(a) < key_of(b); });
  const auto twice = std::adjacent_find(table.decisions.begin(), table.decisions.end(),
                                        [](const Decision& a, const Decision& b) { return key_of(a) == key_of(b); });
  if (twice != table.decisions.end())
    return Error{ErrorCode::invalid_argument, fmt::format("it has two plans for {}", key_of(*twice))};
  if (const auto written = json.at("hash").get<std::string>(); written != table_hash(table))
    return Error{ErrorCode::invalid_argument,
                 fmt::format("its hash is {}, but its decisions have {}: it was edited by hand", written, table_hash(table))};
  return table;
}

std::map<std::string, const Decision*> by_key(const DecisionTable& table) {
  std::map<std::string, const Decision*> out;
  for (const Decision& decision : table.decisions) out.emplace(key_of(decision), &decision);
  return out;
}

}  // namespace

std::string_view to_string(PlanSource source) {
  switch (source) {
    case PlanSource::measured:
      return "measured";
    case PlanSource::interpolated:
      return "interpolated";
    case PlanSource::predicted:
      return "predicted";
  }
  return "unknown";
}

Result<PlanSource> parse_plan_source(std::string_view text) {
  return text::read_name(text, "source", std::array{PlanSource::measured, PlanSource::interpolated, PlanSource::predicted});
}

const Decision* DecisionTable::find(const AttentionBackward& problem, std::optional<Accumulate> accumulate) const {
  std::vector<const Decision*> of_problem;
  for (const Decision& decision : decisions)
    if (decision.problem == problem) of_problem.push_back(&decision);
  if (!accumulate && of_problem.size() == 1) return of_problem.front();
  const Accumulate wanted = accumulate.value_or(Accumulate::ordered);
  const auto found =
      std::find_if(of_problem.begin(), of_problem.end(), [&](const Decision* d) { return d->plan.accumulate == wanted; });
  return found == of_problem.end() ? nullptr : *found;
}

std::string table_hash(const DecisionTable& table) {
  std::vector<std::string> lines;
  lines.reserve(table.decisions.size());
  for (const Decision& decision : table.decisions)
    lines.push_back(to_text(decision.problem) + '\n' + to_text(decision.plan) + '\n');
  std::sort(lines.begin(), lines.end());
  std::string text = fmt::format("ordo decisions {}\n{}\n", kVersion, to_text(table.target));
  for (const std::string& line : lines) text += line;
  return sha256_hex(text);
}

std::string to_json(const DecisionTable& table) {
  Json decisions = Json::array(), measurements = Json::array();
  for (const Decision& decision : table.decisions) decisions.push_back(json_of(decision));
  for (const MeasuredRound& round : table.measurements) measurements.push_back(json_of(round));
  const Json json = {{"ordo_decisions", kVersion},
                     {"target", to_text(table.target)},
                     {"hash", table_hash(table)},
                     {"decisions", std::move(decisions)},
                     {"measurements", std::move(measurements)}};
  return json.dump(2) + "\n";
}

Result<DecisionTable> parse_decision_table(std::string_view text, const std::string& origin) {
  const auto refused = [&](const std::string& why) {
    return Error{ErrorCode::invalid_argument, fmt::format("{} is no decision table of ordo: {}", origin, why)};
  };
  try {
    auto table = table_of(Json::parse(text));
    if (!table) return refused(table.error().message);
    return table;
  } catch (const Json::exception& problem) {
    return refused(problem.what());
  }
}

Result<DecisionTable> read_decision_table(const std::string& path) {
  std::error_code reason;
  const std::uintmax_t bytes = std::filesystem::file_size(path, reason);
  if (reason) return Error{ErrorCode::io, fmt::format("{} cannot be read: {}", path, reason.message())};
  if (bytes > kLargestFile)
    return Error{ErrorCode::io, fmt::format("{} has {} bytes: too large for a decision table", path, bytes)};
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) return Error{ErrorCode::io, fmt::format("{} cannot be read", path)};
  return parse_decision_table(text, path);
}

std::vector<std::string> diff(const DecisionTable& a, const DecisionTable& b) {
  std::vector<std::string> lines;
  if (!(a.target == b.target)) lines.push_back(fmt::format("target: {} | {}", to_text(a.target), to_text(b.target)));
  const auto left = by_key(a), right = by_key(b);
  for (const auto& [key, decision] : left) {
    const auto other = right.find(key);
    if (other == right.end())
      lines.push_back(fmt::format("{}: only in the first", key));
    else if (!(decision->plan == other->second->plan))
      lines.push_back(fmt::format("{}:\n  - {}\n  + {}", key, to_text(decision->plan), to_text(other->second->plan)));
  }
  for (const auto& [key, decision] : right)
    if (!left.contains(key)) lines.push_back(fmt::format("{}: only in the second", key));
  return lines;
}

}  // namespace ordo
