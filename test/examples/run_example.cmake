# Runs PROGRAM. Fails unless its exit status is 0 and its output matches the regular expression OUTPUT.
# SPDX-License-Identifier: Apache-2.0
execute_process(COMMAND ${PROGRAM} RESULT_VARIABLE status OUTPUT_VARIABLE output)
message("${output}")
if(NOT status EQUAL 0)
  message(FATAL_ERROR "the exit status is ${status}")
elseif(NOT output MATCHES "${OUTPUT}")
  message(FATAL_ERROR "the output does not match \"${OUTPUT}\"")
endif()
