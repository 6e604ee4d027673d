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

}  // namespace ordo::helpers
