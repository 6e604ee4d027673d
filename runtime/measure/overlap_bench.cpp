#include "runtime/measure/overlap_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/measure/event_stand.hpp"
#include "runtime/measure/overlap_inputs.hpp"
#include "runtime/measure/rank_stand.hpp"
#include "runtime/peers/overlap_runner.hpp"

namespace ordo::measure {
namespace {

bool gathers(OverlapOp op) { return op == OverlapOp::all_gather_gemm || op == OverlapOp::all_to_all_gemm; }

/// The product of one rank with nothing to exchange.
OverlapGemm problem_alone(const OverlapGemm& problem) {
  OverlapGemm out = problem;
  out.op = OverlapOp::gemm;
  out.ranks = 1;
  return out;
}

/// Copies to the peers that no kernel waits for, of the sizes that an exchange would move.
class UnrelatedCopies {
 public:
  static Result<std::unique_ptr<UnrelatedCopies>> create(Communicator::Impl& group, const OverlapGemm& problem,
                                                         const OverlapPlan& plan) {
    auto request = peers::exchange_request(problem, plan, true);
    if (!request) return request.error();
    std::unique_ptr<UnrelatedCopies> out(new UnrelatedCopies(group));
    std::size_t most = 0;
    for (std::size_t i = 0; i < request->places.size(); ++i) {
      const overlap::Transfer& transfer = request->schedule.transfers[i];
      const std::size_t bytes = request->places[i].bytes;
      most = std::max(most, bytes);
      if (transfer.from == group.links.rank() && bytes > 0) out->copies_.emplace_back(transfer.to, bytes);
    }
    auto memory = group.allocate(most + 256);
    if (!memory) return memory.error();
    out->target_ = *std::move(memory);
    if (auto all = group.conclude(out->make(most + 256)); !all) return all.error();
    return out;
  }
  UnrelatedCopies(const UnrelatedCopies&) = delete;
  UnrelatedCopies& operator=(const UnrelatedCopies&) = delete;
  ~UnrelatedCopies() { group_.release(std::move(target_)); }

  /// `product` on `stream`, beside the copies; `stream` goes on behind both.
  Result<void> beside(CUstream stream, const std::function<Result<void>()>& product) {
    const Driver& d = group_.driver();
    if (auto ok = begun_->record(stream); !ok) return ok;
    if (auto ok = d.check(d.streamWaitEvent(stream_->get(), begun_->get(), 0), "cuStreamWaitEvent"); !ok) return ok;
    for (const auto& [to, bytes] : copies_) {
      const CUresult copied =
          d.memcpyDtoDAsync(target_.of(to), reinterpret_cast<CUdeviceptr>(source_.data()), bytes, stream_->get());
      if (auto ok = d.check(copied, "an unrelated copy"); !ok) return ok;
    }
    if (auto ok = product(); !ok) return ok;
    if (auto ok = ended_->record(stream_->get()); !ok) return ok;
    return d.check(d.streamWaitEvent(stream, ended_->get(), 0), "cuStreamWaitEvent");
  }

 private:
  explicit UnrelatedCopies(Communicator::Impl& group) : group_(group) {}
  Result<void> make(std::size_t bytes) {
    auto source = DeviceBuffer::allocate(bytes);
    if (!source) return source.error();
    source_ = *std::move(source);
    auto stream = Stream::create();
    if (!stream) return stream.error();
    auto begun = Event::create(), ended = Event::create();
    if (!begun) return begun.error();
    if (!ended) return ended.error();
    stream_.emplace(*std::move(stream));
    begun_.emplace(*std::move(begun));
    ended_.emplace(*std::move(ended));
    return {};
  }

  Communicator::Impl& group_;
  std::vector<std::pair<int, std::size_t>> copies_;  ///< to, bytes
  peers::SymmetricMemory target_;
  DeviceBuffer source_;
  std::optional<Stream> stream_;
  std::optional<Event> begun_, ended_;
};

/// All of one measurement: memory, what is launched, and the stand.
class Bench {
 public:
  Bench(const RankBench& with, const OverlapPeers& peers, const OverlapGemm& problem, const MeasurementPolicy& policy)
      : with_(with),
        peers_(peers),
        group_(with.communicator.impl()),
        problem_(problem),
        local_(problem_alone(problem)),
        policy_(policy),
        largest_(largest_over(with.communicator)) {}

