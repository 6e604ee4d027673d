/* Attention backward from C, with ordo.h and nothing else of ordo: plan, prepare, ask for the workspace, launch.
 *
 * Planning and compiling need no GPU. Launching does, and takes device memory and a stream from you; this program asks the
 * driver directly, so that it builds without CUDA's headers.
 *
 *   cc backward_c.c $(pkg-config --cflags --libs ordo) -ldl && ./a.out
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <ordo/ordo.h>

enum { BATCH = 1, LENGTH = 1024, HEADS = 8, HEAD_DIM = 128 };

static int failed(const char* what, ordo_status status) {
  if (status == ORDO_OK) return 0;
  fprintf(stderr, "%s: %s: %s\n", what, ordo_status_name(status), ordo_last_error());
  return 1;
}

/* Stands for your framework: memory on device 0, zeroed. */
static int (*allocate)(void** pointer, size_t bytes);
static int (*clear)(void* pointer, unsigned char value, size_t bytes);
static int (*synchronize)(void);

static void find(void* library, const char* name, void* function) {
  void* address = dlsym(library, name);
  memcpy(function, &address, sizeof address);
}

static int open_device(void) {
  int (*init)(unsigned);
  int (*retain)(void**, int);
  int (*make_current)(void*);
  void *context = NULL, *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) return 0;
  find(library, "cuInit", &init);
  find(library, "cuDevicePrimaryCtxRetain", &retain);
  find(library, "cuCtxSetCurrent", &make_current);
  find(library, "cuMemAlloc_v2", &allocate);
  find(library, "cuMemsetD8_v2", &clear);
  find(library, "cuCtxSynchronize", &synchronize);
  return init(0) == 0 && retain(&context, 0) == 0 && make_current(context) == 0;
}

static void* zeros(size_t bytes) {
  void* pointer = NULL;
  return allocate(&pointer, bytes) == 0 && clear(pointer, 0, bytes) == 0 ? pointer : NULL;
}

/* A contiguous [batch, seqlen, heads, head_dim] tensor of 16-bit elements. */
static ordo_tensor tensor(void) {
  ordo_tensor out;
  out.data = zeros((size_t)BATCH * LENGTH * HEADS * HEAD_DIM * 2);
  out.batch_stride = (int64_t)LENGTH * HEADS * HEAD_DIM;
  out.seqlen_stride = HEADS * HEAD_DIM;
  out.head_stride = HEAD_DIM;
  return out;
}

static int launch(const ordo_kernel* kernel, const ordo_attention_backward* problem, size_t workspace_bytes) {
  ordo_attention_backward_tensors tensors;
  void* workspace = zeros(workspace_bytes);
  memset(&tensors, 0, sizeof tensors);
  tensors.struct_size = sizeof tensors;
  tensors.q = tensor(), tensors.k = tensor(), tensors.v = tensor(), tensors.o = tensor(), tensors.d_o = tensor();
  tensors.dq = tensor(), tensors.dk = tensor(), tensors.dv = tensor();
  tensors.lse = zeros(sizeof(float) * BATCH * HEADS * LENGTH);
  tensors.scale = 0.088388348f; /* 1 / sqrt(head_dim) */
  if (failed("launch", ordo_kernel_launch(kernel, problem, &tensors, workspace, workspace_bytes, NULL))) return 1;
  return synchronize() != 0;
}

int main(void) {
  ordo_engine* engine = NULL;
  ordo_plan* plan = NULL;
  ordo_kernel* kernel = NULL;
  size_t workspace_bytes = 0;
  int status = 1;
  ordo_attention_backward problem;
  memset(&problem, 0, sizeof problem);
  problem.struct_size = sizeof problem;
  problem.batch = BATCH, problem.seqlen_q = LENGTH, problem.seqlen_k = LENGTH;
  problem.heads = HEADS, problem.kv_heads = HEADS, problem.head_dim = HEAD_DIM;
  problem.mask = "causal";

  if (failed("engine", ordo_engine_create(NULL, &engine))) goto done;
  if (failed("plan", ordo_plan_create(engine, &problem, NULL, &plan))) goto done;
  printf("plan: %s\nbecause: %s\n", ordo_plan_text(plan), ordo_plan_reason(plan));
  if (failed("prepare", ordo_kernel_prepare(engine, plan, &kernel))) goto done;
  if (failed("workspace", ordo_kernel_workspace_bytes(kernel, &problem, &workspace_bytes))) goto done;
  printf("workspace: %zu bytes\n", workspace_bytes);
  if (open_device()) {
    if (launch(kernel, &problem, workspace_bytes)) goto done;
    printf("launched\n");
  } else {
    printf("no GPU: compiled, not launched\n");
  }
  status = 0;
done:
  ordo_kernel_destroy(kernel);
  ordo_plan_destroy(plan);
  ordo_engine_destroy(engine);
  return status;
}
