# Third-party libraries. All of them are private: nothing that links libordo sees them.

find_package(fmt 9 REQUIRED)
# In an archive of our own, so that neither libordo nor its users need the distribution's shared fmt, and every file does not
# compile it again. Other versions want other instantiations: header-only.
if(fmt_VERSION VERSION_LESS 10)
  add_library(ordo_fmt STATIC "${CMAKE_CURRENT_LIST_DIR}/fmt/fmt.cpp")
  get_target_property(FMT_INCLUDE_DIRS fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
  target_include_directories(ordo_fmt SYSTEM PUBLIC ${FMT_INCLUDE_DIRS})
else()
  add_library(ordo_fmt INTERFACE)
  target_link_libraries(ordo_fmt INTERFACE fmt::fmt-header-only)
endif()
find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 2.1 REQUIRED)
# Shape lists. Headers alone: the distributions' package files ask for their shared library, which users of libordo would need too.
find_path(TOMLPLUSPLUS_INCLUDE_DIR toml++/toml.h REQUIRED)
add_library(ordo_toml INTERFACE)
target_include_directories(ordo_toml SYSTEM INTERFACE "${TOMLPLUSPLUS_INCLUDE_DIR}")
if(BUILD_TESTING)
  find_package(doctest 2.4 REQUIRED)
endif()
find_package(Threads REQUIRED)

# SQLite, zlib and zstd (LLVM's, and the cache's own for cubins) are linked statically where the archive is installed: libordo then needs nothing but the C and C++
# runtimes, and SQLite's version is the one it was tested with.
find_library(SQLite3_LIBRARY NAMES libsqlite3.a sqlite3)
find_package(SQLite3 3.40 REQUIRED)

set(ZLIB_USE_STATIC_LIBS ON)
find_package(LLVM 19.1 REQUIRED CONFIG)
if(TARGET zstd::libzstd_static AND TARGET zstd::libzstd_shared)
  # LLVM's package names only the shared target.
  get_target_property(ZSTD_ARCHIVE zstd::libzstd_static IMPORTED_LOCATION)
  set_target_properties(zstd::libzstd_shared PROPERTIES IMPORTED_LOCATION "${ZSTD_ARCHIVE}")
endif()
# object reads cubins; the rest lowers expressions to IR, optimises it and runs it on the CPU.
llvm_map_components_to_libnames(ORDO_LLVM_LIBRARIES object support core passes orcjit native)
