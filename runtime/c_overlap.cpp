// Ranks and overlapped products in the C interface (ordo.h).
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "ordo/ordo.h"
#include "ordo/overlapped_gemm.hpp"
#include "ordo/peers.hpp"
#include "runtime/c_support.hpp"

struct ordo_communicator {
  ordo::Communicator communicator;
};

struct ordo_overlap_plan {
  ordo::OverlapChoice choice;
  std::string text;
};

struct ordo_overlapped_gemm {
  ordo::OverlappedGemm product;
  std::string plan_text;
};

namespace ordo {
namespace {

using c::guarded;
using c::missing;
using c::read_struct;

constexpr int kDefaultTimeoutMs = 30000;

AllGather gather_of(const ordo_communicator_options& options) {
  return [gather = options.all_gather, data = options.all_gather_data](const void* mine, std::size_t bytes,
                                                                       void* all) -> Result<void> {
    if (const int status = gather(mine, bytes, all, data); status != 0)
      return Error{ErrorCode::io, fmt::format("The caller's all_gather returned {}.", status)};
    return {};
  };
}

/// By the caller's all-gather, else by an address, else by the environment.
Result<World> world_of(const ordo_communicator_options& options, std::chrono::milliseconds timeout) {
  if (options.all_gather != nullptr) return World{options.rank, options.ranks, options.local_rank, gather_of(options)};
  if (options.address != nullptr) return join_world(options.address, options.rank, options.ranks, timeout);
  return world_from_environment(timeout);
}

Result<Communicator> communicator_of(const ordo_communicator_options* options) {
  const auto given = read_struct(options, "ordo_communicator_options");
  if (!given) return given.error();
  if (given->timeout_ms < 0) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("ordo_communicator_options.timeout_ms is {}; it must be positive, or 0 for {}", given->timeout_ms,
                             kDefaultTimeoutMs)};
  }
  CommunicatorOptions out;
  out.timeout = std::chrono::milliseconds(given->timeout_ms == 0 ? kDefaultTimeoutMs : given->timeout_ms);
  if (given->has_device != 0) out.device = given->device;
  if (given->transport != nullptr) {
    const auto transport = parse_peer_transport(given->transport);
    if (!transport) return transport.error();
    out.transport = *transport;
  }
  const auto world = world_of(*given, out.timeout);
  if (!world) return world.error();
  return Communicator::create(*world, out);
}

Result<OverlapGemm> overlap_problem_of(const char* text) {
  if (text == nullptr) return missing("problem");
  return parse_overlap_gemm(text);
}

MatrixView view_of(const ordo_matrix& matrix) { return {matrix.data, matrix.stride}; }

}  // namespace
}  // namespace ordo

using ordo::Result;

ordo_status ordo_communicator_create(const ordo_communicator_options* options, ordo_communicator** out) {
  return ordo::guarded([&]() -> Result<void> {
    if (out == nullptr) return ordo::missing("out");
    *out = nullptr;
    auto communicator = ordo::communicator_of(options);
    if (!communicator) return communicator.error();
    *out = new ordo_communicator{*std::move(communicator)};
    return {};
  });
}

void ordo_communicator_destroy(ordo_communicator* communicator) { delete communicator; }

int ordo_communicator_rank(const ordo_communicator* communicator) {
  return communicator == nullptr ? -1 : communicator->communicator.rank();
}

int ordo_communicator_ranks(const ordo_communicator* communicator) {
  return communicator == nullptr ? -1 : communicator->communicator.ranks();
}

int ordo_communicator_device(const ordo_communicator* communicator) {
  return communicator == nullptr ? -1 : communicator->communicator.device();
}

const char* ordo_communicator_transport(const ordo_communicator* communicator) {
  return communicator == nullptr ? "" : ordo::to_string(communicator->communicator.transport()).data();  // of a literal
}

ordo_status ordo_communicator_status(const ordo_communicator* communicator) {
  return ordo::guarded([&]() -> Result<void> {
    if (communicator == nullptr) return ordo::missing("communicator");
    return communicator->communicator.status();
  });
}

