// Parameters of the helper kernels, shared by host and device.
#pragma once

namespace ordo::helpers {

inline constexpr int kThreads = 256;
inline constexpr int kBlocks = 1056;  // a few a SM; each thread strides over the rest

/// ordo_normal
struct NormalParams {
  unsigned int* out;  ///< pairs of 16-bit elements
  long long pairs;
  unsigned long long seed;
  bool fp16;  ///< else bf16
};

/// ordo_differ
struct DifferParams {
  const unsigned int* a;
  const unsigned int* b;
  long long words;
  unsigned long long* count;  ///< is added to
};

/// A matrix of 16-bit elements: (i, j) is data[i * stride + j], or data[j * stride + i] if `column`.
struct Operand {
  const void* data;
  long long stride;
  bool column;
};

/// ordo_product: on [m][n], sum += A B, parts += |A B|, mass += |A| |B|.
struct ProductParams {
  double *sum, *parts, *mass;
  int m, n, k;
  bool fp16;  ///< else bf16
  Operand a, b;
};

/// ordo_deviation: elements of D held against activation(sum + bias). Allowed: relative |D| + of_parts parts + of_mass mass.
struct DeviationParams {
  const double *sum, *parts, *mass;  ///< [m][n]
  const void* bias;                  ///< null: none
  const void* d;
  long long stride;
  int m, n;
  bool fp16, fp32;  ///< D's type: fp32, else fp16, else bf16
  int activation;   ///< as ordo::Activation counts them
  double relative, of_parts, of_mass;
  unsigned int* result;  ///< worst error over allowed error, as a float's bits; elements beyond it
};

/// ordo_padding: bytes of [lines][pitch] behind the first `used` of a line, and of `guard` behind the last line, that are not
/// 0xff.
struct PaddingParams {
  const unsigned char* data;
  long long lines, pitch, used, guard;
  unsigned long long* count;  ///< is added to
};

}  // namespace ordo::helpers
