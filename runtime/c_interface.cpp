// The C interface (ordo.h): each function translates its arguments, calls the C++ one, and turns an Error or an exception into a
// status and this thread's message.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "ordo/ordo.h"
#include "ordo/ordo.hpp"

struct ordo_engine {
  ordo::Engine engine;
};

struct ordo_plan {
  ordo::Plan plan;
  std::string text, reason;
  double predicted_ms = 0;
};

struct ordo_kernel {
  ordo::AttentionBackwardKernel kernel;
};

namespace ordo {
namespace {

std::string& last_error() {
  thread_local std::string message;
  return message;
}

ordo_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_problem:
      return ORDO_INVALID_PROBLEM;
    case ErrorCode::invalid_plan:
      return ORDO_INVALID_PLAN;
    case ErrorCode::invalid_argument:
      return ORDO_INVALID_ARGUMENT;
    case ErrorCode::unsupported:
      return ORDO_UNSUPPORTED;
    case ErrorCode::toolchain:
      return ORDO_TOOLCHAIN;
    case ErrorCode::compile:
      return ORDO_COMPILE;
    case ErrorCode::bad_cubin:
      return ORDO_BAD_CUBIN;
    case ErrorCode::no_device:
      return ORDO_NO_DEVICE;
    case ErrorCode::driver:
      return ORDO_DRIVER;
    case ErrorCode::io:
      return ORDO_IO;
    case ErrorCode::cache:
      return ORDO_CACHE;
    case ErrorCode::not_prepared:
      return ORDO_NOT_PREPARED;
    case ErrorCode::cancelled:
      return ORDO_CANCELLED;
    case ErrorCode::internal:
      return ORDO_INTERNAL;
  }
  return ORDO_INTERNAL;
}

/// Keeps the message where there is memory for it.
ordo_status fail(ordo_status status, std::string_view message) noexcept {
  try {
    last_error() = message;
  } catch (...) {
    last_error().clear();
  }
  return status;
}

/// Runs `body`, which returns a Result<void>; nothing leaves but a status.
template <class Body>
ordo_status guarded(Body&& body) noexcept {
  try {
    const Result<void> result = std::forward<Body>(body)();
    return result ? ORDO_OK : fail(status_of(result.error().code), result.error().message);
  } catch (const std::bad_alloc&) {
    return fail(ORDO_OUT_OF_MEMORY, "out of host memory");
  } catch (const std::exception& exception) {
    return fail(ORDO_INTERNAL, exception.what());
  } catch (...) {
    return fail(ORDO_INTERNAL, "unknown exception");
  }
}

Error missing(std::string_view name) {
  return {ErrorCode::invalid_argument, fmt::format("{} is NULL; pass a valid pointer", name)};
}

/// The caller's structure as this version knows it: fields the caller does not have are zero.
template <class T>
Result<T> read_struct(const T* from, std::string_view name) {
  if (from == nullptr) return missing(name);
  if (from->struct_size < sizeof(std::size_t) || from->struct_size > 4096) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}.struct_size is {}; set it to sizeof({})", name, from->struct_size, name)};
  }
  T out{};
  std::memcpy(&out, from, std::min(from->struct_size, sizeof(T)));
  return out;
}

/// `plan`: what a NULL mask and dtype stand for; without one they are the defaults.
Result<AttentionBackward> problem_of(const ordo_attention_backward* problem, const Plan* plan) {
  const auto given = read_struct(problem, "ordo_attention_backward");
  if (!given) return given.error();
  AttentionBackward out;
  out.batch = given->batch;
  out.seqlen_q = given->seqlen_q;
  out.seqlen_k = given->seqlen_k;
  out.heads = given->heads;
  out.kv_heads = given->kv_heads;
  out.head_dim = given->head_dim;
  if (plan != nullptr) out.mask = plan->mask, out.dtype = plan->dtype;
  if (given->mask != nullptr) {
    const auto mask = parse_mask(given->mask);
    if (!mask) return mask.error();
    out.mask = *mask;
  }
  if (given->dtype != nullptr) {
    const auto dtype = parse_dtype(given->dtype);
    if (!dtype) return dtype.error();
    out.dtype = *dtype;
  }
  return out;
}

