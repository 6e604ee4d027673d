// OverlapGemm: names, canonical text and the rules of the type itself.
#include <fmt/format.h>

#include "codegen/fields.hpp"
#include "codegen/limits.hpp"
#include "codegen/overlap/fields.hpp"
#include "ordo/overlap.hpp"
#include "templates/overlap/params.cuh"

namespace ordo {
namespace {

constexpr std::string_view kNoun = "overlap-gemm";

Result<void> check_size(std::string_view name, std::int64_t size, std::int64_t most) {
  if (size >= 1 && size <= most) return {};
  return Error{ErrorCode::invalid_problem, fmt::format("{} is {}; it must be within 1 .. {}", name, size, most)};
}

/// What is cut into slices and lies contiguous in something that every rank reads from where a slice begins.
struct Cut {
  std::string_view name, read;  ///< the size; what is read along it
  std::int64_t size;
  std::string_view otherwise;  ///< what has no such rule
};

std::vector<Cut> contiguous_cuts(const OverlapGemm& p) {
  std::vector<Cut> cuts;
  switch (p.op) {
    case OverlapOp::gemm_reduce_scatter:
    case OverlapOp::gemm_all_reduce:
      if (p.a == Storage::column) cuts.push_back({"m", "a, stored by columns,", p.m, "use a=row"});
      break;
    case OverlapOp::gemm_all_to_all:
      if (p.b == Storage::row) cuts.push_back({"n", "b, stored by rows,", p.n, "use b=column"});
      if (p.bias) cuts.push_back({"n", "the bias", p.n, "leave it out"});
      break;
    case OverlapOp::all_to_all_gemm:
      if (p.b == Storage::column) cuts.push_back({"k", "b, stored by columns,", p.k, "use b=row"});
      break;
    default:
      break;
  }
  return cuts;
}

/// A copy to shared memory begins at a multiple of 16 bytes of global memory, whatever its box (PTX ISA, "Bounding Box"); one
/// that does not ends the kernel with an illegal instruction. Rows and columns of matrices do, and tiles are whole units wide:
/// what is left is where a slice begins.
Result<void> check_slice_begins(const OverlapGemm& p) {
  constexpr std::int64_t kUnit = 8;  // 16-bit elements
  const auto ranks = static_cast<int>(p.ranks);
  for (const Cut& cut : contiguous_cuts(p)) {
    for (int slice = 0; slice < ranks; ++slice) {
      const std::int64_t begin = overlap::part_begin(cut.size, ranks, 1, slice);
      if (begin == cut.size || begin % kUnit == 0) continue;
      return Error{
          ErrorCode::invalid_problem,
          fmt::format("{} is {}, of which slice {} begins at {}; {} is read from there in units of 16 bytes, {} elements. "
                      "Make {} a multiple of {} ({} x ranks), or {}",
                      cut.name, cut.size, slice, begin, cut.read, kUnit, cut.name, kUnit * p.ranks, kUnit, cut.otherwise)};
    }
  }
  return {};
}

std::vector<text::Field> fields_of(OverlapGemm& p) {
  std::vector<text::Field> fields{text::named_field("op", p.op, &parse_overlap_op), text::integer_field("m", p.m),
                                  text::integer_field("n", p.n), text::integer_field("k", p.k)};
  add_kernel_fields(fields, p);
  return fields;
}

}  // namespace

std::string_view to_string(OverlapOp op) {
  switch (op) {
    case OverlapOp::gemm:
      return "gemm";
    case OverlapOp::all_gather_gemm:
      return "all-gather-gemm";
    case OverlapOp::gemm_reduce_scatter:
      return "gemm-reduce-scatter";
    case OverlapOp::gemm_all_reduce:
      return "gemm-all-reduce";
    case OverlapOp::gemm_all_to_all:
      return "gemm-all-to-all";
    case OverlapOp::all_to_all_gemm:
      return "all-to-all-gemm";
  }
  return "unknown";
}

std::string_view to_string(Storage storage) {
  switch (storage) {
    case Storage::row:
      return "row";
    case Storage::column:
      return "column";
  }
  return "unknown";
}

std::string_view to_string(Activation activation) {
  switch (activation) {
    case Activation::none:
      return "none";
    case Activation::relu:
      return "relu";
    case Activation::gelu:
      return "gelu";
    case Activation::silu:
      return "silu";
  }
  return "unknown";
}

std::string_view to_string(OutputType type) {
  switch (type) {
    case OutputType::same:
      return "same";
    case OutputType::fp32:
      return "fp32";
  }
  return "unknown";
}

Result<OverlapOp> parse_overlap_op(std::string_view text) {
  return text::read_name(text, "op",
                         std::array{OverlapOp::gemm, OverlapOp::all_gather_gemm, OverlapOp::gemm_reduce_scatter,
                                    OverlapOp::gemm_all_reduce, OverlapOp::gemm_all_to_all, OverlapOp::all_to_all_gemm});
}

Result<Storage> parse_storage(std::string_view text) {
  return text::read_name(text, "storage", std::array{Storage::row, Storage::column});
}

Result<Activation> parse_activation(std::string_view text) {
  return text::read_name(text, "activation", std::array{Activation::none, Activation::relu, Activation::gelu, Activation::silu});
}

Result<OutputType> parse_output_type(std::string_view text) {
  return text::read_name(text, "output type", std::array{OutputType::same, OutputType::fp32});
}

double OverlapGemm::flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }

Result<void> OverlapGemm::validate() const {
  if (to_string(op) == "unknown" || to_string(dtype) == "unknown" || to_string(a) == "unknown" || to_string(b) == "unknown" ||
      to_string(out) == "unknown" || to_string(activation) == "unknown") {
    return Error{ErrorCode::invalid_problem, "overlap-gemm: op, dtype, a, b, out or activation is not one of its named values"};
  }
  for (const auto& [name, size] : {std::pair("m", m), std::pair("n", n), std::pair("k", k)}) {
    if (auto checked = check_size(name, size, limits::kMostGemmSize); !checked) return checked;
  }
  if (op == OverlapOp::gemm && ranks != 1) {
    return Error{ErrorCode::invalid_problem,
                 fmt::format("ranks is {}; op gemm exchanges nothing and runs on 1 rank. Use another op, or ranks 1", ranks)};
  }
  if (auto checked = check_size("ranks", ranks, overlap::kMostRanks); !checked) return checked;
  const bool arrives = op == OverlapOp::all_gather_gemm || op == OverlapOp::all_to_all_gemm;
  if (arrives && a != Storage::row) {
    return Error{ErrorCode::invalid_problem,
                 fmt::format("a is stored by {}; for op {} its slices arrive by rows: use a=row", to_string(a), to_string(op))};
  }
  return check_slice_begins(*this);
}

std::string to_text(const OverlapGemm& p) {
  OverlapGemm copy = p;
  return text::write_fields(kNoun, fields_of(copy));
}

Result<OverlapGemm> parse_overlap_gemm(std::string_view text) {
  OverlapGemm p;
  if (auto read = text::read_fields(text, kNoun, fields_of(p), ErrorCode::invalid_problem); !read) return read.error();
  if (auto valid = p.validate(); !valid) return valid.error();
  return p;
}

}  // namespace ordo
