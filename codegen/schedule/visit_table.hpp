// Plans whose kernels read their visits from a table: schedule arrival, and every schedule of a mask by expression.
#pragma once

#include <functional>

#include "codegen/schedule/arrival.hpp"
#include "ordo/plan.hpp"
#include "ordo/problem.hpp"

namespace ordo {

/// Whether there is a table for the plan.
bool reads_table(const Plan& plan);

/// What the mask of `problem` shows of the tiles of `plan`, where it is an expression; empty for the masks that a geometry knows.
/// Tiles about which intervals cannot tell are `diagonal`. Thread-safe; outlives its arguments.
std::function<TileKind(int unit, int q)> mask_of(const AttentionBackward& problem, const Plan& plan);

/// Adds to the table of a mask by expression what its kernels read besides: what each visit sees, and contributors.
void add_mask(const AttentionBackward& problem, const Plan& plan, ArrivalTable& table);

/// The table of a plan that reads one. Schedule arrival: the simulated orders, see arrival_of(). Ascending and descending under a
/// mask by expression: each unit visits its live tiles upwards or downwards, and units add in the order of their numbers. For
/// such masks the table also says what each visit sees, and how many units add into each Q tile. Errors:
/// arrival_of()'s; unsupported where the table would be too large.
Result<ArrivalTable> table_of(const AttentionBackward& problem, const Plan& plan);

}  // namespace ordo
