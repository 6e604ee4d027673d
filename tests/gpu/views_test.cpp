// Strided and packed tensors: the same bits as contiguous ones, gaps untouched, offsets beyond 2^31 elements.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "tests/gpu/gpu.hpp"
#include "tests/gpu/plans.hpp"

namespace ordo::test {
namespace {

constexpr std::array kNames{"q", "k", "v", "o", "do", "dq", "dk", "dv"};
constexpr std::uint16_t kInputGap = 0xffff;   // NaN in both types: a gap that is read shows
constexpr std::uint16_t kOutputGap = 0x5c5c;  // a gap that is written shows

bool is_key(std::size_t tensor) { return tensor == 1 || tensor == 2 || tensor >= 6; }
bool is_output(std::size_t tensor) { return tensor >= 5; }

/// Where a tensor lies in its arena (one for inputs, one for outputs), in elements.
struct Place {
  std::int64_t offset = 0, batch = 0, seqlen = 0, head = 0;
};

struct Layout {
  std::string name;
  std::array<Place, 8> places;
  std::array<std::int64_t, 2> sizes{};  ///< of the arenas
};

struct Dimensions {
  std::int64_t batch, seqlen, heads, head_dim;
  [[nodiscard]] std::int64_t elements() const { return batch * seqlen * heads * head_dim; }
};
Dimensions dimensions(const AttentionBackward& p, std::size_t tensor) {
  return {p.batch, is_key(tensor) ? p.seqlen_k : p.seqlen_q, is_key(tensor) ? p.kv_heads : p.heads, p.head_dim};
}

/// Takes room for one tensor at the end of its arena.
void append(Layout& layout, std::size_t tensor, const Place& strides, std::int64_t elements) {
  std::int64_t& size = layout.sizes[is_output(tensor) ? 1 : 0];
  layout.places[tensor] = strides;
  layout.places[tensor].offset += size;
  size += (elements + 7) / 8 * 8 + 16;
}

void append_contiguous(Layout& layout, const AttentionBackward& p, std::size_t tensor) {
  const Dimensions d = dimensions(p, tensor);
  append(layout, tensor, {0, d.seqlen * d.heads * d.head_dim, d.heads * d.head_dim, d.head_dim}, d.elements());
}

/// [batch, seqlen, 3, heads, head_dim] for q, k, v and for their gradients.
Layout packed_qkv(const AttentionBackward& p) {
  Layout layout{.name = "packed [b, s, 3, h, d]", .places = {}};
  const std::int64_t row = p.heads * p.head_dim;
  for (const std::size_t first : {std::size_t{0}, std::size_t{5}}) {
    const std::int64_t start = layout.sizes[first == 0 ? 0 : 1];
    append(layout, first, {0, p.seqlen_q * 3 * row, 3 * row, p.head_dim}, p.batch * p.seqlen_q * 3 * row);
    for (std::size_t i = 1; i < 3; ++i) {
      layout.places[first + i] = layout.places[first];
      layout.places[first + i].offset = start + static_cast<std::int64_t>(i) * row;
    }
  }
  append_contiguous(layout, p, 3);
  append_contiguous(layout, p, 4);
  return layout;
}

/// [batch, seqlen, 2, kv_heads, head_dim] for k, v and for their gradients.
Layout packed_kv(const AttentionBackward& p) {
  Layout layout{.name = "packed [b, s, 2, h, d]", .places = {}};
  const std::int64_t row = p.kv_heads * p.head_dim;
  for (const std::size_t first : {std::size_t{1}, std::size_t{6}}) {
    append(layout, first, {0, p.seqlen_k * 2 * row, 2 * row, p.head_dim}, p.batch * p.seqlen_k * 2 * row);
    layout.places[first + 1] = layout.places[first];
    layout.places[first + 1].offset += row;
  }
  for (const std::size_t tensor : {0, 3, 4, 5}) append_contiguous(layout, p, tensor);
  return layout;
}

/// [batch, heads, seqlen, head_dim]
Layout transposed(const AttentionBackward& p) {
  Layout layout{.name = "transposed [b, h, s, d]", .places = {}};
  for (std::size_t tensor = 0; tensor < 8; ++tensor) {
    const Dimensions d = dimensions(p, tensor);
    append(layout, tensor, {0, d.heads * d.seqlen * d.head_dim, d.head_dim, d.seqlen * d.head_dim}, d.elements());
  }
  return layout;
}

/// Gaps after every head, row and batch, another at each tensor's start, and no base aligned beyond 16 bytes.
Layout with_gaps(const AttentionBackward& p) {
  Layout layout{.name = "gaps everywhere", .places = {}};
  for (std::size_t tensor = 0; tensor < 8; ++tensor) {
    const Dimensions d = dimensions(p, tensor);
    const std::int64_t head = d.head_dim + 8, row = d.heads * head + 24, batch = d.seqlen * row + 40;
    append(layout, tensor, {8, batch, row, head}, d.batch * batch + 8);
  }
  return layout;
}

TensorView view(void* arena, const Place& place) {
  return {static_cast<std::uint16_t*>(arena) + place.offset, place.batch, place.seqlen, place.head};
}

AttentionBackwardTensors tensors(const Layout& layout, void* inputs, void* outputs, const GpuProblem& problem) {
  AttentionBackwardTensors t = problem.tensors();
  const std::array<TensorView*, 8> views{&t.q, &t.k, &t.v, &t.o, &t.d_o, &t.dq, &t.dk, &t.dv};
  for (std::size_t i = 0; i < 8; ++i) *views[i] = view(is_output(i) ? outputs : inputs, layout.places[i]);
  return t;
}

/// Calls f(element of the contiguous tensor, element of the arena) for each head row.
template <class F>
void for_each_row(const Dimensions& d, const Place& place, F f) {
  std::int64_t contiguous_element = 0;
  for (std::int64_t b = 0; b < d.batch; ++b)
    for (std::int64_t s = 0; s < d.seqlen; ++s)
      for (std::int64_t h = 0; h < d.heads; ++h, contiguous_element += d.head_dim)
        f(static_cast<std::size_t>(contiguous_element),
          static_cast<std::size_t>(place.offset + b * place.batch + s * place.seqlen + h * place.head));
}

const DeviceBuffer& buffer_of(GpuProblem& problem, std::size_t tensor) {
  return is_output(tensor) ? problem.output(static_cast<int>(tensor - 5)) : problem.input(static_cast<int>(tensor));
}

std::vector<std::uint16_t> download(const DeviceBuffer& buffer) {
  std::vector<std::uint16_t> values(buffer.bytes() / 2);
  must(buffer.copy_to_host(values.data(), buffer.bytes()));
  return values;
}

/// The arena's outputs against the contiguous ones; nothing else of it may have changed. Empty: all right.
std::string compare_outputs(const AttentionBackward& p, const Layout& layout, GpuProblem& problem,
                            std::vector<std::uint16_t> arena) {
  std::string failure;
  for (std::size_t tensor = 5; tensor < 8; ++tensor) {
    const std::vector<std::uint16_t> wanted = download(buffer_of(problem, tensor));
    const Dimensions d = dimensions(p, tensor);
    std::size_t rows = 0;
    for_each_row(d, layout.places[tensor], [&](std::size_t from, std::size_t to) {
      const std::size_t bytes = static_cast<std::size_t>(d.head_dim) * 2;
      if (std::memcmp(&wanted[from], &arena[to], bytes) != 0) ++rows;
      std::fill_n(arena.begin() + static_cast<std::ptrdiff_t>(to), d.head_dim, kOutputGap);
    });
    if (rows != 0) failure += fmt::format("{} rows of {} differ; ", rows, kNames[tensor]);
  }
  const auto touched = arena.size() - static_cast<std::size_t>(std::count(arena.begin(), arena.end(), kOutputGap));
  if (touched != 0) failure += fmt::format("{} elements of gaps written; ", touched);
  return failure;
}

/// Runs the problem as laid out, after it has run contiguously.
std::string run_layout(Gpu& device, const AttentionBackward& p, const Layout& layout, GpuProblem& problem, Run& run) {
  std::vector<std::uint16_t> in(static_cast<std::size_t>(layout.sizes[0]), kInputGap);
  std::vector<std::uint16_t> out(static_cast<std::size_t>(layout.sizes[1]), kOutputGap);
  for (std::size_t tensor = 0; tensor < 8; ++tensor) {
    const Dimensions d = dimensions(p, tensor);
    const std::vector<std::uint16_t> values =
        is_output(tensor) ? std::vector<std::uint16_t>() : download(buffer_of(problem, tensor));
    for_each_row(d, layout.places[tensor], [&](std::size_t from, std::size_t to) {
      if (is_output(tensor))
        std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(to), d.head_dim, std::uint16_t{0xffff});
      else
        std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(from), d.head_dim, in.begin() + static_cast<std::ptrdiff_t>(to));
    });
  }
  auto inputs = must(DeviceBuffer::allocate(in.size() * 2)), outputs = must(DeviceBuffer::allocate(out.size() * 2));
  must(inputs.copy_from_host(in.data(), in.size() * 2));
  must(outputs.copy_from_host(out.data(), out.size() * 2));
  DeviceBuffer& workspace = run.workspace();
  must(workspace.fill(0xff, device.stream.get()));
  if (auto launched = run.kernel().launch(p, tensors(layout, inputs.data(), outputs.data(), problem), workspace.data(),
                                          workspace.bytes(), device.stream.get());
      !launched)
    return launched.error().message;
  if (auto done = device.stream.synchronize(); !done) return done.error().message;
  std::string failure = compare_outputs(p, layout, problem, download(outputs));
  if (download(inputs) != in) failure += "inputs written; ";
  return failure;
}