ordo_status ordo_communicator_barrier(ordo_communicator* communicator) {
  return ordo::guarded([&]() -> Result<void> {
    if (communicator == nullptr) return ordo::missing("communicator");
    return communicator->communicator.barrier();
  });
}

ordo_status ordo_overlap_plan_create(const ordo_engine* engine, const char* problem, int peer_access, ordo_overlap_plan** out) {
  return ordo::guarded([&]() -> Result<void> {
    if (out == nullptr) return ordo::missing("out");
    *out = nullptr;
    if (engine == nullptr) return ordo::missing("engine");
    const auto asked = ordo::overlap_problem_of(problem);
    if (!asked) return asked.error();
    auto choice = ordo::make_overlap_plan(*asked, engine->engine.target(), peer_access != 0);
    if (!choice) return choice.error();
    std::string text = to_text(choice->plan);
    *out = new ordo_overlap_plan{*std::move(choice), std::move(text)};
    return {};
  });
}

const char* ordo_overlap_plan_text(const ordo_overlap_plan* plan) { return plan == nullptr ? "" : plan->text.c_str(); }
const char* ordo_overlap_plan_reason(const ordo_overlap_plan* plan) { return plan == nullptr ? "" : plan->choice.reason.c_str(); }
int ordo_overlap_plan_overlaps(const ordo_overlap_plan* plan) { return plan != nullptr && plan->choice.overlap ? 1 : 0; }
double ordo_overlap_plan_predicted_ms(const ordo_overlap_plan* plan) { return plan == nullptr ? 0 : plan->choice.predicted_ms; }
void ordo_overlap_plan_destroy(ordo_overlap_plan* plan) { delete plan; }

ordo_status ordo_overlapped_gemm_create(ordo_communicator* communicator, ordo_engine* engine, const char* problem,
                                        const char* plan, ordo_overlapped_gemm** out) {
  return ordo::guarded([&]() -> Result<void> {
    if (out == nullptr) return ordo::missing("out");
    *out = nullptr;
    if (communicator == nullptr) return ordo::missing("communicator");
    if (engine == nullptr) return ordo::missing("engine");
    const auto asked = ordo::overlap_problem_of(problem);
    if (!asked) return asked.error();
    ordo::OverlappedGemmOptions options;
    if (plan != nullptr) {
      auto given = ordo::parse_overlap_plan(plan);
      if (!given) return given.error();
      options.plan = *std::move(given);
    }
    auto product = ordo::OverlappedGemm::create(communicator->communicator, engine->engine, *asked, options);
    if (!product) return product.error();
    std::string text = to_text(product->choice().plan);
    *out = new ordo_overlapped_gemm{*std::move(product), std::move(text)};
    return {};
  });
}

const char* ordo_overlapped_gemm_plan_text(const ordo_overlapped_gemm* product) {
  return product == nullptr ? "" : product->plan_text.c_str();
}

int64_t ordo_overlapped_gemm_a_stride(const ordo_overlapped_gemm* product) {
  return product == nullptr ? 0 : product->product.a_stride();
}

ordo_status ordo_overlapped_gemm_output(const ordo_overlapped_gemm* product, ordo_matrix* out) {
  return ordo::guarded([&]() -> Result<void> {
    if (out == nullptr) return ordo::missing("out");
    *out = {nullptr, 0};
    if (product == nullptr) return ordo::missing("product");
    const ordo::MatrixView output = product->product.output();
    *out = {output.data, output.stride};
    return {};
  });
}

ordo_status ordo_overlapped_gemm_launch(ordo_overlapped_gemm* product, const ordo_overlapped_gemm_tensors* tensors,
                                        ordo_stream stream) {
  return ordo::guarded([&]() -> Result<void> {
    if (product == nullptr) return ordo::missing("product");
    const auto given = ordo::read_struct(tensors, "ordo_overlapped_gemm_tensors");
    if (!given) return given.error();
    return product->product.launch({ordo::view_of(given->a), ordo::view_of(given->b), ordo::view_of(given->d), given->bias},
                                   stream);
  });
}

void ordo_overlapped_gemm_destroy(ordo_overlapped_gemm* product) { delete product; }
