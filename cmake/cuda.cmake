# CUDA's headers (cuda.h, nvrtc.h) and the folder that holds NVRTC. Neither NVRTC nor the driver is linked: both are opened at run
# time, so one build serves machines with another toolkit, or with none. The folder is only the first place to look.
#
# Taken from, in this order: -DORDO_CUDA_ROOT=, an installed toolkit of at least 12.8, and what cmake/bootstrap.sh unpacked from
# NVIDIA's wheels into build/cuda. ORDO_FORCE_WHEELS in the environment leaves toolkits out.

set(ORDO_CUDA_MINIMUM 12080)  # CUDA_VERSION of 12.8

# Sets `result` to the folder of `root` that holds libnvrtc, or to nothing when `root` is no toolkit of ours.
function(ordo_nvrtc_folder root result)
  set(${result} "" PARENT_SCOPE)
  if(NOT EXISTS "${root}/include/cuda.h" OR NOT EXISTS "${root}/include/nvrtc.h")
    return()
  endif()
  file(STRINGS "${root}/include/cuda.h" version REGEX "^#define CUDA_VERSION [0-9]+")
  string(REGEX MATCH "[0-9]+" version "${version}")
  if(NOT version OR version LESS ORDO_CUDA_MINIMUM)
    return()
  endif()
  foreach(folder lib64 lib targets/x86_64-linux/lib)
    file(GLOB libraries "${root}/${folder}/libnvrtc.so.*")
    if(libraries)
      set(${result} "${root}/${folder}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

set(ORDO_CUDA_ROOT "" CACHE PATH "CUDA toolkit whose headers and NVRTC to use; found when empty")
if(ORDO_CUDA_ROOT)
  set(roots "${ORDO_CUDA_ROOT}")
else()
  file(GLOB roots "/usr/local/cuda-*")
  list(SORT roots COMPARE NATURAL ORDER DESCENDING)
  list(PREPEND roots "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}" /usr/local/cuda)
  if(NOT "$ENV{ORDO_FORCE_WHEELS}" STREQUAL "")
    set(roots "")
  endif()
  list(APPEND roots "${PROJECT_SOURCE_DIR}/build/cuda/nvidia/cu13")
endif()

set(ORDO_NVRTC_DIR "")
foreach(root IN LISTS roots)
  ordo_nvrtc_folder("${root}" ORDO_NVRTC_DIR)
  if(ORDO_NVRTC_DIR)
    set(ORDO_CUDA_INCLUDE_DIR "${root}/include")
    message(STATUS "NVRTC: ${ORDO_NVRTC_DIR}")
    break()
  endif()
endforeach()
if(NOT ORDO_NVRTC_DIR)
  list(JOIN roots ", " roots)
  message(FATAL_ERROR "No CUDA toolkit of 12.8 or later with NVRTC (looked in ${roots}). "
    "Run 'bash cmake/bootstrap.sh', which fetches NVRTC from NVIDIA's wheels, or pass -DORDO_CUDA_ROOT=FOLDER.")
endif()

add_library(ordo_cuda INTERFACE)
target_include_directories(ordo_cuda SYSTEM INTERFACE "${ORDO_CUDA_INCLUDE_DIR}")
target_compile_definitions(ordo_cuda INTERFACE "ORDO_NVRTC_DIR=\"${ORDO_NVRTC_DIR}\"")
