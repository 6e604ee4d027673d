// Communicators on the fake driver.
#pragma once

#include <memory>
#include <string>

#include "runtime/peers/communicator.hpp"
#include "tests/support/ranks.hpp"

namespace ordo::test {

/// The fake driver, and no NCCL.
peers::Platform fake_platform(const std::string& host = "host");

/// Joins the world at `address` and makes the communicator of `rank`.
Result<std::unique_ptr<Communicator::Impl>> fake_communicator(const std::string& address, int rank, int ranks,
                                                              CommunicatorOptions options = {},
                                                              const peers::Platform& platform = fake_platform());

}  // namespace ordo::test
