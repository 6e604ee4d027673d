/* The C interface of ordo: plan, compile and launch deterministic attention-backward kernels.
 *
 *   ordo_engine* engine;  ordo_plan* plan;  ordo_kernel* kernel;  size_t bytes;
 *   ordo_engine_create(NULL, &engine);
 *   ordo_plan_create(engine, &problem, NULL, &plan);
 *   ordo_kernel_prepare(engine, plan, &kernel);               // compiles, or takes the cubins from the cache
 *   ordo_kernel_workspace_bytes(kernel, &problem, &bytes);    // the caller supplies the workspace
 *   ordo_kernel_launch(kernel, &problem, &tensors, workspace, bytes, stream);
 *
 * Every function that can fail returns an ordo_status; ordo_last_error() then says, for this thread, what was asked, what was
 * found and what to do. No exception, no exit and no output crosses this interface.
 *
 * Ownership: what a function gives out through `out` belongs to the caller, who destroys it once; destroying NULL does nothing.
 * A kernel keeps what it needs of its engine alive. Strings given out belong to the object asked and live as long as it.
 * Threads: engines and kernels may be used by any number of threads at once; an object must not be used while it is destroyed.
 * Destroying the last kernel of a plan waits for its launches in flight. A graph that holds launches does not keep their kernel:
 * keep it as long as the graph is replayed.
 * fork(): engines and kernels of the parent may plan and be destroyed in a child; what else they are asked there is
 * ORDO_INVALID_ARGUMENT. It creates its own; CUDA itself does not work in the child of a process that used it.
 *
 * Structures begin with struct_size = sizeof(the structure): a later version appends fields behind today's sizeof, and takes what
 * an older caller does not know as zero. A caller that is newer than the library may pass its longer structure while what the
 * library does not know is zero; where it is not, the call is ORDO_INVALID_ARGUMENT. Of a structure that the library fills in, only
 * struct_size is read, no more than that is written, and what the library does not know becomes zero. ordo_abi_version() grows only
 * when something that exists changes. */
#ifndef ORDO_ORDO_H
#define ORDO_ORDO_H

#include <stddef.h>
#include <stdint.h>

#if defined(ORDO_STATIC)
#define ORDO_C_API
#else
#define ORDO_C_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define ORDO_ABI_VERSION 1

/* CUstream of the driver API, which is also cudaStream_t. */
typedef struct CUstream_st* ordo_stream;

typedef struct ordo_engine ordo_engine;
typedef struct ordo_plan ordo_plan;
typedef struct ordo_kernel ordo_kernel;
typedef struct ordo_communicator ordo_communicator;
typedef struct ordo_overlap_plan ordo_overlap_plan;
typedef struct ordo_overlapped_gemm ordo_overlapped_gemm;

typedef enum ordo_status {
  ORDO_OK = 0,
  ORDO_INVALID_PROBLEM = 1,  /* the problem breaks one of its own rules (sizes, heads, dtype) */
  ORDO_INVALID_PLAN = 2,     /* the plan is malformed, unproved, or does not fit the problem */
  ORDO_INVALID_ARGUMENT = 3, /* any other argument is wrong (pointer, alignment, option, name) */
  ORDO_UNSUPPORTED = 4,      /* well-formed, but this version of ordo has no kernel for it */
  ORDO_TOOLCHAIN = 5,        /* NVRTC is missing, too old or incomplete */
  ORDO_COMPILE = 6,          /* NVRTC refused the source, or its output broke a rule (a spill) */
  ORDO_BAD_CUBIN = 7,        /* bytes that should be a cubin are damaged */
  ORDO_NO_DEVICE = 8,        /* no CUDA driver, or no such device */
  ORDO_DRIVER = 9,           /* a CUDA driver call failed */
  ORDO_IO = 10,              /* a file could not be read or written */
  ORDO_CACHE = 11,           /* the cache file failed; never returned by a launch */
  ORDO_NOT_PREPARED = 12,    /* a kernel that is not ready was asked for where none may be made */
  ORDO_CANCELLED = 13,       /* the caller asked to stop */
  ORDO_INTERNAL = 14,        /* a bug in ordo */
  ORDO_OUT_OF_MEMORY = 15    /* of the host */
} ordo_status;

