# CUDA's headers and NVRTC's folder, for what includes cuda.h and nvrtc.h. Neither NVRTC nor the driver is linked: both are opened at
# run time, so one build serves machines with another toolkit, or with none. The folder is only one of the places looked in.
set(ORDO_CUDA_ROOT "" CACHE PATH "CUDA toolkit whose headers and NVRTC to use; found when empty")
include(find_cuda)
if(NOT ORDO_NVRTC_DIR)
  list(JOIN ORDO_CUDA_ROOTS ", " roots)
  message(FATAL_ERROR "No CUDA toolkit of 12.8 or later with NVRTC (looked in ${roots}). "
    "Run 'bash cmake/bootstrap.sh', which fetches NVRTC from NVIDIA's wheels, or pass -DORDO_CUDA_ROOT=FOLDER.")
endif()
message(STATUS "NVRTC: ${ORDO_NVRTC_DIR}")

add_library(ordo_cuda INTERFACE)
target_include_directories(ordo_cuda SYSTEM INTERFACE "${ORDO_CUDA_INCLUDE_DIR}")
target_compile_definitions(ordo_cuda INTERFACE "ORDO_NVRTC_DIR=\"${ORDO_NVRTC_DIR}\"")
