// wgmma (PTX ISA, "Asynchronous warpgroup level matrix instructions"): D[64 x N] += A[64 x 16] B[16 x N], fp32 accumulators.
// The instruction's operand list has one register a fragment element, so the generator writes the wrappers a kernel uses
// (mma and mma_first, below) for exactly its shapes and element type.
#pragma once

#include "sm90/basic.cuh"

namespace ordo {

/// How an operand lies in shared memory: its k index contiguous (K-major), or its m/n index contiguous (transposed).
enum class Major : int { k = 0, mn = 1 };

/// An operand tile in shared memory, 128-byte swizzle: rows of 128 bytes, groups of 8 rows 1024 bytes apart. Holds the low word
/// of its descriptor, so that moving inside the buffer is one addition: building each descriptor from an address costs ~10
/// uniform instructions, more than the tensor cores need for an N = 64 product.
struct Operand {
  u32 low;
  __device__ __forceinline__ Operand advanced(int bytes) const { return {low + static_cast<u32>(bytes >> 4)}; }
};

/// For an MN-major operand wider than 64 elements `leading_bytes` is the distance of its 64-element chunks; otherwise it is not
/// read. The address is masked to 18 bits: in a cluster, shared addresses of rank 1 have higher bits set, which would corrupt the
/// field above.
ORDO_DEVICE Operand operand(u32 address, int leading_bytes = 16) {
  return {((address & 0x3ffffu) >> 4) | (static_cast<u32>(leading_bytes >> 4) << 16)};
}

ORDO_DEVICE u64 descriptor(Operand x) {
  constexpr u32 high = (1024u >> 4) | (1u << 30);  // stride between 8-row groups; swizzle mode 1 = 128 bytes
  return (static_cast<u64>(high) << 32) | x.low;
}

/// d += A B, both operands from shared memory.
template <Major A, Major B, int Registers>
ORDO_DEVICE void mma(float (&d)[Registers], u64 a, u64 b);
/// d = A B. A form of its own: it has d as output only, so dead accumulators are not kept alive.
template <Major A, Major B, int Registers>
ORDO_DEVICE void mma_first(float (&d)[Registers], u64 a, u64 b);
/// d += A B with A's 64 x 16 tile as a register fragment (four 16-bit pairs a thread).
template <Major B, int Registers>
ORDO_DEVICE void mma(float (&d)[Registers], u32 a0, u32 a1, u32 a2, u32 a3, u64 b);

/// Orders register and shared-memory accesses before the wgmma that follow.
ORDO_DEVICE void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
ORDO_DEVICE void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Ties registers to this point of the program, so that ptxas moves no use of them across an mma in flight.
template <int N>
ORDO_DEVICE void pin(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
template <int N>
ORDO_DEVICE void pin(u32 (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

/// Waits until at most `Pending` committed groups are in flight, whose accumulators are not touched here: what they read may be
/// overwritten.
template <int Pending>
ORDO_DEVICE void mma_wait_operands() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

/// Waits until at most `Pending` committed groups are in flight; `d` belongs to one that is done.
template <int Pending, int N>
ORDO_DEVICE void mma_wait(float (&d)[N]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
  pin(d);
}

}  // namespace ordo
