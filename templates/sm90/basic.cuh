// Integer names, the function qualifier and a few conversions. Nothing here needs a header.
#pragma once

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

#define ORDO_DEVICE __device__ __forceinline__

namespace ordo {

ORDO_DEVICE int lane_id() { return static_cast<int>(threadIdx.x & 31u); }

/// lane_id() read at this point of the program: the compiler cannot keep what follows from it in registers from before.
ORDO_DEVICE int fresh_lane() {
  int x;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(x));
  return x;
}

/// `x`, of which the compiler knows nothing before this point of the program.
ORDO_DEVICE int fresh(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// The warp's number in its block, known to the compiler to be uniform.
ORDO_DEVICE int warp_id() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x >> 5), 0); }

/// 2^x, one MUFU. Denormal results are flushed: P below 2^-126 is zero in any 16-bit type.
ORDO_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Volatile: a read of what another thread or the copy engine wrote must stay behind the barrier wait before it.
ORDO_DEVICE float load_shared(u32 address) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}

ORDO_DEVICE float2 load_shared2(u32 address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
  return x;
}

ORDO_DEVICE int4 load_shared_int4(u32 address) {
  int4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
  return x;
}

ORDO_DEVICE u32 load_shared_u32(u32 address) {
  u32 x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}

ORDO_DEVICE int load_shared_int(u32 address) {
  int x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}

ORDO_DEVICE void store_shared(u32 address, float x) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory"); }
ORDO_DEVICE void store_shared2(u32 address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}
ORDO_DEVICE void store_shared_int(u32 address, int x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
ORDO_DEVICE void store_shared4(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

/// Four 8x8 matrices of 16-bit elements, rows of 16 bytes; lane l gives the address of row l % 8 of matrix l / 8.
ORDO_DEVICE void store_matrix4(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

/// The inverse: the fragments that store_matrix4 would have written from.
ORDO_DEVICE void load_matrix4(u32 address, u32& a, u32& b, u32& c, u32& d) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(address)
               : "memory");
}

/// Named barrier (PTX bar.sync): waits for `threads` threads, those that call named_arrive included.
ORDO_DEVICE void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
ORDO_DEVICE void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

template <int Registers>
ORDO_DEVICE void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
ORDO_DEVICE void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

/// Makes this thread's shared-memory stores visible to wgmma and to the copy engine (the async proxy).
ORDO_DEVICE void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// The same for global memory alone; the form without a space adds a MEMBAR.ALL.GPU (500 clk more, measured).
ORDO_DEVICE void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/// For all state spaces: also for what other devices have written.
ORDO_DEVICE void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

/// Programmatic dependent launch: waits until the kernels this one depends on have finished and their writes are visible.
ORDO_DEVICE void wait_for_predecessors() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

ORDO_DEVICE u32 load_acquire(const u32* address) {
  u32 x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(address) : "memory");
  return x;
}
ORDO_DEVICE u32 load_relaxed(const u32* address) {
  u32 x;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(address) : "memory");
  return x;
}
/// After relaxed loads: makes an acquire of them.
ORDO_DEVICE void fence_acquire() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
ORDO_DEVICE u32 load_acquire_system(const u32* address) {
  u32 x;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(address) : "memory");
  return x;
}
ORDO_DEVICE void add_release_system(u32* address, u32 value) {
  asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
ORDO_DEVICE void store_release_system(u32* address, u32 value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
ORDO_DEVICE u32 compare_and_swap_system(u32* address, u32 expected, u32 value) {
  u32 old;
  asm volatile("atom.acq_rel.sys.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(old)
               : "l"(address), "r"(expected), "r"(value)
               : "memory");
  return old;
}
/// Nanoseconds of a clock that all SMs share; its step is a microsecond or less.
ORDO_DEVICE u64 global_nanoseconds() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

ORDO_DEVICE void add_release(u32* address, u32 value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

}  // namespace ordo
