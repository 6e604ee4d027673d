// Pictures of a simulation: a Gantt chart as SVG, and an occupancy chart for the terminal.
#pragma once

#include <string>

#include "codegen/schedule/simulator.hpp"

namespace ordo {

/// Workers x time as one self-contained SVG document: compute, reduce and stall in colours that survive grey print and colour
/// blindness, the critical path outlined, a time axis, a legend, and the task of every bar as hover text (<title>). With staging
/// the adds, and the waits for their turns, are a lane of their own below each worker's computing.
/// `report` must have its intervals, at most 200,000 of them: a larger chart is refused, for no viewer opens it.
ORDO_API Result<std::string> render_gantt_svg(const SimulationRequest& request, const SimulationReport& report);

/// One line a worker, time from left to right in `columns` cells (20 .. 400) that show what the worker mostly does in each, with
/// its busy share at the end. With staging the adds beside the computing are left out. Many workers are thinned to about 40
/// lines. With `ascii` only '#', '+', '.' and ' ' are used for the cells. Ends with a line that explains the signs.
ORDO_API std::string render_occupancy(const SimulationReport& report, int columns = 100, bool ascii = false);

}  // namespace ordo
