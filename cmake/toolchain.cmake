# What the compiler and linker are asked beyond the standard.

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "GCC ${CMAKE_CXX_COMPILER_VERSION} is too old: ordo needs GCC 12 or Clang 16")
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 16)
  message(FATAL_ERROR "Clang ${CMAKE_CXX_COMPILER_VERSION} is too old: ordo needs Clang 16 or GCC 12")
endif()

# ccache sees paths relative to the checkout, so that a fresh clone in another folder still hits.
find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${CCACHE}")
endif()

# LLVM's archives make the link the slowest step with GNU ld; lld takes a second or two.
find_program(LLD ld.lld HINTS /usr/lib/llvm-19/bin)
if(LLD)
  cmake_path(GET LLD PARENT_PATH LLD_FOLDER)
  add_link_options(-fuse-ld=lld "-B${LLD_FOLDER}")
endif()
add_link_options(-Wl,--as-needed -Wl,--gc-sections)
