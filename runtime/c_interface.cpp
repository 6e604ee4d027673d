// The C interface (ordo.h): each function translates its arguments, calls the C++ one, and turns an Error or an exception into a
// status and this thread's message.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cache/store.hpp"
#include "ordo/ordo.h"
#include "ordo/ordo.hpp"
#include "ordo/tuner.hpp"
#include "runtime/c_support.hpp"

struct ordo_plan {
  ordo::Plan plan;
  std::string text, reason;
  double predicted_ms = 0;
  std::string source = {};
  double ms = 0;
  std::vector<ordo::RankedPlan> runners_up = {};
};

struct ordo_kernel {
  ordo::AttentionBackwardKernel kernel;
  std::string plan_text = {};
};

namespace ordo {
namespace {

using c::guarded;
using c::missing;
using c::read_struct;

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

struct Asked {
  AttentionBackward problem;
  PlanRequest request;
};

/// What planning, querying, tuning and preparing are asked.
Result<Asked> asked_of(const ordo_engine* engine, const ordo_attention_backward* problem, const ordo_plan_request* request) {
  if (engine == nullptr) return missing("engine");
  auto asked = problem_of(problem, nullptr);
  if (!asked) return asked.error();
  auto wanted = request_of(request);
  if (!wanted) return wanted.error();
  return Asked{*std::move(asked), *std::move(wanted)};
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
  if (given->cache_layers != nullptr) out.cache_layers = cache::split_layers(given->cache_layers);
  if (given->cache_limit_bytes != 0) out.cache_limit_bytes = std::max<std::int64_t>(given->cache_limit_bytes, 0);
  if (given->manifest_path != nullptr) out.manifest_path = given->manifest_path;
  if (given->lock_file != nullptr) out.lock_file = given->lock_file;
  out.compile_jobs = given->compile_jobs;
  return out;
}

TensorView view_of(const ordo_tensor& tensor) {
  return {tensor.data, tensor.batch_stride, tensor.seqlen_stride, tensor.head_stride};
}

ordo_plan* new_plan(const Plan& plan, std::string reason, double predicted_ms) {
  return new ordo_plan{plan, to_text(plan), std::move(reason), predicted_ms};
}

ordo_plan* new_plan(const RankedPlan& ranked, std::string reason) {
  ordo_plan* out = new_plan(ranked.plan, std::move(reason), ranked.predicted_ms);
  out->source = to_string(ranked.source);
  out->ms = ranked.ms;
  return out;
}

/// The answer's plan with those behind it. The ranking holds the plan itself too: first, unless it won for other reasons.
ordo_plan* new_plan(const TunedPlan& best) {
  RankedPlan chosen{.plan = best.plan, .source = best.source, .ms = best.ms};
  std::vector<RankedPlan> others;
  for (const RankedPlan& ranked : best.ranking) {
    if (ranked.plan == best.plan)
      chosen.predicted_ms = ranked.predicted_ms;
    else
      others.push_back(ranked);
  }
  ordo_plan* out = new_plan(chosen, best.reason);
  out->runners_up = std::move(others);
  return out;
}

Result<Tuner*> tuner_of(ordo_engine& engine) {
  if (auto ours = engine.process.check("This engine"); !ours) return ours.error();
  const std::scoped_lock lock(engine.mutex);
  if (!engine.tuner) {
    Result<Tuner> created = Tuner::create(engine.engine);
    if (!created) return created.error();
    engine.tuner.emplace(*std::move(created));
  }
  return &*engine.tuner;
}

/// The C caller's progress as the C++ interface has it: false to stop.
bool goes_on(ordo_progress progress, void* data, const std::string& doing, double share) {
  return progress == nullptr || progress(doing.c_str(), share, data) == 0;
}

ordo_kernel* new_kernel(AttentionBackwardKernel kernel) {
  std::string text = to_text(kernel.plan());
  return new ordo_kernel{std::move(kernel), std::move(text)};
}

/// What a query and a tuning have in common; `ask` gives a Result<TunedPlan>.
template <class Ask>
ordo_status tuned(ordo_engine* engine, const ordo_attention_backward* problem, const ordo_plan_request* request, ordo_plan** out,
                  Ask&& ask) {
  return guarded([&]() -> Result<void> {
    if (out == nullptr) return missing("out");
    *out = nullptr;
    auto asked = asked_of(engine, problem, request);
    if (!asked) return asked.error();
    const auto tuner = tuner_of(*engine);
    if (!tuner) return tuner.error();
    TuneOptions options;
    options.request = std::move(asked->request);
    const Result<TunedPlan> best = ask(**tuner, asked->problem, options);
    if (!best) return best.error();
    *out = new_plan(*best);
    return {};
  });
}

}  // namespace
}  // namespace ordo

