// NaN and Inf reach every output they mathematically belong to, and rows that see nothing get zeros.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "templates/schedule/schedule.cuh"
#include "tests/gpu/gpu.hpp"
#include "tests/gpu/plans.hpp"

namespace ordo::test {
namespace {

enum Tensor { tensor_q, tensor_k, tensor_v, tensor_o, tensor_do, tensor_lse };
constexpr std::array kTensors{"q", "k", "v", "o", "do", "lse"};
constexpr std::array kOutputs{"dq", "dk", "dv"};
enum Value { nan_value, plus_inf, minus_inf };
constexpr std::array kValues{"NaN", "+Inf", "-Inf"};

bool is_key(int tensor) { return tensor == tensor_k || tensor == tensor_v; }

std::uint16_t bits_of(DType dtype, int value) {
  constexpr std::array<std::uint16_t, 3> bf16{0x7fc0, 0x7f80, 0xff80}, fp16{0x7e00, 0x7c00, 0xfc00};
  return (dtype == DType::bf16 ? bf16 : fp16)[static_cast<std::size_t>(value)];
}

bool finite(DType dtype, std::uint16_t bits) {
  const std::uint16_t exponent = dtype == DType::bf16 ? 0x7f80 : 0x7c00;
  return (bits & exponent) != exponent;
}

/// One planted value: element `column` of row `row` of one head.
struct Plant {
  int tensor = 0, value = 0;
  int batch = 0, row = 0, head = 0, column = 0;
};

/// Writes the value (or, to take it back, the bits that were there); returns what was there.
Result<std::uint32_t> write(GpuProblem& problem, const Plant& plant, std::uint32_t bits) {
  const AttentionBackward& p = problem.problem();
  std::size_t offset = 0, size = 2;
  DeviceBuffer* buffer = &problem.lse();
  if (plant.tensor == tensor_lse) {
    size = 4;
    offset = static_cast<std::size_t>(((plant.batch * p.heads + plant.head) * p.seqlen_q + plant.row) * 4);
  } else {
    buffer = &problem.input(plant.tensor);
    const std::int64_t length = is_key(plant.tensor) ? p.seqlen_k : p.seqlen_q;
    const std::int64_t heads = is_key(plant.tensor) ? p.kv_heads : p.heads;
    offset =
        static_cast<std::size_t>((((plant.batch * length + plant.row) * heads + plant.head) * p.head_dim + plant.column) * 2);
  }
  std::uint32_t old = 0;
  if (auto ok = buffer->copy_to_host(&old, size, offset); !ok) return ok.error();
  if (auto ok = buffer->copy_from_host(&bits, size, offset); !ok) return ok.error();
  return old;
}

std::uint32_t planted_bits(DType dtype, const Plant& plant) {
  if (plant.tensor != tensor_lse) return bits_of(dtype, plant.value);
  constexpr std::array<std::uint32_t, 3> fp32{0x7fc00000u, 0x7f800000u, 0xff800000u};
  return fp32[static_cast<std::size_t>(plant.value)];
}

schedule::Geometry geometry_of(const AttentionBackward& p, const Plan& plan) {
  schedule::Geometry g{};
  g.causal = p.mask == Mask::causal;
  g.tile_q = plan.tile_q;
  g.unit_kv = plan.tile_kv * plan.cluster;
  g.seqlen_q = static_cast<int>(p.seqlen_q);
  g.seqlen_k = static_cast<int>(p.seqlen_k);
  g.q_tiles = schedule::ceil_div(g.seqlen_q, g.tile_q);
  g.units = schedule::ceil_div(g.seqlen_k, g.unit_kv);
  return g;
}

/// Where a non-finite value may appear that the formula does not ask for: in the tiles that meet the planted row, because a
/// masked probability of 0 times a NaN operand of the tile's product is NaN.
class Reach {
 public:
  Reach(const AttentionBackward& problem, const Plan& plan, const Plant& plant)
      : p_(problem), g_(geometry_of(problem, plan)), plant_(plant) {}

  [[nodiscard]] bool allows(int output, int batch, int row, int head) const {
    if (batch != plant_.batch) return false;
    const auto group = static_cast<int>(p_.group());
    const bool keys_out = output > 0, keys_in = is_key(plant_.tensor);
    if ((keys_out ? head : head / group) != (keys_in ? plant_.head : plant_.head / group)) return false;
    if (!keys_out && !keys_in && head != plant_.head) return false;
    const int to = keys_out ? row / g_.unit_kv : row / g_.tile_q;
    const int from = keys_in ? plant_.row / g_.unit_kv : plant_.row / g_.tile_q;
    if (keys_out == keys_in) return to == from;
    const int unit = keys_out ? to : from, q = keys_out ? from : to;
    return q >= schedule::first_q(g_, unit);
  }

