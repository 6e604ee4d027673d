# Finds CUDA's headers (cuda.h, nvrtc.h) and the folder that holds NVRTC: sets ORDO_CUDA_INCLUDE_DIR and ORDO_NVRTC_DIR, empty when
# there is none. Included by cuda.cmake; run as a script (cmake -P) by bootstrap.sh, where it fails when there is none.
#
# Looked for, in this order: -DORDO_CUDA_ROOT=, an installed toolkit of at least 12.8, and what bootstrap.sh unpacked from NVIDIA's
# wheels into build/cuda. ORDO_FORCE_WHEELS in the environment leaves installed toolkits out.
cmake_minimum_required(VERSION 3.25)

set(ORDO_CUDA_MINIMUM 12080)  # CUDA_VERSION of 12.8
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH ORDO_SOURCE_DIR)

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
  foreach(folder lib64 lib)
    file(GLOB libraries "${root}/${folder}/libnvrtc.so.*")
    if(libraries)
      set(${result} "${root}/${folder}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

if(ORDO_CUDA_ROOT)
  set(ORDO_CUDA_ROOTS "${ORDO_CUDA_ROOT}")
else()
  set(ORDO_CUDA_ROOTS "")
  if("$ENV{ORDO_FORCE_WHEELS}" STREQUAL "")
    file(GLOB ORDO_CUDA_ROOTS "/usr/local/cuda-*")
    list(SORT ORDO_CUDA_ROOTS COMPARE NATURAL ORDER DESCENDING)
    foreach(root /usr/local/cuda "$ENV{CUDA_PATH}" "$ENV{CUDA_HOME}")
      if(root)
        list(PREPEND ORDO_CUDA_ROOTS "${root}")
      endif()
    endforeach()
  endif()
  list(APPEND ORDO_CUDA_ROOTS "${ORDO_SOURCE_DIR}/build/cuda/nvidia/cu13")
endif()

set(ORDO_CUDA_INCLUDE_DIR "")
set(ORDO_NVRTC_DIR "")
foreach(root IN LISTS ORDO_CUDA_ROOTS)
  ordo_nvrtc_folder("${root}" ORDO_NVRTC_DIR)
  if(ORDO_NVRTC_DIR)
    set(ORDO_CUDA_INCLUDE_DIR "${root}/include")
    break()
  endif()
endforeach()

if(CMAKE_SCRIPT_MODE_FILE AND NOT ORDO_NVRTC_DIR)
  message(FATAL_ERROR "No CUDA toolkit of 12.8 or later with NVRTC")
endif()