/* ORDO_ABI_VERSION that the library was built with; programs compare it with their own. */
ORDO_C_API int ordo_abi_version(void);
/* "0.1.0" */
ORDO_C_API const char* ordo_version(void);
/* The status's name, e.g. "invalid_problem". */
ORDO_C_API const char* ordo_status_name(ordo_status status);
/* The message of this thread's last failure, "" before the first; valid until this thread's next call that fails. */
ORDO_C_API const char* ordo_last_error(void);

/* ---- Engine: plans, compiles and caches. Needs no GPU except to launch. ---- */

typedef struct ordo_engine_options {
  size_t struct_size;
  const char* cache_path; /* NULL: $ORDO_CACHE, else $XDG_CACHE_HOME/ordo/cache.db, else ~/.cache/ordo/cache.db, else memory */
  int memory_cache_only;  /* not 0: no file */
  const char* target;     /* "h100", "h200", "h800", "h20", "sm_90a:SMS"; NULL: the current device, "h200" where there is none */
  /* Called for what a person should know and no caller can act on (a cache that cannot be written, say), at most once a cause,
   * from the thread that met it. It must not call ordo. NULL: not told. */
  void (*warn)(const char* message, void* data);
  void* warn_data;
  /* Finished cache files that are only read, "A:B", looked into before cache_path; after them those of $ORDO_CACHE_LAYERS. */
  const char* cache_layers;
  int64_t cache_limit_bytes; /* of the cache file, beyond which the longest unused goes. 0: $ORDO_CACHE_LIMIT, else 2 GiB; < 0: none */
  const char* manifest_path; /* appends every prepared plan to this list. NULL: $ORDO_MANIFEST, else none */
  const char* lock_file;     /* decision table whose plans are the only ones used (see `ordo tuning export`). NULL: none */
  int compile_jobs;          /* compiles at once on this host. 0: $ORDO_COMPILE_JOBS, else half of the processors */
} ordo_engine_options;

/* options: NULL for the defaults. Errors: ORDO_INVALID_ARGUMENT for an unknown target or a damaged lock file, ORDO_IO. */
ORDO_C_API ordo_status ordo_engine_create(const ordo_engine_options* options, ordo_engine** out);
ORDO_C_API void ordo_engine_destroy(ordo_engine* engine);

/* ---- Problem: dQ, dK, dV from Q, K, V, O, dO and LSE. ----
 *
 * Q, O, dO, dQ are [batch, seqlen_q, heads, head_dim]; K, V, dK, dV are [batch, seqlen_k, kv_heads, head_dim]; LSE is
 * [batch, heads, seqlen_q] fp32, natural log. Query head h reads KV head h / (heads / kv_heads). With
 * P = exp(scale QK^T - LSE) and delta = rowsum(dO * O):
 *   dV = P^T dO,  dS = P * (dO V^T - delta),  dQ = scale dS K,  dK = scale dS^T Q. */
typedef struct ordo_attention_backward {
  size_t struct_size;
  int64_t batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim;
  const char* mask;  /* "full", "causal" (bottom-right aligned) or "expr:...". NULL: "full"; for a kernel's calls, its plan's */
  const char* dtype; /* "bf16" or "fp16". NULL: "bf16"; for a kernel's calls, its plan's */
} ordo_attention_backward;

/* ---- Plan: how. The plan and the cubin made from it decide every bit of the result. ---- */

typedef struct ordo_plan_request {
  size_t struct_size;
  const char* schedule;   /* "ascending", "descending", "shift", "alternate", ...; NULL: the planner's choice */
  const char* accumulate; /* "ordered", "exact", "atomic" (not deterministic); NULL: the planner's choice */
  int static_shape;       /* not 0: bake the shape into the kernels */
} ordo_plan_request;

/* Chooses a plan. request: NULL leaves everything to the planner. Compiles nothing. */
ORDO_C_API ordo_status ordo_plan_create(const ordo_engine* engine, const ordo_attention_backward* problem,
                                        const ordo_plan_request* request, ordo_plan** out);
/* The best plan known: measured by `ordo tune` or ordo_plan_tune() on such a device, else interpolated from neighbouring
 * problems, else predicted. Asked again it takes microseconds. request: as above; here a NULL accumulate means "ordered". */
ORDO_C_API ordo_status ordo_plan_query(ordo_engine* engine, const ordo_attention_backward* problem,
                                       const ordo_plan_request* request, ordo_plan** out);
/* Called now and then, from any thread, one call at a time: what is being done, and the share of the whole that is done. Returns
 * 0 to go on, anything else to stop: what was measured is kept, and the call ends with ORDO_CANCELLED. */
