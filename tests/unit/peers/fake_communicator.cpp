#include "tests/unit/peers/fake_communicator.hpp"

#include "tests/unit/peers/fake_driver.hpp"

namespace ordo::test {

peers::Platform fake_platform(const std::string& host) {
  return {&fake::driver(), []() -> Result<const peers::Nccl*> { return Error{ErrorCode::unsupported, "no NCCL here"}; }, host};
}

Result<std::unique_ptr<Communicator::Impl>> fake_communicator(const std::string& address, int rank, int ranks,
                                                              CommunicatorOptions options, const peers::Platform& platform) {
  auto world = join_world(address, rank, ranks, options.timeout);
  if (!world) return world.error();
  return Communicator::Impl::create(platform, *world, options);
}

}  // namespace ordo::test