  Result<OverlapReport> run(const OverlappedGemmOptions& options, std::uint64_t seed) {
    auto product = OverlappedGemm::create(with_.communicator, with_.engine, problem_, options);
    if (!product) return product.error();
    product_.emplace(*std::move(product));
    report_.choice = product_->choice();
    if (auto all = group_.conclude(allocate(seed)); !all) return all.error();
    auto stand = EventStand::create(stream(), with_.bench.nvml());
    if (!stand) return stand.error();
    add_ordo(*stand);
    if (auto ok = add_beside_copy(*stand); !ok) return ok.error();
    add_peers(*stand);
    if (auto ok = measure(*stand); !ok) return ok.error();
    if (auto healthy = with_.communicator.status(); !healthy) return healthy.error();
    return report_;
  }

 private:
  [[nodiscard]] CUstream stream() const { return with_.bench.stream().get(); }

  Result<void> allocate(std::uint64_t seed) {
    const int rank = with_.communicator.rank();
    auto helpers = with_.bench.helpers();
    if (!helpers) return helpers.error();
    auto inputs = RankInputs::create(problem_, rank);
    if (!inputs) return inputs.error();
    in_ = *std::move(inputs);
    if (auto ok = in_.fill(*helpers, problem_.dtype, seed, rank, stream()); !ok) return ok;
    auto output = make_output(problem_, rank);
    if (!output) return output.error();
    d_ = *std::move(output);
    auto whole = DeviceMatrix::create(problem_.n, problem_.m, problem_.out == OutputType::fp32 ? 4 : 2, 0);
    if (!whole) return whole.error();
    whole_d_ = *std::move(whole);
    if (gathers(problem_.op)) {
      auto gathered = DeviceMatrix::create(problem_.k, problem_.m, 2, 0);
      if (!gathered) return gathered.error();
      whole_a_ = *std::move(gathered);
      if (auto ok = whole_a_.fill_random(*helpers, problem_.dtype, seed + 1, stream()); !ok) return ok;
    }
    auto kernel = with_.engine.prepare(plan_alone(report_.choice.plan, with_.engine.target()));
    if (!kernel) return kernel.error();
    kernel_ = *std::move(kernel);
    return {};
  }

  [[nodiscard]] OverlapGemmTensors local_tensors() const {
    return {gathers(problem_.op) ? whole_a_.view() : in_.a.view(), in_.b.view(), whole_d_.view(), in_.bias.view().data};
  }
  void add(EventStand& stand, const char* name, EventStand::Launch launch) {
    report_.times.push_back({name, {}, 0});
    subjects_.push_back(stand.add(std::move(launch)));
  }
  Result<void> launch_alone() { return kernel_->launch(local_, local_tensors(), stream()); }

  void add_ordo(EventStand& stand) {
    const bool shared = product_->output().data != nullptr;
    const OverlapGemmTensors tensors{in_.a.view(), in_.b.view(), shared ? MatrixView{} : d_.view(), in_.bias.view().data};
    add(stand, "ordo", [this, tensors] { return product_->launch(tensors, stream()); });
    add(stand, "ordo-gemm", [this] { return launch_alone(); });
  }

  Result<void> add_beside_copy(EventStand& stand) {
    if (with_.communicator.transport() == PeerTransport::nccl) {
      report_.skipped.emplace_back("ordo-gemm-beside-copy: the ranks have no peer access");
      return {};
    }
    auto copies = UnrelatedCopies::create(group_, problem_, report_.choice.plan);
    if (!copies) return copies.error();
    copies_ = *std::move(copies);
    add(stand, "ordo-gemm-beside-copy", [this] { return copies_->beside(stream(), [this] { return launch_alone(); }); });
    return {};
  }

  /// Why the peers cannot compute this problem; empty if they can.
  [[nodiscard]] std::string unequal() const {
    const std::int64_t cut = problem_.op == OverlapOp::all_to_all_gemm   ? problem_.k
                             : problem_.op == OverlapOp::gemm_all_to_all ? problem_.n
                                                                         : problem_.m;
    if (cut % problem_.ranks != 0) return fmt::format("NCCL cannot cut {} into {} equal slices", cut, problem_.ranks);
    if (problem_.k % 8 != 0 || problem_.n % 8 != 0) return "rows of matrices are padded";
    if (problem_.bias || problem_.activation != Activation::none) return "cuBLAS is called without bias and activation";
    return "";
  }

  void add_peers(EventStand& stand) {
    if (const std::string reason = unequal(); !reason.empty()) {
      report_.skipped.push_back("nccl, cublas: " + reason);
      return;
    }
    report_.skipped.insert(report_.skipped.end(), peers_.missing.begin(), peers_.missing.end());
    if (peers_.nccl) add(stand, "nccl", [this] { return exchange(); });
    if (peers_.cublas) add(stand, "cublas", [this] { return multiply(); });
    if (peers_.nccl && peers_.cublas) add(stand, "nccl-cublas", [this] { return one_after_the_other(); });
  }