 private:
  AttentionBackward p_;
  schedule::Geometry g_;
  Plant plant_;
};

struct Tally {
  std::size_t lost = 0;     ///< the formula gives NaN or Inf, the kernel a number
  std::size_t strayed = 0;  ///< the kernel gives NaN or Inf where nothing planted can reach
  std::size_t asked = 0;    ///< elements that must not be finite
  std::string first;
};

Result<void> tally_output(const GpuProblem& problem, const Plan& plan, const Plant& plant, int output, Tally& tally) {
  const AttentionBackward& p = problem.problem();
  const DeviceBuffer& buffer = problem.output(output);
  std::vector<std::uint16_t> got(buffer.bytes() / 2);
  if (auto ok = buffer.copy_to_host(got.data(), buffer.bytes()); !ok) return ok;
  const auto wanted = problem.reference(output);
  if (!wanted) return wanted.error();
  const Reach reach(p, plan, plant);
  const std::int64_t heads = output > 0 ? p.kv_heads : p.heads, length = output > 0 ? p.seqlen_k : p.seqlen_q;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool is_finite = finite(p.dtype, got[i]), should = std::isfinite((*wanted)[i]);
    if (!should) ++tally.asked;
    if (is_finite == should) continue;
    const auto line = static_cast<std::int64_t>(i) / p.head_dim;
    const auto head = static_cast<int>(line % heads), row = static_cast<int>(line / heads % length);
    const auto batch = static_cast<int>(line / heads / length);
    if (!is_finite && reach.allows(output, batch, row, head)) continue;
    ++(is_finite ? tally.lost : tally.strayed);
    if (tally.first.empty())
      tally.first =
          fmt::format("{} {}[{}, {}, {}, {}]", is_finite ? "lost at" : "strayed to", kOutputs[static_cast<std::size_t>(output)],
                      batch, row, head, static_cast<std::int64_t>(i) % p.head_dim);
  }
  return {};
}

std::string describe(const Plant& plant) {
  return fmt::format("{} at {}[{}, {}, {}, {}]", kValues[static_cast<std::size_t>(plant.value)],
                     kTensors[static_cast<std::size_t>(plant.tensor)], plant.batch, plant.row, plant.head, plant.column);
}

Result<Tally> plant_and_run(GpuProblem& problem, Run& run, const Plant& plant) {
  const auto old = write(problem, plant, planted_bits(problem.problem().dtype, plant));
  if (!old) return old.error();
  if (auto ok = problem.refresh_reference(); !ok) return ok.error();
  if (auto ran = run(problem, 0); !ran) return ran.error();
  Tally tally;
  for (int output = 0; output < 3; ++output)
    if (auto ok = tally_output(problem, run.kernel().plan(), plant, output, tally); !ok) return ok.error();
  if (const auto restored = write(problem, plant, *old); !restored) return restored.error();
  return tally;
}

/// The plants of one problem: every tensor and value, at rows on both sides of tile borders.
std::vector<Plant> plants_of(const AttentionBackward& p) {
  std::vector<Plant> plants;
  int n = 0;
  for (int tensor = tensor_q; tensor <= tensor_lse; ++tensor)
    for (int value = nan_value; value <= minus_inf; ++value, ++n) {
      const auto length = static_cast<int>(is_key(tensor) ? p.seqlen_k : p.seqlen_q);
      const std::array rows{0, length - 1, 63, 64, 127, 128, length / 2};
      plants.push_back({.tensor = tensor,
                        .value = value,
                        .batch = n % 2,
                        .row = rows[static_cast<std::size_t>(n) % rows.size()],
                        .head = n % static_cast<int>(is_key(tensor) ? p.kv_heads : p.heads),
                        .column = n * 37 % static_cast<int>(p.head_dim)});
    }
  return plants;
}

struct Form {
  int head_dim, cluster;
};
constexpr std::array<Form, 3> kForms{{{64, 1}, {128, 1}, {128, 2}}};

/// A plan of each accumulation, mask and form, with the schedule varied.
std::vector<std::pair<AttentionBackward, Plan>> value_cases(const Target& target, std::int64_t seqlen_q, std::int64_t seqlen_k,
                                                            std::initializer_list<Mask> masks) {
  std::vector<std::pair<AttentionBackward, Plan>> cases;
  std::size_t n = 0;
  for (const Mask mask : masks)
    for (const Form& form : kForms)
      for (const Accumulate accumulate : {Accumulate::atomic, Accumulate::ordered, Accumulate::exact}) {
        const AttentionBackward problem{.batch = 2,
                                        .seqlen_q = seqlen_q,
                                        .seqlen_k = seqlen_k,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .head_dim = form.head_dim,
                                        .mask = mask,
                                        .dtype = n % 2 == 0 ? DType::bf16 : DType::fp16};
        const Schedule schedule = schedules_of(mask)[n++ % 3];
        cases.emplace_back(problem, must(plan_with(problem, target, schedule, accumulate, form.cluster)));
      }
  return cases;
}

Kernels prepare(Gpu& device, const std::vector<std::pair<AttentionBackward, Plan>>& cases, const char* name, int& failures) {
  std::vector<Plan> plans;
  for (const auto& entry : cases) plans.push_back(entry.second);
  const Deadline deadline(fmt::format("compiling the plans of: {}", name), 120);
  return prepare_all(device.engine, plans, failures);
}

}  // namespace

