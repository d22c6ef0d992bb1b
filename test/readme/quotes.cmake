# Fails unless the README contains each example literally.
# SPDX-License-Identifier: Apache-2.0
file(READ "${README}" readme)
foreach(example IN LISTS EXAMPLES)
  file(READ "${example}" text)
  string(FIND "${readme}" "${text}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${README} does not contain ${example} literally")
  endif()
endforeach()
