# What an installation holds beside the library and its headers: a version file for find_package, a pkg-config file; and a .deb.
include(CMakePackageConfigHelpers)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/ordoConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/ordoConfigVersion.cmake" DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/ordo")

cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/pkgconfig" OUTPUT_VARIABLE ORDO_PC_PREFIX)
configure_file("${PROJECT_SOURCE_DIR}/cmake/ordo.pc.in" "${PROJECT_BINARY_DIR}/ordo.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/ordo.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME ordo)
set(CPACK_PACKAGE_VENDOR "ordo developers")
set(CPACK_PACKAGE_CONTACT "ordo developers <ordo@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "cuda-nvrtc-13-0 | cuda-nvrtc-12-8")  # to compile; what the cache holds runs without it
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
include(CPack)