  Result<void> multiply() { return peers_.cublas->multiply(local_, local_tensors(), stream()); }

  Result<void> exchange() {
    void* mine = gathers(problem_.op) ? in_.a.view().data : d_.view().data;
    void* all = gathers(problem_.op) ? whole_a_.view().data : whole_d_.view().data;
    return peers_.nccl->exchange(problem_, mine, all, stream());
  }

  Result<void> one_after_the_other() {
    if (gathers(problem_.op)) {
      if (auto ok = exchange(); !ok) return ok;
    }
    if (auto ok = multiply(); !ok) return ok;
    return gathers(problem_.op) ? Result<void>() : exchange();
  }

  Result<void> measure(EventStand& mine) {
    RankStand stand(mine, largest_);
    Measuring measuring(stand, policy_);
    const auto samples = measuring.rounds(subjects_);
    if (!samples) return samples.error();
    for (std::size_t i = 0; i < subjects_.size(); ++i) {
      report_.times[i].steady = (*samples)[i];
      auto burst = measuring.burst(subjects_[i]);
      if (!burst) return burst.error();
      report_.times[i].burst_ms = *burst;
    }
    return {};
  }

  const RankBench& with_;
  const OverlapPeers& peers_;
  Communicator::Impl& group_;
  OverlapGemm problem_, local_;
  MeasurementPolicy policy_;
  Largest largest_;
  OverlapReport report_;
  RankInputs in_;
  DeviceMatrix d_, whole_d_, whole_a_;
  std::optional<OverlapGemmKernel> kernel_;
  std::optional<OverlappedGemm> product_;
  std::unique_ptr<UnrelatedCopies> copies_;
  std::vector<std::size_t> subjects_;
};

std::optional<double> share(const OverlapReport& report, double (*time)(const OverlapTimes&)) {
  const OverlapTimes *ordo = report.find("ordo"), *gemm = report.find("ordo-gemm"), *nccl = report.find("nccl");
  if (ordo == nullptr || gemm == nullptr || nccl == nullptr) return std::nullopt;
  return 1 - (time(*ordo) - time(*gemm)) / time(*nccl);
}

}  // namespace

OverlapPlan plan_alone(const OverlapPlan& plan, const Target& target) {
  OverlapPlan out = plan;
  out.op = OverlapOp::gemm;
  out.ranks = out.sub_slices = 1;
  out.partial = OutputType::same;
  out.transport = Transport::copy_engine;
  out.route = OverlapRoute::direct;
  out.group_m = OverlapPlan{}.group_m;
  out.workers = target.sm_count / plan.cluster;
  return out;
}

const OverlapTimes* OverlapReport::find(std::string_view name) const {
  const auto at = std::find_if(times.begin(), times.end(), [&](const OverlapTimes& one) { return one.name == name; });
  return at == times.end() ? nullptr : &*at;
}

std::optional<double> OverlapReport::hidden() const {
  return share(*this, [](const OverlapTimes& of) { return of.steady.ms_median; });
}

std::optional<double> OverlapReport::hidden_burst() const {
  return share(*this, [](const OverlapTimes& of) { return of.burst_ms; });
}

Result<OverlapPeers> OverlapPeers::open(const RankBench& with, const std::string& path) {
  OverlapPeers out;
  auto nccl = Collectives::connect(with.communicator);
  if (auto healthy = with.communicator.status(); !healthy) return healthy.error();
  if (nccl) {
    out.nccl.emplace(*std::move(nccl));
  } else {
    out.missing.push_back("nccl: " + nccl.error().message);
  }
  auto cublas = Cublas::open(path);
  std::vector<double> lacks{cublas ? 0.0 : 1.0};
  if (auto ok = largest_over(with.communicator)(lacks); !ok) return ok.error();
  if (lacks.front() == 0) {
    out.cublas.emplace(*std::move(cublas));
  } else {
    out.missing.push_back("cublas: " + (cublas ? "another rank lacks it" : cublas.error().message));
  }
  return out;
}

Result<OverlapReport> bench_overlap(const RankBench& with, const OverlapPeers& peers, const OverlapGemm& problem,
                                    const OverlappedGemmOptions& options, const MeasurementPolicy& policy, std::uint64_t seed) {
  return Bench(with, peers, problem, policy).run(options, seed);
}

}  // namespace ordo::measure