struct ViewCase {
  AttentionBackward problem;
  Plan plan;
  std::vector<Layout> layouts;
};

std::vector<ViewCase> view_cases(const Target& target) {
  std::vector<ViewCase> cases;
  const auto add = [&](const AttentionBackward& p, Accumulate accumulate, int cluster, std::vector<Layout> layouts) {
    const Schedule schedule = schedules_of(p.mask)[cases.size() % 3];
    cases.push_back({p, must(plan_with(p, target, schedule, accumulate, cluster)), std::move(layouts)});
  };
  for (const auto& [head_dim, cluster] : {std::pair{64, 1}, {128, 1}, {128, 2}})
    for (const Accumulate accumulate : {Accumulate::ordered, Accumulate::exact}) {
      AttentionBackward mha{
          .batch = 2, .seqlen_q = 333, .seqlen_k = 333, .heads = 3, .kv_heads = 3, .head_dim = head_dim, .mask = Mask::causal};
      add(mha, accumulate, cluster, {packed_qkv(mha), transposed(mha), with_gaps(mha)});
      AttentionBackward gqa{.batch = 2,
                            .seqlen_q = 200,
                            .seqlen_k = 333,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = head_dim,
                            .mask = Mask::full,
                            .dtype = DType::fp16};
      add(gqa, accumulate, cluster, {packed_kv(gqa), transposed(gqa), with_gaps(gqa)});
    }
  return cases;
}

}  // namespace

