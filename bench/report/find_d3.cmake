# Finds D3, which draws the axes of the report's page: it goes into the program, and its license into the page. Both are
# files of Debian's package libjs-d3. Sets GPUMEM_REPORT_BUILT.
# SPDX-License-Identifier: Apache-2.0
find_file(GPUMEM_D3 d3.min.js PATHS /usr/share/javascript/d3 NO_DEFAULT_PATH)
find_file(GPUMEM_D3_LICENSE copyright PATHS /usr/share/doc/libjs-d3 NO_DEFAULT_PATH)
mark_as_advanced(GPUMEM_D3 GPUMEM_D3_LICENSE)
set(GPUMEM_REPORT_BUILT OFF)
if(GPUMEM_D3 AND GPUMEM_D3_LICENSE)
  set(GPUMEM_REPORT_BUILT ON)
endif()
