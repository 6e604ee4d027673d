#include "ordo/problem.hpp"

#include <fmt/format.h>

#include <initializer_list>

#include "codegen/expression/mask.hpp"
#include "codegen/expression/mask_tiles.hpp"
#include "codegen/fields.hpp"
#include "codegen/limits.hpp"

namespace ordo {
namespace {

constexpr std::string_view kNoun = "attention-backward";

Result<void> check_size(std::string_view name, std::int64_t size) {
  if (size >= 1 && size <= limits::kLongestSequence) return {};
  return Error{ErrorCode::invalid_problem,
               fmt::format("{} is {}; it must be within 1 .. {}", name, size, limits::kLongestSequence)};
}

/// Whether the product of positive `sizes` is at most `most`.
bool product_within(std::initializer_list<std::int64_t> sizes, std::int64_t most) {
  for (const std::int64_t size : sizes) {
    most /= size;
  }
  return most >= 1;
}

}  // namespace

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "bf16";
    case DType::fp16:
      return "fp16";
  }
  return "unknown";
}

std::string_view to_string(Mask mask) {
  switch (mask.kind()) {
    case Mask::Kind::full:
      return "full";
    case Mask::Kind::causal:
      return "causal";
    case Mask::Kind::expression:
      return mask.expression()->text;
  }
  return "unknown";
}

Result<DType> parse_dtype(std::string_view text) { return text::read_name(text, "dtype", std::array{DType::bf16, DType::fp16}); }

Result<Mask> parse_mask(std::string_view text) {
  if (text == to_string(Mask::full)) return Mask::full;
  if (text == to_string(Mask::causal)) return Mask::causal;
  if (!text.starts_with(expression::kMaskPrefix)) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("mask {} is unknown; it is one of: full, causal, expr:EXPRESSION", text::quote(text))};
  }
  auto kept = expression::keep_mask(text);
  if (!kept) return kept.error();
  return Mask(Mask::Kind::expression, *kept);
}

double AttentionBackward::flops() const {
  const double full = 10.0 * static_cast<double>(batch) * static_cast<double>(heads) * static_cast<double>(seqlen_q) *
                      static_cast<double>(seqlen_k) * static_cast<double>(head_dim);
  if (mask.expression() != nullptr) return full * expression::visible_share(*this);
  return mask == Mask::causal ? full / 2 : full;
}

Result<void> AttentionBackward::validate() const {
  const std::pair<std::string_view, std::int64_t> sizes[] = {
      {"batch", batch}, {"seqlen_q", seqlen_q}, {"seqlen_k", seqlen_k}, {"heads", heads}, {"kv_heads", kv_heads}};
  for (const auto& [name, size] : sizes) {
    if (auto checked = check_size(name, size); !checked) return checked;
  }
  if (heads % kv_heads != 0) {
    return Error{
        ErrorCode::invalid_problem,
        fmt::format("heads is {} and kv_heads {}; kv_heads must divide heads (equal for MHA, 1 for MQA)", heads, kv_heads)};
  }
  if (head_dim != 64 && head_dim != 128) {
    return Error{ErrorCode::invalid_problem, fmt::format("head_dim is {}; kernels exist for 64 and 128", head_dim)};
  }
  if (dtype != DType::bf16 && dtype != DType::fp16) {
    return Error{ErrorCode::invalid_problem, "dtype is not one of: bf16, fp16"};
  }
  if (!product_within({batch, heads, seqlen_q, head_dim}, limits::kMostElements)) {
    return Error{ErrorCode::invalid_problem, "batch*heads*seqlen_q*head_dim is above 2^62 elements; split the batch"};
  }
  if (!product_within({batch, kv_heads, seqlen_k, head_dim}, limits::kMostElements)) {
    return Error{ErrorCode::invalid_problem, "batch*kv_heads*seqlen_k*head_dim is above 2^62 elements; split the batch"};
  }
  return mask.expression() == nullptr ? Result<void>{} : expression::check_mask(*this);
}

std::string to_text(const AttentionBackward& problem) {
  return fmt::format("{} batch={} seqlen_q={} seqlen_k={} heads={} kv_heads={} head_dim={} mask={} dtype={}", kNoun,
                     problem.batch, problem.seqlen_q, problem.seqlen_k, problem.heads, problem.kv_heads, problem.head_dim,
                     to_string(problem.mask), to_string(problem.dtype));
}

Result<AttentionBackward> parse_problem(std::string_view text) {
  AttentionBackward problem;
  const std::vector<text::Field> fields{
      text::integer_field("batch", problem.batch),           text::integer_field("seqlen_q", problem.seqlen_q),
      text::integer_field("seqlen_k", problem.seqlen_k),     text::integer_field("heads", problem.heads),
      text::integer_field("kv_heads", problem.kv_heads),     text::integer_field("head_dim", problem.head_dim),
      text::parsed_field("mask", problem.mask, &parse_mask), text::parsed_field("dtype", problem.dtype, &parse_dtype)};
  if (auto read = text::read_fields(text, kNoun, fields, ErrorCode::invalid_problem); !read) return read.error();
  if (auto valid = problem.validate(); !valid) return valid.error();
  return problem;
}

}  // namespace ordo