Result<PlanRequest> request_of(const ordo_plan_request* request) {
  PlanRequest out;
  if (request == nullptr) return out;
  const auto given = read_struct(request, "ordo_plan_request");
  if (!given) return given.error();
  if (given->schedule != nullptr) {
    const auto schedule = parse_schedule(given->schedule);
    if (!schedule) return schedule.error();
    out.schedule = *schedule;
  }
  if (given->accumulate != nullptr) {
    const auto accumulate = parse_accumulate(given->accumulate);
    if (!accumulate) return accumulate.error();
    out.accumulate = *accumulate;
  }
  out.static_shape = given->static_shape != 0;
  return out;
}

Result<EngineOptions> options_of(const ordo_engine_options* options) {
  EngineOptions out;
  if (options == nullptr) return out;
  const auto given = read_struct(options, "ordo_engine_options");
  if (!given) return given.error();
  if (given->cache_path != nullptr) out.cache_path = given->cache_path;
  out.memory_cache_only = given->memory_cache_only != 0;
  if (given->warn != nullptr) {
    out.warn = [warn = given->warn, data = given->warn_data](const std::string& message) { warn(message.c_str(), data); };
  }
  if (given->target != nullptr) {
    const auto target = parse_target(given->target);
    if (!target) return target.error();
    out.target = *target;
  }
  return out;
}

TensorView view_of(const ordo_tensor& tensor) {
  return {tensor.data, tensor.batch_stride, tensor.seqlen_stride, tensor.head_stride};
}

ordo_plan* new_plan(const Plan& plan, std::string reason, double predicted_ms) {
  return new ordo_plan{plan, to_text(plan), std::move(reason), predicted_ms};
}

}  // namespace
}  // namespace ordo

using ordo::Result;

int ordo_abi_version(void) { return ORDO_ABI_VERSION; }

const char* ordo_version(void) { return ORDO_VERSION; }

const char* ordo_status_name(ordo_status status) {
  switch (status) {
    case ORDO_OK:
      return "ok";
    case ORDO_INVALID_PROBLEM:
      return "invalid_problem";
    case ORDO_INVALID_PLAN:
      return "invalid_plan";
    case ORDO_INVALID_ARGUMENT:
      return "invalid_argument";
    case ORDO_UNSUPPORTED:
      return "unsupported";
    case ORDO_TOOLCHAIN:
      return "toolchain";
    case ORDO_COMPILE:
      return "compile";
    case ORDO_BAD_CUBIN:
      return "bad_cubin";
    case ORDO_NO_DEVICE:
      return "no_device";
    case ORDO_DRIVER:
      return "driver";
    case ORDO_IO:
      return "io";
    case ORDO_CACHE:
      return "cache";
    case ORDO_NOT_PREPARED:
      return "not_prepared";
    case ORDO_CANCELLED:
      return "cancelled";
    case ORDO_INTERNAL:
      return "internal";
    case ORDO_OUT_OF_MEMORY:
      return "out_of_memory";
  }
  return "unknown";
}

const char* ordo_last_error(void) { return ordo::last_error().c_str(); }

ordo_status ordo_engine_create(const ordo_engine_options* options, ordo_engine** out) {
  return ordo::guarded([&]() -> Result<void> {
    if (out == nullptr) return ordo::missing("out");
    *out = nullptr;
    auto translated = ordo::options_of(options);
    if (!translated) return translated.error();
    auto engine = ordo::Engine::create(*std::move(translated));
    if (!engine) return engine.error();
    *out = new ordo_engine{*std::move(engine)};
    return {};
  });
}

void ordo_engine_destroy(ordo_engine* engine) { delete engine; }

