// Runs the steps of a schedule on CPU threads, in an order the schedule allows.
#pragma once

#include <functional>

#include "codegen/schedule/arrival.hpp"
#include "ordo/error.hpp"
#include "runtime/reference/workers.hpp"
#include "templates/schedule/schedule.cuh"

namespace ordo::reference {

/// One KV unit meets one Q tile of one query head.
struct Step {
  int walk = 0;  ///< batch * kv_heads + KV head
  int head = 0;  ///< of the query heads that share the KV head
  int unit = 0;
  int q = 0;
};

/// Calls step(s, worker) once for every step of every item and query head. Two promises make sums deterministic whatever the
/// threads do: the steps of an item follow each other in the schedule's order, and so do the steps that add into one dQ tile, by
/// rank. `table` is arrival's and null for other schedules; `group` is the number of query heads a walk has. `progress` gets the
/// share done, in [0, 1], on the calling thread; may be empty. Errors (internal): no unfinished item can go on, which a proved
/// schedule rules out.
Result<void> traverse(const schedule::Geometry& geometry, const ArrivalTable* table, int group, Workers& workers,
                      const std::function<void(const Step&, int worker)>& step, const std::function<void(double)>& progress);

}  // namespace ordo::reference