typedef int (*ordo_progress)(const char* doing, double share, void* data);
/* Measures the candidates on the current device (device 0 where none is current), stores every measurement in the cache file and
 * gives the best. Takes seconds a candidate; what is measured already is not measured again. progress: NULL for none. */
ORDO_C_API ordo_status ordo_plan_tune(ordo_engine* engine, const ordo_attention_backward* problem,
                                      const ordo_plan_request* request, ordo_progress progress, void* data, ordo_plan** out);
/* Reads what ordo_plan_text() gives. */
ORDO_C_API ordo_status ordo_plan_parse(const char* text, ordo_plan** out);
/* Canonical text, one line. */
ORDO_C_API const char* ordo_plan_text(const ordo_plan* plan);
/* Why it was chosen, one sentence; "" for a plan read from text and for a runner-up. */
ORDO_C_API const char* ordo_plan_reason(const ordo_plan* plan);
/* Predicted time of a launch in milliseconds; 0 for a plan read from text. */
ORDO_C_API double ordo_plan_predicted_ms(const ordo_plan* plan);
/* What ordo_plan_ms() rests on: "measured", "interpolated" or "predicted"; "" for a plan read from text. */
ORDO_C_API const char* ordo_plan_source(const ordo_plan* plan);
/* Time of a launch in milliseconds, by the source. */
ORDO_C_API double ordo_plan_ms(const ordo_plan* plan);
/* Of ordo_plan_query() and ordo_plan_tune(): how many plans were ranked behind this one, and number `index` of them, the fastest
 * being 0, as a plan of its own. One that is too close to tell apart may be predicted a little faster than this plan. */
ORDO_C_API size_t ordo_plan_runners_up(const ordo_plan* plan);
ORDO_C_API ordo_status ordo_plan_runner_up(const ordo_plan* plan, size_t index, ordo_plan** out);
ORDO_C_API void ordo_plan_destroy(ordo_plan* plan);

/* ---- Kernel: the compiled kernels of one plan. ---- */

/* Compiles what the cache does not hold: a second or so a kernel. */
ORDO_C_API ordo_status ordo_kernel_prepare(ordo_engine* engine, const ordo_plan* plan, ordo_kernel** out);
/* The same for the plan that ordo_plan_create() would give. What is prepared already costs a look-up. */
ORDO_C_API ordo_status ordo_kernel_prepare_for(ordo_engine* engine, const ordo_attention_backward* problem,
                                               const ordo_plan_request* request, ordo_kernel** out);
/* The plan it was made of, canonical text. */
ORDO_C_API const char* ordo_kernel_plan_text(const ordo_kernel* kernel);
/* Loads the kernels in the current context, as the first launch there would; `stream` is where they will be launched. Errors:
 * ORDO_NOT_PREPARED while the stream captures. */
ORDO_C_API ordo_status ordo_kernel_load(const ordo_kernel* kernel, ordo_stream stream);
/* Bytes of device scratch that a launch needs. Refuses a problem the plan was not made for. */
ORDO_C_API ordo_status ordo_kernel_workspace_bytes(const ordo_kernel* kernel, const ordo_attention_backward* problem,
                                                   size_t* out);

/* A device tensor with contiguous head_dim. Strides count elements and make every row 16-byte aligned; so is data. */
typedef struct ordo_tensor {
  void* data;
  int64_t batch_stride, seqlen_stride, head_stride;
} ordo_tensor;

typedef struct ordo_attention_backward_tensors {
  size_t struct_size;
  ordo_tensor q, k, v, o, d_o; /* read */
  const float* lse;            /* contiguous [batch, heads, seqlen_q], 16-byte aligned */
  ordo_tensor dq, dk, dv;      /* every element is written */
  float scale;                 /* softmax scale, > 0 and finite */
} ordo_attention_backward_tensors;

/* Enqueues the backward on `stream` of the current context: no allocation, no synchronisation, and it may be captured into a graph,
 * once it has been launched on that device outside a capture (plans of schedule arrival and masks by expression: once for every
 * shape). `workspace` is device memory, 256-byte aligned, of at least
 * ordo_kernel_workspace_bytes(), its content irrelevant, not shared with another launch in flight. */
