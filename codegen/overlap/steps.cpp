#include "codegen/overlap/steps.hpp"

#include <fmt/format.h>

#include <array>
#include <map>

#include "codegen/fields.hpp"

namespace ordo::overlap {
namespace {

constexpr int kMostRanks = 32, kMostSubSlices = 64;

/// Builds the list: steps first, then the transfers slot by slot.
class Builder {
 public:
  explicit Builder(const StepRequest& request) : r_(request), pattern_(pattern_of(request.exchange)) {
    out_ = {
        .exchange = r_.exchange, .route = r_.route, .ranks = r_.ranks, .sub_slices = r_.sub_slices, .steps = {}, .transfers = {}};
  }

  StepSchedule build() {
    for (int rank = 0; rank < r_.ranks; ++rank) out_.steps.push_back(steps_of(rank));
    if (subs_outside()) {
      for (int sub = 0; sub < r_.sub_slices; ++sub) {
        for (int hop = 0; hop + 1 < r_.ranks; ++hop) add_slot(hop, sub);
      }
    } else {
      for (int hop = 0; hop + 1 < r_.ranks; ++hop) {
        for (int sub = 0; sub < r_.sub_slices; ++sub) add_slot(hop, sub);
      }
    }
    if (r_.exchange == Exchange::all_reduce) add_closing_gather();
    return std::move(out_);
  }

 private:
  // The k loop of a tile visits all blocks before the next rows begin.
  [[nodiscard]] bool subs_outside() const { return r_.exchange == Exchange::all_to_all; }

  [[nodiscard]] std::vector<Step> steps_of(int rank) const {
    std::vector<Step> steps;
    const auto slice = [&](int step) { return slice_at_step(pattern_, r_.route, rank, r_.ranks, step); };
    if (subs_outside()) {
      for (int sub = 0; sub < r_.sub_slices; ++sub) {
        for (int step = 0; step < r_.ranks; ++step) steps.push_back({slice(step), sub});
      }
    } else {
      for (int step = 0; step < r_.ranks; ++step) {
        for (int sub = 0; sub < r_.sub_slices; ++sub) steps.push_back({slice(step), sub});
      }
    }
    return steps;
  }

  [[nodiscard]] int step_index(int rank, int slice, int sub) const {
    const int step = step_of_slice(pattern_, r_.route, rank, r_.ranks, slice);
    return subs_outside() ? sub * r_.ranks + step : step * r_.sub_slices + sub;
  }

  void add(Transfer transfer) {
    transfer.bytes = r_.bytes ? r_.bytes(transfer.from, transfer.to, transfer.slice, transfer.sub) : 1;
    transfer.slot = slot_;
    out_.transfers.push_back(transfer);
  }

  void add_slot(int hop, int sub) {
    std::map<int, int> arrivals;  // by rank: the transfer that arrives there in this slot
    for (int from = 0; from < r_.ranks; ++from) {
      const Transfer transfer = transfer_of(from, hop, sub);
      arrivals[transfer.to] = static_cast<int>(out_.transfers.size());
      add(transfer);
    }
    if (r_.route == Route::ring) {
      for (const auto& [rank, index] : arrivals) brought_[{rank, sub}] = index;
    }
    ++slot_;
  }

  // What `from` sends in round `hop`: to its neighbour, or to the rank hop + 1 places on.
  [[nodiscard]] Transfer transfer_of(int from, int hop, int sub) const {
    const bool ring = r_.route == Route::ring;
    Transfer t{.from = from, .to = wrap(from + (ring ? 1 : hop + 1), r_.ranks), .slice = 0, .sub = sub};
    if (pattern_ == Pattern::gather) {
      t.slice = ring ? wrap(from - hop, r_.ranks) : from;
      if (ring && hop > 0) {
        if (const auto found = brought_.find({from, sub}); found != brought_.end()) t.after_transfer = found->second;
      }
      t.needed_by = step_index(t.to, t.slice, sub);
      return t;
    }
    t.slice = slice_at_step(pattern_, r_.route, from, r_.ranks, hop);
    t.after_step = step_index(from, t.slice, sub);
    t.needed_by = pattern_ == Pattern::scatter ? kAtEnd : step_index(t.to, t.slice, sub);
    return t;
  }

