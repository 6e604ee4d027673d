// What a Tuner holds: shared by its parts, and the door by which tests bring a device of their own.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ordo/tuner.hpp"
#include "runtime/process.hpp"
#include "runtime/tuner/decide.hpp"
#include "runtime/tuner/log.hpp"
#include "runtime/tuner/measurer.hpp"
#include "runtime/tuner/neighbours.hpp"

namespace ordo::tuner {

/// Where times are measured here, without opening the device's context: `sources.here`; and how to open it for measuring.
struct Device {
  std::optional<cache::MeasuredOn> here;  ///< nullopt: no GPU
  std::function<Result<std::unique_ptr<Measurer>>()> open;
};

/// The rows of one problem that count here, and what is to be said of the others.
struct Usable {
  std::vector<Measured> complete;  ///< plans with all rounds of one policy
  std::string policy;              ///< that policy's text
  std::vector<std::string> notes;
};

}  // namespace ordo::tuner

namespace ordo {

struct Tuner::Impl {
  Impl(Engine made_for, tuner::Device its_device);

  MadeIn process;
  Engine engine;
  tuner::Device device;
  tuner::Log log;
  std::mutex tuning;                           ///< held by tune()
  std::unique_ptr<tuner::Measurer> measurer;   ///< made by the first tune()
  std::mutex mutex;                            ///< of what follows
  std::map<std::string, TunedPlan> answers;    ///< by problem and options
  std::map<std::string, std::string> digests;  ///< of generated sources, by the plan's text

  /// Digest of everything that is generated for a plan; empty for a plan that nothing is generated for.
  std::string kernels_of(Plan plan);
  /// The plans to measure, the planner's choice first.
  Result<std::vector<Candidate>> candidates(const AttentionBackward& problem, const TuneOptions& options) const;
  tuner::Usable usable(const AttentionBackward& problem, const TuneOptions& options, const std::string& fingerprint);
  std::vector<tuner::Neighbour> neighbours(const AttentionBackward& problem, const TuneOptions& options);
  Result<TunedPlan> answer(const AttentionBackward& problem, const TuneOptions& options);
  void forget();
};

}  // namespace ordo
