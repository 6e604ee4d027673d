// What stands beside a time: whether repeats gave the same bits, and the error of the same plan on a problem small enough to
// check.
#pragma once

#include "tests/bench/suite/device.hpp"

namespace ordo::bench {

/// Five launches into poisoned outputs with differently soiled workspaces.
Result<bool> same_bits(Subject& subject);

struct Accuracy {
  double max_relative_error = 0;  ///< the largest of dq, dk, dv: ||x - fp64|| / ||fp64||
  bool within = false;            ///< each within the bound that the tests hold (see test::Deviation)
};

/// Runs the kernel once on a problem that has a reference.
Result<Accuracy> accuracy(Device& device, test::GpuProblem& problem, const AttentionBackwardKernel& kernel);

}  // namespace ordo::bench
