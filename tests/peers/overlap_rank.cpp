#include "tests/peers/overlap_rank.hpp"

#include <cstdlib>
#include <filesystem>

namespace ordo::test {
namespace {

std::string cache_path() {
  if (const char* given = std::getenv("ORDO_CACHE")) return given;
  return (std::filesystem::temp_directory_path() / "ordo-peer-tests.db").string();
}

}  // namespace

Result<std::unique_ptr<OverlapRank>> OverlapRank::create(Communicator& communicator) {
  auto target = target_of_device(communicator.device());
  if (!target) return target.error();
  EngineOptions options;
  options.cache_path = cache_path();
  options.target = *target;
  auto engine = Engine::create(std::move(options));
  if (!engine) return engine.error();
  KernelBuilderOptions helpers;
  helpers.cache_path = cache_path();
  auto bench = measure::Workbench::open(communicator.device(), helpers);
  if (!bench) return bench.error();
  return std::unique_ptr<OverlapRank>(new OverlapRank(communicator, *std::move(engine), *std::move(bench)));
}

Result<std::unique_ptr<OverlapRank::Product>> OverlapRank::Product::create(OverlapRank& rank, const OverlapGemm& problem,
                                                                           const OverlappedGemmOptions& options) {
  auto product = OverlappedGemm::create(rank.communicator_, rank.engine_, problem, options);
  if (!product) return product.error();
  std::unique_ptr<Product> out(new Product(rank, *std::move(product)));
  const int me = rank.communicator_.rank();
  auto inputs = measure::RankInputs::create(problem, me);
  if (!inputs) return inputs.error();
  out->in_ = *std::move(inputs);
  auto helpers = rank.bench_.helpers();
  if (!helpers) return helpers.error();
  if (auto ok = out->in_.fill(*helpers, problem.dtype, 5, me, rank.stream()); !ok) return ok.error();
  auto d = measure::make_output(problem, me);
  if (!d) return d.error();
  out->d_ = *std::move(d);
  out->bytes_ = static_cast<std::size_t>(measure::output_shape(problem, me).rows * out->d().stride *
                                         (problem.out == OutputType::fp32 ? 4 : 2));
  return out;
}

Result<void> OverlapRank::Product::launch() {
  return product_.launch({in_.a.view(), in_.b.view(), d(), in_.bias.view().data}, rank_.stream());
}

Result<void> OverlapRank::Product::poison() {
  const Driver& driver = rank_.group().driver();
  return driver.check(driver.memsetD8Async(reinterpret_cast<CUdeviceptr>(d().data), 0xff, bytes_, rank_.stream()),
                      "cuMemsetD8Async");
}

Result<std::vector<unsigned char>> OverlapRank::Product::result() {
  Communicator::Impl& group = rank_.group();
  const auto deadline = peers::Deadline::after(2 * group.options.timeout + peers::Milliseconds(2000));
  if (auto done = peers::wait_for_stream(group.driver(), rank_.stream(), *group.watchdog, deadline); !done) return done.error();
  if (auto healthy = rank_.communicator_.status(); !healthy) return healthy.error();
  std::vector<unsigned char> bytes(bytes_);
  const CUresult copied = group.driver().memcpyDtoH(bytes.data(), reinterpret_cast<CUdeviceptr>(d().data), bytes.size());
  if (auto ok = group.driver().check(copied, "copy of D"); !ok) return ok.error();
  return bytes;
}

OverlappedGemmOptions by_ring(OverlapRank& rank, const OverlapGemm& problem) {
  OverlappedGemmOptions options;
  options.plan = make_overlap_plan(problem, rank.with().engine.target(), true, OverlapRoute::ring)->plan;
  return options;
}

Body on_rank(std::function<Ending(OverlapRank&)> body) {
  return [body = std::move(body)](Communicator& communicator) -> Ending {
    auto rank = OverlapRank::create(communicator);
    return rank ? body(**rank) : rank.error().message;
  };
}

}  // namespace ordo::test
