// Attention backward by its formulas, pair by pair, and helpers that tests of the CPU executor share.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "ordo/problem.hpp"
#include "runtime/reference/attention.hpp"
#include "runtime/reference/numbers.hpp"

namespace ordo::testing {

inline AttentionBackward problem_of(std::int64_t batch, std::int64_t sq, std::int64_t sk, std::int64_t heads,
                                    std::int64_t kv_heads, std::int64_t dim, Mask mask, DType dtype = DType::bf16) {
  AttentionBackward p;
  p.batch = batch, p.seqlen_q = sq, p.seqlen_k = sk, p.heads = heads, p.kv_heads = kv_heads, p.head_dim = dim, p.mask = mask,
  p.dtype = dtype;
  return p;
}

inline float scale_of(const AttentionBackward& p) { return 1.0f / std::sqrt(static_cast<float>(p.head_dim)); }

inline std::vector<double> wide(DType dtype, const std::vector<std::uint16_t>& x) {
  std::vector<double> out;
  out.reserve(x.size());
  for (const std::uint16_t bits : x) out.push_back(double{reference::widen(dtype, bits)});
  return out;
}

inline double relative_error(const std::vector<double>& x, const std::vector<double>& ref) {
  REQUIRE(x.size() == ref.size());
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < x.size(); ++i) error += (x[i] - ref[i]) * (x[i] - ref[i]), norm += ref[i] * ref[i];
  return std::sqrt(error) / std::max(std::sqrt(norm), 1e-300);
}

// The contract's formulas, pair by pair, sharing nothing with the code under test but the layouts.
struct Naive {
  std::vector<double> o, lse, dq, dk, dv;
};
/// `sees(i, j, h, b)`: the mask, written as C++ by the test.
using Sees = std::function<bool(std::int64_t q, std::int64_t k, std::int64_t head, std::int64_t batch)>;

inline Naive naive(const AttentionBackward& p, double scale, const reference::HostInputs& in, bool take_o_and_lse,
                   const Sees& sees = {}) {
  const auto q = wide(p.dtype, in.q), k = wide(p.dtype, in.k), v = wide(p.dtype, in.v), d_o = wide(p.dtype, in.d_o);
  Naive out;
  out.o.resize(q.size()),
      out.lse.resize(static_cast<std::size_t>(p.batch * p.heads * p.seqlen_q), -std::numeric_limits<double>::infinity());
  if (take_o_and_lse) {
    out.o = wide(p.dtype, in.o);
    out.lse.assign(in.lse.begin(), in.lse.end());
  }
  out.dq.resize(q.size()), out.dk.resize(k.size()), out.dv.resize(k.size());
  const std::int64_t dim = p.head_dim;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const std::int64_t hk = h * p.kv_heads / p.heads;
      for (std::int64_t i = 0; i < p.seqlen_q; ++i) {
        const auto row = static_cast<std::size_t>(((b * p.seqlen_q + i) * p.heads + h) * dim);
        const auto stat = static_cast<std::size_t>((b * p.heads + h) * p.seqlen_q + i);
        std::vector<std::size_t> keys;
        std::vector<double> s;
        for (std::int64_t j = 0; j < p.seqlen_k; ++j) {
          if (sees ? !sees(i, j, h, b) : p.mask == Mask::causal && j > i + p.seqlen_k - p.seqlen_q) continue;
          keys.push_back(static_cast<std::size_t>(((b * p.seqlen_k + j) * p.kv_heads + hk) * dim));
          double dot = 0;
          for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) dot += q[row + d] * k[keys.back() + d];
          s.push_back(scale * dot);
        }
        if (keys.empty()) continue;
        if (!take_o_and_lse) {
          const double top = *std::max_element(s.begin(), s.end());
          double sum = 0;
          for (const double x : s) sum += std::exp(x - top);
          out.lse[stat] = top + std::log(sum);
          for (std::size_t t = 0; t < keys.size(); ++t) {
            for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d)
              out.o[row + d] += std::exp(s[t] - out.lse[stat]) * v[keys[t] + d];
          }
        }
        if (std::isinf(out.lse[stat])) continue;
        double delta = 0;
        for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) delta += d_o[row + d] * out.o[row + d];
        for (std::size_t t = 0; t < keys.size(); ++t) {
          double dp = 0;
          for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) dp += d_o[row + d] * v[keys[t] + d];
          const double prob = std::exp(s[t] - out.lse[stat]), ds = prob * (dp - delta);
          for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) {
            out.dv[keys[t] + d] += prob * d_o[row + d];
            out.dq[row + d] += scale * ds * k[keys[t] + d];
            out.dk[keys[t] + d] += scale * ds * q[row + d];
          }
        }
      }
    }
  }
  return out;
}

}  // namespace ordo::testing
