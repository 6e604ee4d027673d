// The copy engine: tensor and bulk copies (PTX ISA, "cp.async.bulk" and "cp.async.bulk.tensor"). One thread issues each.
#pragma once

#include "sm90/basic.cuh"
#include "sm90/tensor_map.cuh"

namespace ordo {

ORDO_DEVICE void prefetch_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

/// Loads a box of a 5-d map {64 columns, rows, 64-column chunk, head, batch}. Rows outside the tensor arrive as zeros.
ORDO_DEVICE void load_box(u32 destination, const TensorMap& map, u32 barrier, int row, int chunk, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(
          destination),
      "l"(&map), "r"(barrier), "r"(0), "r"(row), "r"(chunk), "r"(head), "r"(batch)
      : "memory");
}

/// The same into both CTAs of a cluster, at the same offset, completing on each CTA's own barrier.
ORDO_DEVICE void load_box_multicast(u32 destination, const TensorMap& map, u32 barrier, int row, int chunk, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(0), "r"(row), "r"(chunk), "r"(head), "r"(batch), "h"(static_cast<u16>(3))
      : "memory");
}

/// Stores a box; rows outside the tensor are dropped.
ORDO_DEVICE void store_box(const TensorMap& map, u32 source, int row, int chunk, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map), "r"(source),
               "r"(0), "r"(row), "r"(chunk), "r"(head), "r"(batch)
               : "memory");
}

/// Loads a box of a 2-d map at column `x`, row `y`. What lies outside the tensor arrives as zeros.
ORDO_DEVICE void load_tile(u32 destination, const TensorMap& map, u32 barrier, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
                   destination),
               "l"(&map), "r"(barrier), "r"(x), "r"(y)
               : "memory");
}

/// The same into every CTA of `ctas` (a bit each), at the same offset, completing on each CTA's own barrier.
ORDO_DEVICE void load_tile_multicast(u32 destination, const TensorMap& map, u32 barrier, int x, int y, u16 ctas) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], "
      "[%2], "
      "%5;" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "h"(ctas)
      : "memory");
}

/// Stores a box; what lies outside the tensor is dropped.
ORDO_DEVICE void store_tile(const TensorMap& map, u32 source, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map), "r"(source), "r"(x),
               "r"(y)
               : "memory");
}

/// Loads a run of a 1-d map from element `x` on.
ORDO_DEVICE void load_run(u32 destination, const TensorMap& map, u32 barrier, int x) {
  asm volatile(
      "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3}], [%2];" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(x)
      : "memory");
}

ORDO_DEVICE void load_bulk(u32 destination, const void* source, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination),
               "l"(source), "r"(bytes), "r"(barrier)
               : "memory");
}
/// Shared memory of this CTA to shared memory of a CTA of the cluster, completing on that CTA's barrier.
ORDO_DEVICE void copy_to_peer(u32 mapped_destination, u32 source, u32 bytes, u32 mapped_barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(mapped_destination),
      "r"(source), "r"(bytes), "r"(mapped_barrier)
      : "memory");
}
ORDO_DEVICE void store_bulk(void* destination, u32 source, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination), "r"(source), "r"(bytes)
               : "memory");
}
ORDO_DEVICE void reduce_bulk_f32(void* destination, u32 source, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(destination), "r"(source),
               "r"(bytes)
               : "memory");
}
ORDO_DEVICE void reduce_bulk_s32(void* destination, u32 source, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], %2;" ::"l"(destination), "r"(source),
               "r"(bytes)
               : "memory");
}

ORDO_DEVICE void commit_copies() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until the sources of all but the newest `Pending` groups have been read.
template <int Pending>
ORDO_DEVICE void wait_copies_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}
/// Waits until all but the newest `Pending` groups are complete, their writes visible to this thread.
template <int Pending>
ORDO_DEVICE void wait_copies() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace ordo
