# `bundle`: what another machine needs to run ordo, in build/<preset>/bundle. Linked from the same objects, but with the C++ runtime
# inside and stripped, so that it runs wherever glibc is at least as new as the build machine's.
set(ORDO_BUNDLE_DIR "${PROJECT_BINARY_DIR}/bundle")
set(ORDO_BUNDLE_TARGETS ordo_bundle_library ordo_bundle_cli)
ordo_add_library(ordo_bundle_library)
ordo_add_cli(ordo_bundle_cli ordo_bundle_library)
if(BUILD_TESTING)
  ordo_add_gpu_tests(ordo_bundle_gpu_tests ordo_bundle_library)
  ordo_add_peer_tests(ordo_bundle_peer_tests)
  ordo_add_gemm_bench(ordo_bundle_gemm_bench ordo_bundle_library)
  list(APPEND ORDO_BUNDLE_TARGETS ordo_bundle_gpu_tests ordo_bundle_peer_tests ordo_bundle_gemm_bench)
endif()
foreach(target IN LISTS ORDO_BUNDLE_TARGETS)
  target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc -s)
  set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON
    RUNTIME_OUTPUT_DIRECTORY "${ORDO_BUNDLE_DIR}/bin" LIBRARY_OUTPUT_DIRECTORY "${ORDO_BUNDLE_DIR}/lib")
endforeach()
# The file is named as the loader asks for it, so that the bundle needs no links beside it.
set_target_properties(ordo_bundle_library PROPERTIES VERSION 0)
add_custom_target(bundle DEPENDS ${ORDO_BUNDLE_TARGETS} COMMENT "Bundle in ${ORDO_BUNDLE_DIR}")
