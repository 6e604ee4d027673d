// Problem: what is asked, knowing nothing of hardware.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ordo/error.hpp"

namespace ordo {

/// Element type of Q, K, V, O, dO and of the gradients. Sums are always fp32 (or int32, see Accumulate::exact).
enum class DType { bf16, fp16 };

namespace expression {
struct Mask;  // codegen/expression/mask.hpp
}

/// Which (query, key) pairs attention sees: a small value, like an enumeration that can be extended at run time. The expressions
/// of a process are kept for its lifetime, each text once.
class Mask {
 public:
  enum class Kind { full, causal, expression };

  static const Mask full;
  static const Mask causal;  ///< bottom-right aligned: query i sees keys j <= i + seqlen_k - seqlen_q

  constexpr Mask() = default;  ///< full

  [[nodiscard]] constexpr Kind kind() const { return kind_; }
  /// The expression of a mask that parse_mask() read from "expr:..."; null for the others.
  [[nodiscard]] constexpr const expression::Mask* expression() const { return expression_; }

  /// Expressions are equal when their canonical texts are.
  friend constexpr bool operator==(const Mask&, const Mask&) = default;

 private:
  friend ORDO_API Result<Mask> parse_mask(std::string_view text);
  constexpr explicit Mask(Kind kind, const expression::Mask* expression = nullptr) : kind_(kind), expression_(expression) {}

  Kind kind_ = Kind::full;
  const expression::Mask* expression_ = nullptr;
};

inline constexpr Mask Mask::full{Kind::full};
inline constexpr Mask Mask::causal{Kind::causal};

ORDO_API std::string_view to_string(DType dtype);
/// "full", "causal" or "expr:" and the canonical expression.
ORDO_API std::string_view to_string(Mask mask);
ORDO_API Result<DType> parse_dtype(std::string_view text);
/// Reads what to_string() gives; expressions may hold spaces, and need not be canonical. Their language:
/// codegen/expression/README.md. Errors of an expression name the column and what is allowed there.
ORDO_API Result<Mask> parse_mask(std::string_view text);

/// One attention backward: dQ, dK, dV from Q, K, V, O, dO and LSE.
///
/// Q, O, dO, dQ are [batch, seqlen_q, heads, head_dim]; K, V, dK, dV are [batch, seqlen_k, kv_heads, head_dim];
/// LSE is [batch, heads, seqlen_q] fp32, natural log. Query head h reads KV head h / (heads / kv_heads).
/// With P = exp(scale*QK^T - LSE) and delta = rowsum(dO*O):
///   dV = P^T dO,  dS = P * (dO V^T - delta),  dQ = scale * dS K,  dK = scale * dS^T Q.
struct AttentionBackward {
  std::int64_t batch = 1;
  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_k = 0;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;  ///< divides heads: equal is MHA, 1 is MQA, anything between is GQA
  std::int64_t head_dim = 128;
  Mask mask = Mask::full;
  DType dtype = DType::bf16;

  /// Query heads that share one KV head. Valid problems only.
  [[nodiscard]] std::int64_t group() const { return heads / kv_heads; }

  /// 10*batch*heads*seqlen_q*seqlen_k*head_dim, half of it for a causal mask: the field's convention. For an expression the
  /// visible share of the pairs, which for large problems is estimated from a fixed sample.
  [[nodiscard]] ORDO_API double flops() const;

  /// The rules of the type itself: sizes at least 1, kv_heads divides heads, head_dim 64 or 128,
  /// every element count within 2^62, a mask's arithmetic within 32 bits and its divisors never 0. Says which rule, the value
  /// found, and what is allowed.
  [[nodiscard]] ORDO_API Result<void> validate() const;

  friend bool operator==(const AttentionBackward&, const AttentionBackward&) = default;
};

/// Canonical text, e.g.
/// "attention-backward batch=1 seqlen_q=4096 seqlen_k=4096 heads=32 kv_heads=8 head_dim=128 mask=causal dtype=bf16".
ORDO_API std::string to_text(const AttentionBackward& problem);

/// Reads canonical text back (keys in any order, every key at most once, unknown keys refused), then validates.
ORDO_API Result<AttentionBackward> parse_problem(std::string_view text);

}  // namespace ordo