TEST_CASE("strided and packed tensors give the same bits and keep their gaps") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  const std::vector<ViewCase> cases = view_cases(device->target());
  std::vector<Plan> plans;
  for (const ViewCase& c : cases) plans.push_back(c.plan);
  int failures = 0;
  Kernels kernels;
  {
    const Deadline deadline("compiling the plans of: views", 120);
    kernels = prepare_all(device->engine, plans, failures);
  }
  for (const ViewCase& c : cases) {
    const auto kernel = kernels.find(to_text(c.plan));
    if (kernel == kernels.end()) continue;
    const std::string text = describe(c.problem, c.plan);
    const Deadline deadline(text);
    auto problem = must(GpuProblem::create(device->reference, c.problem, 13, false));
    auto run = must(Run::create(*device, problem, kernel->second));
    must(run(problem, 0));
    for (const Layout& layout : c.layouts) {
      const std::string failure = run_layout(*device, c.problem, layout, problem, run);
      if (failure.empty()) continue;
      ++failures;
      fmt::print("FAILED {}\n  {}: {}\n", text, layout.name, failure);
      check_context(*device, text);
    }
  }
  CHECK(failures == 0);
}

namespace {

/// Every tensor in one arena, 2^20 elements apart, with one stride so long that offsets pass 2^31 elements.
Layout far_apart(const AttentionBackward& p, std::int64_t batch, std::int64_t seqlen, std::int64_t head) {
  Layout layout{.name = fmt::format("strides {} {} {}", batch, seqlen, head), .places = {}};
  for (std::size_t tensor = 0; tensor < 8; ++tensor) {
    layout.places[tensor] = {static_cast<std::int64_t>(tensor) << 20, batch, seqlen, head};
    const Dimensions d = dimensions(p, tensor);
    const std::int64_t end =
        layout.places[tensor].offset + (d.batch - 1) * batch + (d.seqlen - 1) * seqlen + (d.heads - 1) * head + d.head_dim;
    layout.sizes[0] = std::max(layout.sizes[0], end);
  }
  return layout;
}

/// Moves the rows of a tensor between its own buffer and the arena.
void copy_rows(const Dimensions& d, const Place& place, std::vector<std::uint16_t>& values, DeviceBuffer& arena, bool to_arena) {
  const std::size_t bytes = static_cast<std::size_t>(d.head_dim) * 2;
  for_each_row(d, place, [&](std::size_t element, std::size_t at) {
    must(to_arena ? arena.copy_from_host(&values[element], bytes, at * 2) : arena.copy_to_host(&values[element], bytes, at * 2));
  });
}

std::string run_far_apart(Gpu& device, const AttentionBackward& p, const Layout& layout, GpuProblem& problem, Run& run,
                          DeviceBuffer& arena) {
  for (std::size_t tensor = 0; tensor < 5; ++tensor) {
    std::vector<std::uint16_t> values = download(buffer_of(problem, tensor));
    copy_rows(dimensions(p, tensor), layout.places[tensor], values, arena, true);
  }
  if (auto launched = run.kernel().launch(p, tensors(layout, arena.data(), arena.data(), problem), run.workspace().data(),
                                          run.workspace().bytes(), device.stream.get());
      !launched)
    return launched.error().message;
  if (auto done = device.stream.synchronize(); !done) return done.error().message;
  std::string failure;
  for (std::size_t tensor = 5; tensor < 8; ++tensor) {
    const std::vector<std::uint16_t> wanted = download(buffer_of(problem, tensor));
    std::vector<std::uint16_t> got(wanted.size(), 0);
    copy_rows(dimensions(p, tensor), layout.places[tensor], got, arena, false);
    if (got != wanted) failure += fmt::format("{} differs; ", kNames[tensor]);
  }
  return failure;
}

}  // namespace

