# An overlay port of vcpkg: vcpkg install gpumem --overlay-ports=cmake/packaging/vcpkg
# UNTESTED: no test of the project runs vcpkg. It needs clang 19 or newer in CXX, and CUDA and CCCL as README.md says.
# SPDX-License-Identifier: Apache-2.0
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../../.." ABSOLUTE)
set(VCPKG_BUILD_TYPE release) # one form of the library serves both kinds of programs

vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -DGPUMEM_BUILD_TESTS=OFF -DGPUMEM_BUILD_BENCH=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME gpumem_c CONFIG_PATH lib/cmake/gpumem_c DO_NOT_DELETE_PARENT_CONFIG_PATH)
vcpkg_cmake_config_fixup(PACKAGE_NAME gpumem CONFIG_PATH lib/cmake/gpumem)
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
