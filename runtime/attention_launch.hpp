// Workspace and launches of one attention backward: the step from loaded kernels to work on a stream.
#pragma once

#include <cuda.h>

#include <cstddef>

#include "ordo/ordo.hpp"
#include "runtime/driver.hpp"

namespace ordo {

/// Offsets in the caller's workspace, bytes, each aligned to 256.
struct WorkspaceLayout {
  std::size_t dq = 0;
  std::size_t neg_lse2 = 0;
  std::size_t neg_delta = 0;
  std::size_t control = 0;
  std::size_t row_scale = 0, poison = 0, key_exponents = 0;  ///< exact only
  std::size_t key_exponent_bytes = 0;
  std::size_t stalls = 0, stall_bytes = 0;  ///< Flavour::stalls only: device AdderClocks, two a CTA
  std::size_t total = 0;
};

/// For pairs that check_fit accepts.
WorkspaceLayout workspace_layout(const AttentionBackward& problem, const Plan& plan, Flavour flavour);

/// The kernels of a plan, loaded on the current device, dynamic shared memory allowed.
struct AttentionFunctions {
  CUfunction main = nullptr, preprocess = nullptr;
  CUfunction convert = nullptr;           ///< not for ordered
  CUfunction scales = nullptr;            ///< exact only
  int resident_clusters = 0;              ///< clusters of the main kernel that the device holds at once
  const unsigned int* arrival = nullptr;  ///< device table of schedule arrival
};

/// Checks pointers, strides and scale against what TMA and 16-byte loads need. Errors: invalid_argument, naming the tensor.
Result<void> check_tensors(const AttentionBackward& problem, const AttentionBackwardTensors& tensors);

/// Enqueues the backward on `stream` of the current context. The problem fits the plan and the tensors are checked.
Result<void> launch_attention_backward(const Driver& driver, const AttentionFunctions& functions,
                                       const AttentionBackward& problem, const Plan& plan, Flavour flavour,
                                       const AttentionBackwardTensors& tensors, void* workspace, CUstream stream);

}  // namespace ordo
