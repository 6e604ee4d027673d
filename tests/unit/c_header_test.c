/* ordo.h as C sees it. Returns 0, or the number of the first structure whose layout is not the one that version 1 of the ABI has.
 */
#include "ordo/ordo.h"

int ordo_c_header_test(void) {
  if (sizeof(ordo_attention_backward_tensors) != 8 + 5 * 32 + 8 + 3 * 32 + 8) return 1;
  if (sizeof(ordo_attention_backward) != 8 + 6 * 8 + 2 * 8) return 2;
  if (offsetof(ordo_engine_options, cache_layers) != 8 + 8 + 8 + 8 + 8 + 8) return 3;
  if (sizeof(ordo_engine_options) != offsetof(ordo_engine_options, cache_layers) + 5 * 8) return 3;
  if (sizeof(ordo_plan_request) != 8 + 8 + 8 + 8) return 4;
  if (sizeof(ordo_prepare_report) != 8 + 4 * 8) return 6;
  if (sizeof(ordo_cache_counters) != 8 + 9 * 8) return 7;
  if (sizeof(ordo_communicator_options) != 8 + 3 * 8 + 6 * 4 + 8) return 8;
  if (sizeof(ordo_overlapped_gemm_tensors) != 8 + 3 * 16 + 8) return 9;
  return ordo_abi_version() == ORDO_ABI_VERSION ? 0 : 5;
}
