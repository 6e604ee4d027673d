// The tensors of one attention layer in a safetensors file: q k v o do lse in, dq dk dv out.
#pragma once

#include <map>
#include <string>

#include "ordo/error.hpp"
#include "ordo/problem.hpp"
#include "runtime/reference/attention.hpp"

namespace ordo::cli {

struct Layer {
  AttentionBackward problem;
  reference::HostInputs inputs;  ///< o and lse are empty where the file has them not
};

/// Shapes and dtype give the problem: q, do and the optional o [batch, seqlen_q, heads, head_dim]; k, v [batch, seqlen_k,
/// kv_heads, head_dim], all BF16 or all F16; the optional lse [batch, heads, seqlen_q] F32. Errors name file, tensor, what is
/// wrong and what is needed: io for a file that is not safetensors, invalid_problem for tensors that do not fit.
Result<Layer> read_layer(const std::string& path, Mask mask);

/// Writes dq, dk and dv with `metadata`.
Result<void> write_gradients(const std::string& path, const AttentionBackward& problem, const reference::HostGradients& gradients,
                             const std::map<std::string, std::string>& metadata);

/// Finds out before the work begins whether `path` can be written and is not `input`.
Result<void> check_output(const std::string& path, const std::string& input);

}  // namespace ordo::cli