ORDO_C_API ordo_status ordo_kernel_launch(const ordo_kernel* kernel, const ordo_attention_backward* problem,
                                          const ordo_attention_backward_tensors* tensors, void* workspace,
                                          size_t workspace_bytes, ordo_stream stream);
ORDO_C_API void ordo_kernel_destroy(ordo_kernel* kernel);

/* ---- Ahead of time: prepare everything, then seal, and a run never compiles. ---- */

typedef struct ordo_prepare_report {
  size_t struct_size;
  size_t plans;    /* different ones */
  size_t kernels;  /* different ones */
  size_t compiled; /* of these, by this call */
  size_t loaded;   /* plans loaded in the current context; 0 where there is none */
} ordo_prepare_report;

/* Prepares every problem and plan of a list (TOML, see models/README.md), and loads them where a CUDA context is current.
 * `progress`: after each plan, `doing` its number ("3 of 40"); may be NULL. report: may be NULL. Errors: ORDO_IO and
 * ORDO_INVALID_ARGUMENT for the list, ORDO_CANCELLED, and those of ordo_kernel_prepare(). */
ORDO_C_API ordo_status ordo_engine_prepare_list(ordo_engine* engine, const char* path, ordo_progress progress, void* data,
                                                ordo_prepare_report* report);
/* From now on only what is prepared is found: anything else is ORDO_NOT_PREPARED, whose message names what is missing; nothing is
 * compiled or written. There is no way back. NULL: nothing happens. */
ORDO_C_API void ordo_engine_seal(ordo_engine* engine);
/* Whether it is sealed; 0 for NULL. */
ORDO_C_API int ordo_engine_sealed(const ordo_engine* engine);

typedef struct ordo_cache_counters {
  size_t struct_size;
  uint64_t memory_hits, local_hits, shipped_hits, misses;        /* kernels looked for, and where they were found */
  uint64_t compiles, compile_failures, shared_compiles;          /* shared: another process or thread compiled it meanwhile */
  double compile_seconds, wait_seconds;
} ordo_cache_counters;

/* What the engine has counted since it was made. */
ORDO_C_API ordo_status ordo_engine_counters(const ordo_engine* engine, ordo_cache_counters* counters);

/* ---- Ranks: one GPU each, threads of one process or processes of any launcher. ----
 *
 * Calls marked collective are made by all ranks in the same order. One thread a rank uses a communicator and what is made with it;
 * ordo_communicator_status() may be called from any. A failure on one rank fails the communicator on every rank: whatever was in
 * flight ends within the timeout, its results are undefined, and every later call returns the error that came first. */

/* Copies `bytes` of every rank's `mine` to all + rank * bytes, on every rank; returns 0, or anything else for failure. Called a few
 * times while a communicator is created. */
typedef int (*ordo_all_gather)(const void* mine, size_t bytes, void* all, void* data);

typedef struct ordo_communicator_options {
  size_t struct_size;
  /* How the ranks find each other: by this function; where it is NULL, at `address` ("tcp:host:port", "unix:path", "unix:@name");
   * where that is NULL too, by the environment, as torchrun, MPI, Slurm and `ordo launch` set it: then rank and ranks are not
   * looked at. */
  ordo_all_gather all_gather;
  void* all_gather_data;
  const char* address;
  int rank, ranks;
  int local_rank;        /* with all_gather: among the ranks of this host, the default device */
  int has_device;        /* not 0: this rank's GPU is number `device`; else the local rank */
  int device;
  int timeout_ms;        /* the longest that any wait for another rank takes, on the host and on the device. 0: 30000 */
  const char* transport; /* "vmm", "ipc", "nccl", "automatic"; NULL: the first that a real transfer proves */
} ordo_communicator_options;

/* Collective. Errors: ORDO_INVALID_ARGUMENT; ORDO_NO_DEVICE, ORDO_DRIVER; ORDO_IO: who did not come, or no transport works. */
ORDO_C_API ordo_status ordo_communicator_create(const ordo_communicator_options* options, ordo_communicator** out);
/* Collective, unless it failed. What was made with it is destroyed before. */
ORDO_C_API void ordo_communicator_destroy(ordo_communicator* communicator);
ORDO_C_API int ordo_communicator_rank(const ordo_communicator* communicator);
ORDO_C_API int ordo_communicator_ranks(const ordo_communicator* communicator);
ORDO_C_API int ordo_communicator_device(const ordo_communicator* communicator);
/* The transport in use, by its name above. */
ORDO_C_API const char* ordo_communicator_transport(const ordo_communicator* communicator);
/* ORDO_OK, or why it failed. Does not wait. Asked after a launch's stream was synchronised it says whether the results are to be
 * trusted. */
