# The compiler options of all targets, and the compilers that are refused.
# SPDX-License-Identifier: Apache-2.0
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # No number of a report is known; the mailing list gcc-patches has the cause and a patch of 2026-01-09. Remove this
  # branch when a GCC passes the tests.
  message(FATAL_ERROR "gpumem needs clang 19 or newer: GCC through 15 cannot compile coroutines in modules. "
                      "The C ABI and the bridge headers are for GCC.")
elseif(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang" OR CMAKE_CXX_COMPILER_VERSION VERSION_LESS 19)
  message(FATAL_ERROR "gpumem needs clang 19 or newer; ${CMAKE_CXX_COMPILER} is "
                      "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}.")
elseif(NOT CMAKE_CXX_COMPILER_CLANG_SCAN_DEPS)
  # Checked here, because CMake 3.31 itself would go on and report that it cannot find Threads. No report is known. To
  # reproduce, hide clang-scan-deps, set CMAKE_CXX_STANDARD and CMAKE_CXX_SCAN_FOR_MODULES, and find Threads.
  message(FATAL_ERROR "${CMAKE_CXX_COMPILER} comes without clang-scan-deps, which modules need: "
                      "install it (Debian: clang-tools-19).")
elseif(NOT CMAKE_GENERATOR MATCHES "Ninja")
  message(FATAL_ERROR "gpumem's modules need the generator Ninja, not ${CMAKE_GENERATOR} (cmake -G Ninja).")
endif()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Kind of build" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES ON)
# A ccache before 4.14 returns stale objects for files that import a module (ccache#1252, ccache#1774). Remove this when
# the supported systems have ccache >= 4.14.
set(CMAKE_CXX_COMPILER_LAUNCHER "")

find_package(Threads REQUIRED)

# Only in the build: the installed package must not add warnings to its users' projects.
add_compile_options("$<BUILD_INTERFACE:-Wall>" "$<BUILD_INTERFACE:-Wextra>")

set(GPUMEM_SANITIZE "" CACHE STRING "Sanitizers for everything built: empty, address,undefined or thread")
if(GPUMEM_SANITIZE)
  add_compile_options("-fsanitize=${GPUMEM_SANITIZE}" -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options("-fsanitize=${GPUMEM_SANITIZE}")
endif()
