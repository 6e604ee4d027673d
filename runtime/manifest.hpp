// Records which plans a run asks for, so that they can be compiled ahead of the next.
#pragma once

#include <functional>
#include <mutex>
#include <set>
#include <string>

#include "ordo/shape_list.hpp"

namespace ordo {

/// Thread-safe; processes may record in one file. Appends each plan once as a [[plan]] table of a shape list.
class Manifest {
 public:
  /// Empty `path`: $ORDO_MANIFEST, and without it nothing is recorded. `warn` hears once that the file cannot be written.
  Manifest(std::string path, std::function<void(const std::string&)> warn);
  void record(const Plan& plan) { record({.name = "", .problems = {}, .plans = {plan}}); }
  void record(const OverlapPlan& plan) { record({.name = "", .problems = {}, .plans = {}, .overlap_plans = {plan}}); }

 private:
  void record(const ShapeList& plan);

  std::string path_;
  std::function<void(const std::string&)> warn_;
  std::mutex mutex_;  // of the two below
  std::set<std::string> recorded_;
  bool failed_ = false;
};

}  // namespace ordo