ORDO_C_API ordo_status ordo_communicator_status(const ordo_communicator* communicator);
/* Collective: returns once every rank called it. */
ORDO_C_API ordo_status ordo_communicator_barrier(ordo_communicator* communicator);

/* ---- Overlapped products: slices travel between ranks while each of them multiplies. ----
 *
 * A problem is a line of text, "overlap-gemm op=all-gather-gemm m=8192 n=4096 k=4096 ranks=2"; op is all-gather-gemm,
 * gemm-reduce-scatter, gemm-all-reduce, gemm-all-to-all or all-to-all-gemm. What one rank computes is D [m, n] = A [m, k] B [k, n]
 * (gemm-reduce-scatter: this rank's rows of D). More keys, with their defaults: dtype=bf16 (of A, B and bias; or fp16) a=row b=column
 * (storage) out=same (or fp32) bias=0 activation=none (relu, gelu, silu). See ordo/overlap.hpp for each. */

/* How it would be computed. peer_access: not 0 where the ranks map each other's memory. Every rank gets the same answer. */
ORDO_C_API ordo_status ordo_overlap_plan_create(const ordo_engine* engine, const char* problem, int peer_access,
                                                ordo_overlap_plan** out);
ORDO_C_API const char* ordo_overlap_plan_text(const ordo_overlap_plan* plan);
/* One sentence. */
ORDO_C_API const char* ordo_overlap_plan_reason(const ordo_overlap_plan* plan);
/* 0: overlapping would not pay; the exchange and the product follow one another. */
ORDO_C_API int ordo_overlap_plan_overlaps(const ordo_overlap_plan* plan);
/* Milliseconds, of one launch on every rank at once. */
ORDO_C_API double ordo_overlap_plan_predicted_ms(const ordo_overlap_plan* plan);
ORDO_C_API void ordo_overlap_plan_destroy(ordo_overlap_plan* plan);

/* A matrix in device memory. stride: elements from one row (storage column: from one column) to the next; these and data are
 * 16-byte aligned. */
typedef struct ordo_matrix {
  void* data;
  int64_t stride;
} ordo_matrix;

typedef struct ordo_overlapped_gemm_tensors {
  size_t struct_size;
  ordo_matrix a, b; /* read until the work is done */
  ordo_matrix d;    /* by rows; every element is written. {NULL, 0} where ordo_overlapped_gemm_output() has it */
  const void* bias; /* [n] in A's type, 16-byte aligned; looked at only if the problem has one */
} ordo_overlapped_gemm_tensors;

/* Collective: plans (or takes `plan`, what ordo_overlap_plan_text() gives, edited if need be: "route=ring" passes the slices of an
 * all-gather-gemm on from rank to rank; else NULL), compiles, and makes the buffers that the ranks share. One object serves every
 * layer of the same shape. The communicator must outlive it. */
ORDO_C_API ordo_status ordo_overlapped_gemm_create(ordo_communicator* communicator, ordo_engine* engine, const char* problem,
                                                   const char* plan, ordo_overlapped_gemm** out);
ORDO_C_API const char* ordo_overlapped_gemm_plan_text(const ordo_overlapped_gemm* product);
/* all-gather-gemm, all-to-all-gemm: the stride that A must have. Other ops: 0, any. */
ORDO_C_API int64_t ordo_overlapped_gemm_a_stride(const ordo_overlapped_gemm* product);
/* gemm-all-reduce, gemm-all-to-all: where D is; to be read, in stream order, until the next launch begins. Other ops: {NULL, 0}. */
ORDO_C_API ordo_status ordo_overlapped_gemm_output(const ordo_overlapped_gemm* product, ordo_matrix* out);
/* Enqueues the product on `stream` of the communicator's context, on all ranks in the same order. No allocation; may be captured
 * into a graph. */
ORDO_C_API ordo_status ordo_overlapped_gemm_launch(ordo_overlapped_gemm* product, const ordo_overlapped_gemm_tensors* tensors,
                                                   ordo_stream stream);
/* Collective, unless the communicator failed. No launch may be in flight. */
ORDO_C_API void ordo_overlapped_gemm_destroy(ordo_overlapped_gemm* product);

#ifdef __cplusplus
}
#endif
#endif