using ordo::Result;

int ordo_abi_version(void) { return ORDO_ABI_VERSION; }

const char* ordo_version(void) { return ORDO_VERSION; }

ordo_status ordo_engine_create(const ordo_engine_options* options, ordo_engine** out) {
  return ordo::c::guarded([&]() -> Result<void> {
    if (out == nullptr) return ordo::c::missing("out");
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
  return ordo::c::guarded([&]() -> Result<void> {
    if (out == nullptr) return ordo::c::missing("out");
    *out = nullptr;
    const auto asked = ordo::asked_of(engine, problem, request);
    if (!asked) return asked.error();
    const auto choice = engine->engine.plan(asked->problem, asked->request);
    if (!choice) return choice.error();
    ordo::RankedPlan planned{.plan = choice->plan, .ms = choice->predicted_ms, .predicted_ms = choice->predicted_ms};
    *out = ordo::new_plan(planned, choice->reason);
    return {};
  });
}

ordo_status ordo_plan_query(ordo_engine* engine, const ordo_attention_backward* problem, const ordo_plan_request* request,
                            ordo_plan** out) {
  return ordo::tuned(engine, problem, request, out,
                     [](ordo::Tuner& tuner, const ordo::AttentionBackward& asked, const ordo::TuneOptions& options) {
                       return tuner.query(asked, options);
                     });
}

ordo_status ordo_plan_tune(ordo_engine* engine, const ordo_attention_backward* problem, const ordo_plan_request* request,
                           ordo_progress progress, void* data, ordo_plan** out) {
  return ordo::tuned(
      engine, problem, request, out,
      [&](ordo::Tuner& tuner, const ordo::AttentionBackward& asked, const ordo::TuneOptions& options) -> Result<ordo::TunedPlan> {
        auto result = tuner.tune(asked, options,
                                 [&](const ordo::TuneProgress& at) { return ordo::goes_on(progress, data, at.doing, at.share); });
        if (!result) return result.error();
        if (result->stopped) {
          return ordo::Error{ordo::ErrorCode::cancelled,
                             "Tuning was stopped by its progress function; what was measured is "
                             "kept, and the next call goes on from there."};
        }
        return std::move(result->best);
      });
}

ordo_status ordo_plan_parse(const char* text, ordo_plan** out) {
  return ordo::c::guarded([&]() -> Result<void> {
    if (out == nullptr) return ordo::c::missing("out");
    *out = nullptr;
    if (text == nullptr) return ordo::c::missing("text");
    const auto plan = ordo::parse_plan(text);
    if (!plan) return plan.error();
    *out = ordo::new_plan(*plan, "", 0);
    return {};
  });
}

const char* ordo_plan_text(const ordo_plan* plan) { return plan == nullptr ? "" : plan->text.c_str(); }
const char* ordo_plan_reason(const ordo_plan* plan) { return plan == nullptr ? "" : plan->reason.c_str(); }
double ordo_plan_predicted_ms(const ordo_plan* plan) { return plan == nullptr ? 0 : plan->predicted_ms; }
const char* ordo_plan_source(const ordo_plan* plan) { return plan == nullptr ? "" : plan->source.c_str(); }
double ordo_plan_ms(const ordo_plan* plan) { return plan == nullptr ? 0 : plan->ms; }
size_t ordo_plan_runners_up(const ordo_plan* plan) { return plan == nullptr ? 0 : plan->runners_up.size(); }

ordo_status ordo_plan_runner_up(const ordo_plan* plan, size_t index, ordo_plan** out) {
  return ordo::c::guarded([&]() -> Result<void> {
    if (out == nullptr) return ordo::c::missing("out");
    *out = nullptr;
    if (plan == nullptr) return ordo::c::missing("plan");
    if (index >= plan->runners_up.size()) {
      return ordo::Error{ordo::ErrorCode::invalid_argument,
                         fmt::format("index is {}; this plan has {} runners-up", index, plan->runners_up.size())};
    }
    *out = ordo::new_plan(plan->runners_up[index], "");
    return {};
  });
}

void ordo_plan_destroy(ordo_plan* plan) { delete plan; }

ordo_status ordo_kernel_prepare(ordo_engine* engine, const ordo_plan* plan, ordo_kernel** out) {
  return ordo::c::guarded([&]() -> Result<void> {
    if (out == nullptr) return ordo::c::missing("out");
    *out = nullptr;
    if (engine == nullptr) return ordo::c::missing("engine");
    if (plan == nullptr) return ordo::c::missing("plan");
    auto kernel = engine->engine.prepare(plan->plan);
    if (!kernel) return kernel.error();
    *out = ordo::new_kernel(*std::move(kernel));
    return {};
  });
}

ordo_status ordo_kernel_prepare_for(ordo_engine* engine, const ordo_attention_backward* problem, const ordo_plan_request* request,
                                    ordo_kernel** out) {
  return ordo::c::guarded([&]() -> Result<void> {
    if (out == nullptr) return ordo::c::missing("out");
    *out = nullptr;
    const auto asked = ordo::asked_of(engine, problem, request);
    if (!asked) return asked.error();
    auto kernel = engine->engine.prepare(asked->problem, asked->request);
    if (!kernel) return kernel.error();
    *out = ordo::new_kernel(*std::move(kernel));
    return {};
  });
}

const char* ordo_kernel_plan_text(const ordo_kernel* kernel) { return kernel == nullptr ? "" : kernel->plan_text.c_str(); }

ordo_status ordo_kernel_load(const ordo_kernel* kernel, ordo_stream stream) {
  return ordo::c::guarded([&]() -> Result<void> {
    if (kernel == nullptr) return ordo::c::missing("kernel");
    return kernel->kernel.load(stream);
  });
}

ordo_status ordo_kernel_workspace_bytes(const ordo_kernel* kernel, const ordo_attention_backward* problem, size_t* out) {
  return ordo::c::guarded([&]() -> Result<void> {
    if (out == nullptr) return ordo::c::missing("out");
    *out = 0;
    if (kernel == nullptr) return ordo::c::missing("kernel");
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
  return ordo::c::guarded([&]() -> Result<void> {
    if (kernel == nullptr) return ordo::c::missing("kernel");
    const auto asked = ordo::problem_of(problem, &kernel->kernel.plan());
    if (!asked) return asked.error();
    const auto given = ordo::c::read_struct(tensors, "ordo_attention_backward_tensors");
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

ordo_status ordo_engine_prepare_list(ordo_engine* engine, const char* path, ordo_progress progress, void* data,
                                     ordo_prepare_report* report) {
  return ordo::c::guarded([&]() -> Result<void> {
    if (engine == nullptr) return ordo::c::missing("engine");
    if (path == nullptr) return ordo::c::missing("path");
    if (report != nullptr) {
      if (const auto valid = ordo::c::check_struct(report, "ordo_prepare_report"); !valid) return valid.error();
    }
    const auto list = ordo::read_shape_list(path);
    if (!list) return list.error();
    std::atomic<bool> stopped{false};
    ordo::PrepareOptions options;
    options.progress = [&](std::size_t done, std::size_t total) {
      const double share = static_cast<double>(done) / static_cast<double>(total);
      if (!ordo::goes_on(progress, data, fmt::format("{} of {}", done, total), share)) stopped = true;
    };
    options.cancelled = [&] { return stopped.load(); };
    const auto prepared = engine->engine.prepare(*list, options);
    if (!prepared) return prepared.error();
    if (report != nullptr)
      ordo::c::write_struct({0, prepared->plans, prepared->kernels, prepared->compiled, prepared->loaded}, report);
    return {};
  });
}

void ordo_engine_seal(ordo_engine* engine) {
  if (engine != nullptr) engine->engine.seal();
}

int ordo_engine_sealed(const ordo_engine* engine) { return engine != nullptr && engine->engine.sealed() ? 1 : 0; }

ordo_status ordo_engine_counters(const ordo_engine* engine, ordo_cache_counters* counters) {
  return ordo::c::guarded([&]() -> Result<void> {
    if (engine == nullptr) return ordo::c::missing("engine");
    if (const auto valid = ordo::c::check_struct(counters, "ordo_cache_counters"); !valid) return valid.error();
    const ordo::CacheCounters c = engine->engine.counters();
    ordo::c::write_struct({0, c.memory_hits, c.local_hits, c.shipped_hits, c.misses, c.compiles, c.compile_failures,
                           c.shared_compiles, c.compile_seconds, c.wait_seconds},
                          counters);
    return {};
  });
}
