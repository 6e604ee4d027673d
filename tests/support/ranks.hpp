// Runs one function a rank, as threads or as processes, with a world of sockets between them.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace ordo::test {

/// What a rank ended with: empty for success, else an error's message.
using Ending = std::string;

/// An address that no other test uses.
std::string new_address();

/// `body(rank)` on a thread a rank; the endings by rank.
std::vector<Ending> run_threads(int ranks, const std::function<Ending(int rank)>& body);

/// `body(rank)` in a process a rank. A process that was killed ends with "signal N".
std::vector<Ending> run_processes(int ranks, const std::function<Ending(int rank)>& body);

/// Open file descriptors of this process.
int open_descriptors();

}  // namespace ordo::test
