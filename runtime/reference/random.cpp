// Random inputs that are the same on every platform: integers, IEEE arithmetic and square roots only.
#include <algorithm>
#include <cmath>

#include "runtime/reference/attention.hpp"
#include "runtime/reference/numbers.hpp"
#include "runtime/reference/workers.hpp"

namespace ordo::reference {
namespace {

// SplitMix64's finaliser (Steele, Lea and Flood, 2014).
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// In (-1, 1), from 53 bits.
double uniform(std::uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-52 - 1.0; }

// Natural logarithm of 0 < x <= 1 by its atanh series: libm's differs between platforms in the last bit.
double logarithm(double x) {
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);  // in [0.5, 1)
  if (mantissa < 0.70710678118654752) {
    mantissa *= 2;
    --exponent;
  }
  const double s = (mantissa - 1) / (mantissa + 1);  // |s| < 0.172
  double sum = 0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * s * s + 1.0 / k;
  return 2 * s * sum + exponent * 0.69314718055994531;
}

// Standard normal number `index` of a stream: Marsaglia's polar method, a counter in place of a state.
double normal(std::uint64_t stream, std::uint64_t index) {
  for (std::uint64_t attempt = 0;; ++attempt) {
    const std::uint64_t key = mix(stream + mix(index + (attempt << 56)));
    const double u = uniform(mix(key)), v = uniform(mix(key ^ 0x5851f42d4c957f2du));
    const double square = u * u + v * v;
    if (square < 1) return u * std::sqrt(-2 * logarithm(square) / square);
  }
}

std::vector<std::uint16_t> normals(Workers& workers, DType dtype, std::int64_t count, std::uint64_t stream) {
  constexpr std::int64_t kBlock = 1 << 16;
  std::vector<std::uint16_t> out(static_cast<std::size_t>(count));
  workers.run((count + kBlock - 1) / kBlock, [&](std::int64_t block, int) {
    for (std::int64_t i = block * kBlock; i < std::min(count, (block + 1) * kBlock); ++i) {
      out[static_cast<std::size_t>(i)] = narrow(dtype, normal(stream, static_cast<std::uint64_t>(i)));
    }
  });
  return out;
}

}  // namespace

HostInputs random_operands(const AttentionBackward& problem, std::uint64_t seed) {
  const std::int64_t q = problem.batch * problem.seqlen_q * problem.heads * problem.head_dim;
  const std::int64_t k = problem.batch * problem.seqlen_k * problem.kv_heads * problem.head_dim;
  const auto stream = [seed](std::uint64_t tensor) { return mix(mix(seed) + tensor); };
  Workers workers(0);
  HostInputs inputs;
  inputs.q = normals(workers, problem.dtype, q, stream(1));
  inputs.k = normals(workers, problem.dtype, k, stream(2));
  inputs.v = normals(workers, problem.dtype, k, stream(3));
  inputs.d_o = normals(workers, problem.dtype, q, stream(4));
  return inputs;
}

HostInputs random_inputs(const AttentionBackward& problem, float scale, std::uint64_t seed) {
  HostInputs inputs = random_operands(problem, seed);
  forward(problem, scale, inputs);
  return inputs;
}

}  // namespace ordo::reference
