// ordo launch: the ranks of a job on this host.
#include <memory>

#include "cli/launcher.hpp"
#include "cli/options.hpp"
#include "cli/report.hpp"
#include "cli/verbs/verbs.hpp"
#include "runtime/peers/socket.hpp"

namespace ordo::cli {

Verb add_launch(CLI::App& app) {
  struct LaunchOptions {
    LaunchRequest request;
    double grace = 3;
  };
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* verb = app.add_subcommand("launch", "Start one process a rank on this host");
  verb->add_option("-n,--ranks", options->request.ranks, "How many")
      ->required()
      ->check(kInteger)
      ->check(CLI::Range(1, 64))
      ->type_name("N");
  verb->add_option("--master-port", options->request.port, "TCP port where the ranks meet (a free one)")->type_name("PORT");
  verb->add_option("--grace", options->grace, "Seconds between the request to end and the kill (3)")
      ->check(CLI::Range(0.0, 3600.0))
      ->type_name("S");
  verb->add_option("command", options->request.command, "What each rank runs, behind --")->required()->type_name("COMMAND...");
  verb->footer(
      "Example:\n  ordo launch -n 2 -- ./train --config tp2.toml\n"
      "Sets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun does. When one rank fails "
      "the others are\n"
      "ended. The exit code is that of the first rank that failed, 128 + signal for one that was killed.");
  return {verb, [options]() -> Result<int> {
            LaunchRequest request = options->request;
            request.grace = std::chrono::milliseconds(static_cast<std::int64_t>(options->grace * 1000));
            if (request.port == 0) {
              auto port = peers::free_tcp_port();
              if (!port) return port.error();
              request.port = *port;
            }
            return launch_ranks(request);
          }};
}

}  // namespace ordo::cli
