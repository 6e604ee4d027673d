// All ranks of one OverlapGemm on one device, in one process: their buffers side by side, their kernels on streams of their own,
// each with its share of the SMs, and copies that move the slices as a communicator's copy engines would.
#pragma once

#include <memory>
#include <vector>

#include "tests/gpu/gemm_problem.hpp"
#include "tests/gpu/gpu.hpp"

namespace ordo::test {

class SimulatedRanks {
 public:
  /// Random A, B and bias of every rank. The plan's workers should be few enough for all ranks to be resident at once.
  static Result<SimulatedRanks> create(Gpu& device, const HelperKernels& kernels, const OverlapGemm& problem,
                                       const OverlapGemmKernel& kernel, std::uint64_t seed);

  /// Poisons outputs and buffers, launches every rank in an order and with disturbances that follow from `delays`, moves the
  /// slices, and waits for it all. Errors: a launch failed, a kernel's wait failed.
  Result<void> run(std::uint64_t delays);

  /// Launches `rank` alone with `timeout_ns` for its waits, nothing arriving.
  Result<OverlapFailure> run_alone(int rank, std::uint64_t timeout_ns, bool aborted);

  /// Every rank's D against fp64; empty: within the bounds, and nothing outside D written.
  Result<std::string> check(double& worst);

  /// Bytes of every D, rank by rank.
  Result<std::vector<unsigned char>> outputs() const;

  [[nodiscard]] const OverlapGemm& problem() const { return problem_; }

 private:
  struct Rank {
    measure::RankInputs in;
    DeviceMatrix d;
    DeviceBuffer received, sent;
    DeviceBuffer words;  ///< ready, done, the abort word, and the failure record
    std::unique_ptr<Stream> stream, copies;
    std::vector<void*> peer_slot;
    std::vector<std::uint32_t*> peer_ready;
  };

  SimulatedRanks(Gpu& device, const HelperKernels& kernels, const OverlapGemm& problem, OverlapGemmKernel kernel)
      : device_(&device),
        kernels_(&kernels),
        problem_(problem),
        kernel_(std::move(kernel)),
        buffers_(overlap_buffers(problem, kernel_.plan())) {}

  [[nodiscard]] int ranks() const { return static_cast<int>(problem_.ranks); }
  [[nodiscard]] std::uint32_t* ready(const Rank& rank) const { return static_cast<std::uint32_t*>(rank.words.data()); }
  [[nodiscard]] std::uint32_t* done(const Rank& rank) const { return ready(rank) + buffers_.words; }
  [[nodiscard]] OverlapExchange exchange(int rank) const;
  Result<Rank> make_rank(int rank, std::uint64_t seed) const;
  Result<void> prepare();
  Result<void> push(int from, int to);
  Result<void> push_finished(int from, int to);
  Result<void> check_waits() const;
  Result<void> finish_copies();
  Result<void> push_chunk(int from, int to, int slice, int chunk, void* destination, const void* source, std::int64_t pitch_bytes,
                          bool waits);
  Result<std::string> check_rank(int rank, double& worst);

  Gpu* device_;
  const HelperKernels* kernels_;
  OverlapGemm problem_;
  OverlapGemmKernel kernel_;
  OverlapBuffers buffers_;
  std::vector<Rank> all_;
};

}  // namespace ordo::test