TEST_CASE("report 66: offsets beyond 2^31 elements") {
  Gpu* device = gpu();
  if (device == nullptr) return;
  constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 4096;
  const AttentionBackward p{
      .batch = 2, .seqlen_q = 150, .seqlen_k = 150, .heads = 2, .kv_heads = 2, .head_dim = 128, .mask = Mask::causal};
  const std::array layouts{far_apart(p, kFar, p.heads * p.head_dim, p.head_dim),
                           far_apart(p, p.head_dim, std::int64_t{1} << 24, 2 * p.head_dim),
                           far_apart(p, p.seqlen_q * p.head_dim, p.head_dim, kFar)};
  std::int64_t elements = 0;
  for (const Layout& layout : layouts) elements = std::max(elements, layout.sizes[0]);
  const auto bytes = static_cast<std::size_t>(elements) * 2;
  if (must(device->context.free_bytes()) < bytes + (std::size_t{1} << 30)) {
    fmt::print("skipped: offsets beyond 2^31 need {} MiB of device memory\n", bytes >> 20);
    return;
  }
  auto arena = must(DeviceBuffer::allocate(bytes));
  for (const Accumulate accumulate : {Accumulate::ordered, Accumulate::exact}) {
    const Plan plan = must(plan_with(p, device->target(), Schedule::descending, accumulate, 2));
    const Deadline deadline("offsets beyond 2^31: " + to_text(plan), 60);
    auto kernel = must(device->engine.prepare(plan));
    auto problem = must(GpuProblem::create(device->reference, p, 14, false));
    auto run = must(Run::create(*device, problem, kernel));
    must(run(problem, 0));
    for (const Layout& layout : layouts) {
      const std::string failure = run_far_apart(*device, p, layout, problem, run, arena);
      CHECK_MESSAGE(failure.empty(), layout.name, ", ", to_string(accumulate), ": ", failure);
      check_context(*device, layout.name);
    }
  }
}

}  // namespace ordo::test
