// Starts the ranks of a job on this host, as torchrun does, and ends them together.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "ordo/error.hpp"

namespace ordo::cli {

struct LaunchRequest {
  int ranks = 1;
  std::uint16_t port = 0;                 ///< MASTER_PORT
  std::chrono::milliseconds grace{3000};  ///< between the request to end and the kill
  std::vector<std::string> command;
};

/// Runs `command` once a rank with RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, each in a
/// process group of its own, and waits for all. Once one fails, or this process is asked to end (SIGINT, SIGTERM), the others are
/// asked to end and, after `grace`, killed. Returns 0, or the exit code of the first that failed (128 + signal for one that was
/// killed). Errors: io (a command that cannot be started). One call at a time a process: it takes the signals.
Result<int> launch_ranks(const LaunchRequest& request);

}  // namespace ordo::cli
