#include "runtime/measure/overlap_check.hpp"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "runtime/measure/rank_stand.hpp"
#include "runtime/peers/communicator.hpp"

namespace ordo::measure {
namespace {

class Check {
 public:
  Check(const RankBench& with, const OverlapGemm& problem, std::uint64_t seed)
      : with_(with),
        group_(with.communicator.impl()),
        problem_(problem),
        seed_(seed),
        rank_(with.communicator.rank()),
        random_(static_cast<unsigned>(seed * 64 + static_cast<std::uint64_t>(rank_) + 1)) {}

  Result<OverlapCheck> run(const OverlappedGemmOptions& options, int repeats, bool delays) {
    auto product = OverlappedGemm::create(with_.communicator, with_.engine, problem_, options);
    if (!product) return product.error();
    product_.emplace(*std::move(product));
    if (auto all = group_.conclude(allocate()); !all) return all.error();
    OverlapCheck out;
    out.choice = product_->choice();
    if (auto ok = launch(*first_); !ok) return ok.error();
    const auto deviation = hold_against_fp64();
    if (auto all = group_.conclude(deviation ? Result<void>() : Result<void>(deviation.error())); !all) return all.error();
    out.deviation = *deviation;
    for (; out.repeats < repeats; ++out.repeats) {
      if (delays) delay();
      if (auto ok = launch(*again_); !ok) return ok.error();
      auto differing = helpers_->count_differing_words(*first_, *again_, stream());
      if (auto all = group_.conclude(differing ? Result<void>() : Result<void>(differing.error())); !all) return all.error();
      out.differing += *differing;
    }
    return shared(out);
  }

 private:
  [[nodiscard]] CUstream stream() const { return with_.bench.stream().get(); }

  Result<void> allocate() {
    auto helpers = with_.bench.helpers();
    if (!helpers) return helpers.error();
    helpers_ = *helpers;
    auto inputs = RankInputs::create(problem_, rank_, 8);
    if (!inputs) return inputs.error();
    in_ = *std::move(inputs);
    if (auto ok = in_.fill(*helpers_, problem_.dtype, seed_, rank_, stream()); !ok) return ok;
    auto output = make_output(problem_, rank_);
    if (!output) return output.error();
    d_ = *std::move(output);
    view_ = product_->output().data != nullptr ? product_->output() : d_.view();
    const std::int64_t rows = std::max<std::int64_t>(output_shape(problem_, rank_).rows, 1);
    bytes_ = static_cast<std::size_t>(rows * view_.stride * (problem_.out == OutputType::fp32 ? 4 : 2));
    for (auto* kept : {&first_, &again_}) {
      auto made = DeviceBuffer::allocate(bytes_);
      if (!made) return made.error();
      kept->emplace(*std::move(made));
    }
    return {};
  }

  void delay() {
    constexpr unsigned kMostMicroseconds = 3000;
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % kMostMicroseconds));
  }

  /// Runs the product into a poisoned D and copies that to `to`.
  Result<void> launch(const DeviceBuffer& to) {
    const Driver& d = group_.driver();
    const auto data = reinterpret_cast<CUdeviceptr>(view_.data);
    if (auto ok = d.check(d.memsetD8Async(data, 0xff, bytes_, stream()), "cuMemsetD8Async"); !ok) return ok;
    if (auto ok = product_->launch({in_.a.view(), in_.b.view(), view_, in_.bias.view().data}, stream()); !ok) return ok;
    if (auto ok = d.check(d.memcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(to.data()), data, bytes_, stream()), "copy of D"); !ok)
      return ok;
    const auto deadline = peers::Deadline::after(2 * group_.options.timeout + peers::Milliseconds(2000));
    if (auto done = peers::wait_for_stream(d, stream(), *group_.watchdog, deadline); !done) return done;
    return with_.communicator.status();
  }

  /// The other ranks' inputs are made here a second time.
  Result<GemmDeviation> hold_against_fp64() {
    std::vector<RankInputs> others;
    others.reserve(static_cast<std::size_t>(problem_.ranks));
    for (int q = 0; q < problem_.ranks; ++q) {
      auto made = q == rank_ ? Result<RankInputs>(RankInputs{}) : RankInputs::create(problem_, q, 8);
      if (!made) return made.error();
      if (q != rank_) {
        if (auto ok = made->fill(*helpers_, problem_.dtype, seed_, q, stream()); !ok) return ok.error();
      }
      others.push_back(*std::move(made));
    }
    std::vector<const RankInputs*> all;
    all.reserve(others.size());
    for (int q = 0; q < problem_.ranks; ++q) all.push_back(q == rank_ ? &in_ : &others[static_cast<std::size_t>(q)]);
    if (auto ok = with_.bench.stream().synchronize(); !ok) return ok.error();
    const bool rounded = product_->choice().plan.partial == OutputType::same;
    return compare_with_fp64(problem_, rank_, all, {first_->data(), view_.stride}, rounded, *helpers_);
  }

  Result<OverlapCheck> shared(OverlapCheck mine) {
    std::vector<double> values{mine.deviation.worst, static_cast<double>(mine.deviation.beyond),
                               static_cast<double>(mine.differing)};
    if (auto ok = largest_over(with_.communicator)(values); !ok) return ok.error();
    mine.deviation = {values[0], static_cast<std::uint64_t>(values[1])};
    mine.differing = static_cast<std::uint64_t>(values[2]);
    return mine;
  }

  const RankBench& with_;
  Communicator::Impl& group_;
  OverlapGemm problem_;
  std::uint64_t seed_;
  int rank_;
  std::minstd_rand random_;
  std::optional<HelperKernels> helpers_;
  RankInputs in_;
  DeviceMatrix d_;
  MatrixView view_;
  std::size_t bytes_ = 0;
  std::optional<DeviceBuffer> first_, again_;
  std::optional<OverlappedGemm> product_;
};

}  // namespace

Result<OverlapCheck> check_overlap(const RankBench& with, const OverlapGemm& problem, const OverlappedGemmOptions& options,
                                   std::uint64_t seed, int repeats, bool delays) {
  return Check(with, problem, seed).run(options, repeats, delays);
}

}  // namespace ordo::measure
