#include "codegen/cost/constants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "codegen/embedded.hpp"

namespace ordo::cost {
namespace {

using Json = nlohmann::ordered_json;

Error bad(const std::string& what) { return {ErrorCode::invalid_argument, "cost constants: " + what}; }

/// The numbers of a type by their names in the file: one list for reading and writing.
std::vector<std::pair<const char*, double Constants::*>> numbers() {
  return {{"clock_hz", &Constants::clock_hz},
          {"max_clock_hz", &Constants::max_clock_hz},
          {"clock_exponent", &Constants::clock_exponent},
          {"tensor_flops", &Constants::tensor_flops},
          {"l2_bytes", &Constants::l2_bytes},
          {"add", &Constants::add},
          {"exact", &Constants::exact},
          {"memory_efficiency", &Constants::memory_efficiency},
          {"sums_in_l2", &Constants::sums_in_l2},
          {"missed_bytes", &Constants::missed_bytes},
          {"launch_seconds", &Constants::launch_seconds},
          {"spilled_byte", &Constants::spilled_byte}};
}
std::vector<std::pair<const char*, double KernelConstants::*>> kernel_numbers() {
  return {{"efficiency", &KernelConstants::efficiency},
          {"masked", &KernelConstants::masked},
          {"item", &KernelConstants::item},
          {"set_item", &KernelConstants::set_item},
          {"hop", &KernelConstants::hop},
          {"shift", &KernelConstants::shift},
          {"ascending_causal", &KernelConstants::ascending_causal},
          {"descending_causal", &KernelConstants::descending_causal},
          {"alternate", &KernelConstants::alternate},
          {"symmetric_shift", &KernelConstants::symmetric_shift}};
}

template <class Type>
Result<void> read_numbers(const Json& json, const std::vector<std::pair<const char*, double Type::*>>& names, Type& out) {
  for (const auto& [name, member] : names) {
    const auto at = json.find(name);
    if (at == json.end() || !at->is_number()) return bad(fmt::format("'{}' is missing or no number", name));
    const double value = at->template get<double>();
    if (!std::isfinite(value) || value < 0)
      return bad(fmt::format("'{}' is {}; it must be finite and not negative", name, value));
    out.*member = value;
  }
  return {};
}

/// The kernels that exist (see Plan::validate).
constexpr std::pair<int, int> kKernels[] = {{128, 2}, {128, 1}, {64, 1}};

const KernelConstants* find(const std::vector<KernelConstants>& kernels, int head_dim, int cluster) {
  const auto at = std::find_if(kernels.begin(), kernels.end(),
                               [&](const KernelConstants& k) { return k.head_dim == head_dim && k.cluster == cluster; });
  return at == kernels.end() ? nullptr : &*at;
}

Result<KernelConstants> read_kernel(const Json& json) {
  KernelConstants kernel;
  for (const auto& [name, member] :
       {std::pair{"head_dim", &KernelConstants::head_dim}, std::pair{"cluster", &KernelConstants::cluster}}) {
    const auto at = json.find(name);
    if (at == json.end() || !at->is_number_integer()) return bad(fmt::format("'{}' of a kernel is missing or no integer", name));
    kernel.*member = at->get<int>();
  }
  if (auto read = read_numbers(json, kernel_numbers(), kernel); !read) return read.error();
  if (kernel.efficiency <= 0) return bad("'efficiency' of a kernel must be above 0");
  return kernel;
}

std::vector<Constants> read_shipped() {
  std::vector<Constants> all;
  for (const EmbeddedFile& file : constant_files()) {
    auto constants = parse_constants(file.text);
    if (constants) all.push_back(*std::move(constants));  // the tests read every file
  }
  return all;
}

}  // namespace

const KernelConstants& Constants::kernel(const Plan& plan) const {
  const KernelConstants* found = find(kernels, plan.head_dim, plan.cluster);
  return found != nullptr ? *found : kernels.front();
}

const Constants& shipped_constants(const Target& target) {
  static const std::vector<Constants> all = read_shipped();
  const auto named = [](const std::string& name) {
    return std::find_if(all.begin(), all.end(), [&](const Constants& constants) { return constants.target == name; });
  };
  const auto found = named(target.name);
  return found != all.end() ? *found : *named("h200");
}

Result<Constants> parse_constants(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return bad("this is no JSON object");
  Constants constants;
  for (const auto& [name, member] : {std::pair{"target", &Constants::target}, std::pair{"origin", &Constants::origin}}) {
    const auto at = json.find(name);
    if (at == json.end() || !at->is_string()) return bad(fmt::format("'{}' is missing or no string", name));
    constants.*member = at->get<std::string>();
  }
  const auto measured = json.find("measured");
  if (measured == json.end() || !measured->is_boolean()) return bad("'measured' is missing or neither true nor false");
  constants.measured = measured->get<bool>();
  if (auto read = read_numbers(json, numbers(), constants); !read) return read.error();
  for (const double positive : {constants.clock_hz, constants.max_clock_hz, constants.tensor_flops, constants.l2_bytes,
                                constants.memory_efficiency, constants.sums_in_l2}) {
    if (positive <= 0)
      return bad("clock_hz, max_clock_hz, tensor_flops, l2_bytes, memory_efficiency and sums_in_l2 must be above 0");
  }
  const auto kernels = json.find("kernels");
  if (kernels == json.end() || !kernels->is_array()) return bad("'kernels' is missing or no array");
  for (const Json& entry : *kernels) {
    auto kernel = read_kernel(entry);
    if (!kernel) return kernel.error();
    constants.kernels.push_back(*kernel);
  }
  for (const auto& [head_dim, cluster] : kKernels) {
    if (find(constants.kernels, head_dim, cluster) == nullptr)
      return bad(fmt::format("'kernels' has no entry for head_dim {} and cluster {}", head_dim, cluster));
  }
  return constants;
}

std::string to_json(const Constants& constants) {
  Json json{{"target", constants.target}, {"origin", constants.origin}, {"measured", constants.measured}};
  for (const auto& [name, member] : numbers()) json[name] = constants.*member;
  json["kernels"] = Json::array();
  for (const KernelConstants& kernel : constants.kernels) {
    Json entry{{"head_dim", kernel.head_dim}, {"cluster", kernel.cluster}};
    for (const auto& [name, member] : kernel_numbers()) entry[name] = kernel.*member;
    json["kernels"].push_back(std::move(entry));
  }
  return json.dump(2) + "\n";
}

}  // namespace ordo::cost
