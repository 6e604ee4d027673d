#!/usr/bin/env python3
"""controls.py KERNEL: one small kernel, for compute-sanitizer to watch.

Each orders its accesses to shared memory as ordo's kernels do, in the fewest lines, and is right by the PTX ISA ("Parallel
synchronization": bar, mbarrier, bar.warp.sync), but for `race`. What racecheck says of them tells what its reports of ordo's kernels
are worth: see racecheck.py. Needs libcuda and libnvrtc, nothing else.
"""
import ctypes
import sys

# What racecheck must say of each: whether it reports hazards.
REPORTED = {
    "race": True,  # not ordered at all: the tool sees races
    "each_lane_arrives": False,  # it follows an mbarrier on which every reader arrives
    "one_lane_arrives": True,  # but not __syncwarp and one arrival, which orders the same
    "named_pair": False,  # it follows bar.arrive / bar.sync from writer to reader
    "named_chain": True,  # but not through a warp that stands between two writers
}

SOURCE = r"""
using u32 = unsigned int;
using u64 = unsigned long long;
__device__ u32 at(void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ void init(u32 b, u32 n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(n) : "memory"); }
__device__ void arrive(u32 b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory"); }
__device__ void wait(u32 b, u32 parity) {
  u32 done;
  do
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(b), "r"(parity) : "memory");
  while (!done);
}
__device__ void load(u32 to, const void* from, u32 bytes, u32 b) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
               "r"(bytes), "r"(b) : "memory");
}
__device__ void named_sync(int id) { asm volatile("bar.sync %0, 64;" ::"r"(id) : "memory"); }
__device__ void named_arrive(int id) { asm volatile("bar.arrive %0, 64;" ::"r"(id) : "memory"); }

// One thread fills a buffer by bulk copies, three warps read it, eight times. Like the row statistics of a stage.
template <bool EachLane>
__device__ void ring(int* data) {
  __shared__ __align__(128) int buffer[128];
  __shared__ u64 full, empty;
  if (threadIdx.x == 0) {
    init(at(&full), 1);
    init(at(&empty), EachLane ? 96 : 3);
  }
  __syncthreads();
  if (threadIdx.x >= 32) {
    int sum = 0;
    for (int i = 0; i < 8; ++i) {
      wait(at(&full), i & 1);
      sum += buffer[threadIdx.x];
      __syncwarp();
      if (EachLane || threadIdx.x % 32 == 0) arrive(at(&empty));
    }
    data[128 + threadIdx.x] = sum;
  } else if (threadIdx.x == 0) {
    for (int i = 0; i < 8; ++i) {
      wait(at(&empty), (i & 1) ^ 1);
      load(at(buffer), data, sizeof(buffer), at(&full));
    }
  }
}
extern "C" __global__ void each_lane_arrives(int* data) { ring<true>(data); }
extern "C" __global__ void one_lane_arrives(int* data) { ring<false>(data); }

// Warp 0 writes, warp 1 reads and, with Chain, lets warp 2 write the same place. Like a staging buffer of dQ.
template <bool Ordered, bool Chain>
__device__ void named(int* data) {
  __shared__ int buffer[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) {
    buffer[lane] = data[lane];
    if (Ordered) named_arrive(1);
  } else if (warp == 1) {
    if (Ordered) named_sync(1);
    data[128 + lane] = buffer[31 - lane];
    if (Chain) named_arrive(2);
  } else if (warp == 2 && Chain) {
    named_sync(2);
    buffer[lane] = lane;
  }
}
extern "C" __global__ void race(int* data) { named<false, false>(data); }
extern "C" __global__ void named_pair(int* data) { named<true, false>(data); }
extern "C" __global__ void named_chain(int* data) { named<true, true>(data); }
"""


def check(status, what):
    if status != 0:
        sys.exit(f"{what} gave {status}")


def library(*names):
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            pass
    sys.exit("none of " + ", ".join(names) + " is here")


def cubin():
    nvrtc, program, size = library("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"), ctypes.c_void_p(), ctypes.c_size_t()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE.encode(), b"controls.cu", 0, None, None), "nvrtcCreateProgram")
    status = nvrtc.nvrtcCompileProgram(program, 2, (ctypes.c_char_p * 2)(b"-arch=sm_90a", b"-std=c++17"))
    if status != 0:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        sys.exit(log.value.decode())
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetCUBIN(program, code), "nvrtcGetCUBIN")
    return code


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in REPORTED:
        sys.exit(__doc__ + "\nKERNEL: " + ", ".join(REPORTED))
    code = cubin()
    cuda, module, function = library("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    device, context, data = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuInit(0), "cuInit")
    check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    check(cuda.cuModuleLoadData(ctypes.byref(module), code), "cuModuleLoadData")
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, sys.argv[1].encode()), "cuModuleGetFunction")
    check(cuda.cuMemAlloc_v2(ctypes.byref(data), ctypes.c_size_t(1024)), "cuMemAlloc")
    check(cuda.cuMemsetD32_v2(data, 1, ctypes.c_size_t(256)), "cuMemsetD32")
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.pointer(data), ctypes.c_void_p))
    check(cuda.cuLaunchKernel(function, 1, 1, 1, 128, 1, 1, 0, None, arguments, None), "cuLaunchKernel")
    check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")


if __name__ == "__main__":
    main()
