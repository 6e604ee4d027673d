// The `ordo` command.
#pragma once

namespace ordo::cli {

/// Runs the command line and returns the exit code: 0 ok, 1 a check failed, 2 bad usage, 3 the environment lacks something.
int run(int argc, char** argv);

}  // namespace ordo::cli
