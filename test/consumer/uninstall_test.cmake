# Uninstalls the package from the stage, beside a file of another library, and checks that only that file is left.
# SPDX-License-Identifier: Apache-2.0
file(WRITE "${STAGE}/lib/libother.a" "")
include("${CMAKE_CURRENT_LIST_DIR}/../../cmake/uninstall.cmake")
file(GLOB_RECURSE left "${STAGE}/*")
file(GLOB_RECURSE folders LIST_DIRECTORIES ON RELATIVE "${STAGE}" "${STAGE}/*")
list(FILTER folders INCLUDE REGEX gpumem)
if(NOT left STREQUAL "${STAGE}/lib/libother.a" OR folders)
  message(FATAL_ERROR "left after the removal: ${left} ${folders}")
endif()
file(REMOVE_RECURSE "${STAGE}")