  // What a rank owns is complete with its last steps; every other rank gets it.
  void add_closing_gather() {
    for (int sub = 0; sub < r_.sub_slices; ++sub) {
      for (int hop = 0; hop + 1 < r_.ranks; ++hop) {
        for (int from = 0; from < r_.ranks; ++from) {
          add({.from = from,
               .to = wrap(from + hop + 1, r_.ranks),
               .slice = from,
               .sub = sub,
               .after_step = step_index(from, from, sub)});
        }
        ++slot_;
      }
    }
  }

  const StepRequest& r_;
  Pattern pattern_;
  StepSchedule out_;
  int slot_ = 0;
  std::map<std::pair<int, int>, int> brought_;  ///< ring: (rank, sub): the transfer of the last hop
};

Result<void> check_ring_exists(Exchange exchange, Route route) {
  const bool pairwise = exchange == Exchange::all_to_all || exchange == Exchange::to_all;
  if (!pairwise || route == Route::direct) return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("{} sends every slice to one rank alone; a ring would carry it past the others: use "
                           "the direct route",
                           to_string(exchange))};
}

}  // namespace

std::string_view to_string(Exchange exchange) {
  switch (exchange) {
    case Exchange::all_gather:
      return "all-gather-gemm";
    case Exchange::all_to_all:
      return "all-to-all-gemm";
    case Exchange::reduce_scatter:
      return "gemm-reduce-scatter";
    case Exchange::all_reduce:
      return "gemm-all-reduce";
    case Exchange::to_all:
      return "gemm-all-to-all";
  }
  return "unknown";
}

std::string_view to_string(Route route) {
  switch (route) {
    case Route::direct:
      return "direct";
    case Route::ring:
      return "ring";
  }
  return "unknown";
}

Result<Exchange> parse_exchange(std::string_view text) {
  return text::read_name(
      text, "exchange",
      std::array{Exchange::all_gather, Exchange::all_to_all, Exchange::reduce_scatter, Exchange::all_reduce, Exchange::to_all});
}

Result<Route> parse_route(std::string_view text) {
  return text::read_name(text, "route", std::array{Route::direct, Route::ring});
}

Pattern pattern_of(Exchange exchange) {
  switch (exchange) {
    case Exchange::reduce_scatter:
    case Exchange::all_reduce:
      return Pattern::reduce;
    case Exchange::to_all:
      return Pattern::scatter;
    default:
      return Pattern::gather;
  }
}

Result<StepSchedule> make_steps(const StepRequest& request) {
  if (request.ranks < 1 || request.ranks > kMostRanks) {
    return Error{ErrorCode::invalid_argument, fmt::format("ranks is {}; it must be within 1 .. {}", request.ranks, kMostRanks)};
  }
  if (request.sub_slices < 1 || request.sub_slices > kMostSubSlices) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("sub_slices is {}; it must be within 1 .. {}", request.sub_slices, kMostSubSlices)};
  }
  if (auto exists = check_ring_exists(request.exchange, request.route); !exists) return exists.error();
  return Builder(request).build();
}

Result<void> check_route(Exchange exchange, Route route) {
  if (auto exists = check_ring_exists(exchange, route); !exists) return exists;
  if (route == Route::direct || pattern_of(exchange) != Pattern::reduce) return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("{} adds what the owner computed and then the partial sums of the others by rank, each rounded once; "
                           "the running sum of a ring takes them in another order and is rounded at every hop: use the direct "
                           "route",
                           to_string(exchange))};
}

}  // namespace ordo::overlap