ordo_status ordo_plan_create(const ordo_engine* engine, const ordo_attention_backward* problem, const ordo_plan_request* request,
                             ordo_plan** out) {
  return ordo::guarded([&]() -> Result<void> {
    if (out == nullptr) return ordo::missing("out");
    *out = nullptr;
    if (engine == nullptr) return ordo::missing("engine");
    const auto asked = ordo::problem_of(problem, nullptr);
    if (!asked) return asked.error();
    const auto wanted = ordo::request_of(request);
    if (!wanted) return wanted.error();
    const auto choice = engine->engine.plan(*asked, *wanted);
    if (!choice) return choice.error();
    *out = ordo::new_plan(choice->plan, choice->reason, choice->predicted_ms);
    return {};
  });
}

ordo_status ordo_plan_parse(const char* text, ordo_plan** out) {
  return ordo::guarded([&]() -> Result<void> {
    if (out == nullptr) return ordo::missing("out");
    *out = nullptr;
    if (text == nullptr) return ordo::missing("text");
    const auto plan = ordo::parse_plan(text);
    if (!plan) return plan.error();
    *out = ordo::new_plan(*plan, "", 0);
    return {};
  });
}

const char* ordo_plan_text(const ordo_plan* plan) { return plan == nullptr ? "" : plan->text.c_str(); }
const char* ordo_plan_reason(const ordo_plan* plan) { return plan == nullptr ? "" : plan->reason.c_str(); }
double ordo_plan_predicted_ms(const ordo_plan* plan) { return plan == nullptr ? 0 : plan->predicted_ms; }
void ordo_plan_destroy(ordo_plan* plan) { delete plan; }

ordo_status ordo_kernel_prepare(ordo_engine* engine, const ordo_plan* plan, ordo_kernel** out) {
  return ordo::guarded([&]() -> Result<void> {
    if (out == nullptr) return ordo::missing("out");
    *out = nullptr;
    if (engine == nullptr) return ordo::missing("engine");
    if (plan == nullptr) return ordo::missing("plan");
    auto kernel = engine->engine.prepare(plan->plan);
    if (!kernel) return kernel.error();
    *out = new ordo_kernel{*std::move(kernel)};
    return {};
  });
}

ordo_status ordo_kernel_workspace_bytes(const ordo_kernel* kernel, const ordo_attention_backward* problem, size_t* out) {
  return ordo::guarded([&]() -> Result<void> {
    if (out == nullptr) return ordo::missing("out");
    *out = 0;
    if (kernel == nullptr) return ordo::missing("kernel");
    const auto asked = ordo::problem_of(problem, &kernel->kernel.plan());
    if (!asked) return asked.error();
    const auto bytes = kernel->kernel.workspace_bytes(*asked);
    if (!bytes) return bytes.error();
    *out = *bytes;
    return {};
  });
}

ordo_status ordo_kernel_launch(const ordo_kernel* kernel, const ordo_attention_backward* problem,
                               const ordo_attention_backward_tensors* tensors, void* workspace, size_t workspace_bytes,
                               ordo_stream stream) {
  return ordo::guarded([&]() -> Result<void> {
    if (kernel == nullptr) return ordo::missing("kernel");
    const auto asked = ordo::problem_of(problem, &kernel->kernel.plan());
    if (!asked) return asked.error();
    const auto given = ordo::read_struct(tensors, "ordo_attention_backward_tensors");
    if (!given) return given.error();
    ordo::AttentionBackwardTensors views;
    views.q = ordo::view_of(given->q);
    views.k = ordo::view_of(given->k);
    views.v = ordo::view_of(given->v);
    views.o = ordo::view_of(given->o);
    views.d_o = ordo::view_of(given->d_o);
    views.lse = given->lse;
    views.dq = ordo::view_of(given->dq);
    views.dk = ordo::view_of(given->dk);
    views.dv = ordo::view_of(given->dv);
    views.scale = given->scale;
    return kernel->kernel.launch(*asked, views, workspace, workspace_bytes, stream);
  });
}

void ordo_kernel_destroy(ordo_kernel* kernel) { delete kernel; }
