#include "tests/peers/two_gpus.hpp"

#include <algorithm>

#include "runtime/device.hpp"

namespace ordo::test {

int gpus() {
  static const int count = [] {
    const auto endings = run_processes(1, [](int) -> Ending { return std::to_string(device_count() ? *device_count() : 0); });
    return std::min(8, std::atoi(endings[0].c_str()));
  }();
  return count;
}

std::vector<Ending> on_two_gpus(Ranks kind, const CommunicatorOptions& options, const Body& body) {
  return on_gpus(2, kind, options, body);
}

std::vector<Ending> on_gpus(int ranks, Ranks kind, const CommunicatorOptions& options, const Body& body) {
  const std::string address = new_address();
  const auto one = [&, devices = gpus()](int rank) -> Ending {
    auto world = join_world(address, rank, ranks, options.timeout);
    if (!world) return world.error().message;
    world->local_rank = rank % devices;
    auto made = Communicator::create(*world, options);
    return made ? body(*made) : made.error().message;
  };
  if (kind == Ranks::processes) return run_processes(ranks, one);
  const auto all = run_processes(1, [&](int) -> Ending {
    Ending joined;
    for (const Ending& ending : run_threads(ranks, one)) joined += ending;
    return joined;
  });
  return all;
}

void check_all(const std::vector<Ending>& endings) {
  for (const Ending& ending : endings) CHECK(ending == "");
}

}  // namespace ordo::test
