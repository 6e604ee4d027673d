#include "codegen/cost/task_model.hpp"

#include <fmt/format.h>

#include "codegen/cost/model.hpp"
#include "codegen/schedule/proof.hpp"

namespace ordo::cost {

Result<SimulationReport> simulate_plan(const AttentionBackward& problem, const Plan& plan, const Target& target, bool record) {
  if (auto fits = check_fit(problem, plan); !fits) return fits.error();
  constexpr double kMostTasks = 1 << 24;
  Simulation simulation;
  simulation.geometry = make_geometry(problem, plan);
  const schedule::Geometry& g = simulation.geometry;
  const double tasks = static_cast<double>(g.units) * g.q_tiles * g.walks * plan.group;
  if (tasks > kMostTasks) {
    return Error{ErrorCode::unsupported,
                 fmt::format("simulating {:.0f} tiles takes too long; {:.0f} are the most", tasks, kMostTasks)};
  }
  Result<ArrivalTable> table{ArrivalTable{}};
  if (plan.arrival) {
    table = arrival_of(problem, plan);
    if (!table) return table.error();
    simulation.table = &*table;
  }
  simulation.workers = plan.workers;
  simulation.costs = task_clocks(plan, target);
  simulation.record = record;
  simulation.prove = false;  // check_fit has
  return simulate(simulation);
}

}  // namespace ordo::cost