TEST_CASE("report 68: NaN and Inf reach the outputs they belong to, and no others") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  const auto cases = value_cases(device->target(), 200, 300, {Mask::full, Mask::causal});
  int failures = 0, planted = 0;
  const Kernels kernels = prepare(*device, cases, "NaN and Inf", failures);
  const Stopwatch time;
  for (const auto& [problem, plan] : cases) {
    const auto kernel = kernels.find(to_text(plan));
    if (kernel == kernels.end()) continue;
    const std::string text = describe(problem, plan);
    const Deadline deadline(text);
    auto on_device = must(GpuProblem::create(device->reference, problem, 11, true));
    auto run = must(Run::create(*device, on_device, kernel->second));
    for (const Plant& plant : plants_of(problem)) {
      const auto tally = plant_and_run(on_device, run, plant);
      ++planted;
      if (tally && tally->lost == 0 && tally->strayed == 0) continue;
      if (++failures <= 25)
        fmt::print(
            "FAILED {}\n  {}: {}\n", text, describe(plant),
            tally ? fmt::format("{} of {} lost, {} strayed; first {}", tally->lost, tally->asked, tally->strayed, tally->first)
                  : tally.error().message);
      check_context(*device, text);
    }
    // With everything put back, nothing of the planted values is left in a workspace or a flag.
    must(on_device.refresh_reference());
    must(run(on_device, 3));
    for (const Deviation& deviation : must(on_device.compare()))
      if (!deviation.within()) {
        ++failures;
        fmt::print("FAILED {}\n  after the planted values were removed\n", text);
      }
  }
  fmt::print("NaN and Inf: {} plants in {} cases, {} failed, {:.1f} s\n", planted, cases.size(), failures, time.seconds());
  CHECK(failures == 0);
}

TEST_CASE("report 62: rows that see nothing get zeros, whatever they hold") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  constexpr std::int64_t kRows = 300, kKeys = 100;
  const auto cases = value_cases(device->target(), kRows, kKeys, {Mask::causal});
  int failures = 0;
  const Kernels kernels = prepare(*device, cases, "masked rows", failures);
  for (const auto& [problem, plan] : cases) {
    const auto kernel = kernels.find(to_text(plan));
    if (kernel == kernels.end()) continue;
    const std::string text = describe(problem, plan);
    const Deadline deadline(text);
    auto on_device = must(GpuProblem::create(device->reference, problem, 12, true));
    auto run = must(Run::create(*device, on_device, kernel->second));
    // LSE of a row that sees nothing is -Inf from one forward and +Inf from another; head 1 gets NaN operands as well.
    constexpr int kMasked = static_cast<int>(kRows - kKeys);
    for (const int row : {0, 1, 63, 64, 130, kMasked - 1}) {
      must(write(on_device, {.tensor = tensor_lse, .row = row, .head = 0}, 0x7f800000u));
      for (const int tensor : {tensor_q, tensor_o, tensor_do, tensor_lse})
        must(write(on_device, {.tensor = tensor, .row = row, .head = 1}, planted_bits(problem.dtype, {.tensor = tensor})));
    }
    const auto ran = run(on_device, 0);
    if (!ran) {
      ++failures;
      fmt::print("FAILED {}\n  {}\n", text, ran.error().message);
      check_context(*device, text);
      continue;
    }
    std::vector<std::uint16_t> dq(on_device.output(0).bytes() / 2);
    must(on_device.output(0).copy_to_host(dq.data(), dq.size() * 2));
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < dq.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / problem.head_dim / problem.heads % problem.seqlen_q;
      if (row < kMasked && (dq[i] & 0x7fff) != 0) ++wrong;
    }
    if (wrong == 0) continue;
    ++failures;
    fmt::print("FAILED {}\n  {} elements of masked rows are not zero\n", text, wrong);
  }
  CHECK(failures == 0);
}

}  // namespace ordo::test
