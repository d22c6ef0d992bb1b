# The compiler options of all targets, and the compilers that are refused.
# SPDX-License-Identifier: Apache-2.0
include("${CMAKE_CURRENT_LIST_DIR}/gpumem_requirements.cmake")
if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_CXX_EXTENSIONS)
  set(CMAKE_CXX_EXTENSIONS OFF)
endif()
gpumem_check_toolchain(build gpumem_obstacle)
if(gpumem_obstacle)
  message(FATAL_ERROR "${gpumem_obstacle}")
endif()
# A project that adds gpumem gets the modules in its own language mode.
gpumem_language_mode(CMAKE_CXX_STANDARD CMAKE_CXX_EXTENSIONS)
if(NOT PROJECT_IS_TOP_LEVEL)
  gpumem_check_importers_later("${CMAKE_SOURCE_DIR}")
endif()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Kind of build" FORCE)
endif()

set(CMAKE_CXX_STANDARD_REQUIRED ON)
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
