# One function for a test.
# SPDX-License-Identifier: Apache-2.0
if(GPUMEM_BUILD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
  # Half of what most tests take to compile, read once.
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/test_headers.cpp" CONTENT "")
  add_library(gpumem_test_headers OBJECT "${PROJECT_BINARY_DIR}/test_headers.cpp")
  target_link_libraries(gpumem_test_headers PRIVATE GTest::gmock)
  target_precompile_headers(gpumem_test_headers PRIVATE
    <gtest/gtest.h> <algorithm> <atomic> <chrono> <functional> <memory> <string> <thread> <vector>)
  # What the sanitizer presets build: the tests labelled `property`; all that suit a sanitizer are the second target.
  add_custom_target(gpumem_property_tests)
  add_custom_target(gpumem_sanitize_tests)
endif()

# gpumem_add_test(<name> SOURCES <file>... [LIBRARY gpumem|gpumem_scheduled] [LIBRARIES <library>...]
#                 [LABELS <label>...] [TIMEOUT <seconds>] [ENVIRONMENT <name=value>...])
# The program test_<name> from sources under test/, with GoogleMock's main unless one source has its own; each test
# in it is a test of ctest. The label `property` also builds and runs it under a sanitizer: with gpumem_scheduled under
# the address sanitizer, where a failing seed replays, with free threads under the thread sanitizer, from which a schedule
# hides races. `sanitize` only says that it suits them.
function(gpumem_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LIBRARY;TIMEOUT" "SOURCES;LIBRARIES;LABELS;ENVIRONMENT")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "gpumem_add_test(${name}): SOURCES are needed; unknown: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_LIBRARY)
    set(arg_LIBRARY gpumem)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(arg_LIBRARY STREQUAL gpumem_scheduled AND GPUMEM_SANITIZE STREQUAL thread)
    return()
  endif()
  if(arg_LIBRARY STREQUAL gpumem AND GPUMEM_SANITIZE MATCHES address)
    list(REMOVE_ITEM arg_LABELS property)
  endif()
  add_executable(test_${name} ${arg_SOURCES})
  target_link_libraries(test_${name} PRIVATE ${arg_LIBRARY} ${arg_LIBRARIES} GTest::gmock GTest::gmock_main)
  target_precompile_headers(test_${name} REUSE_FROM gpumem_test_headers)
  gtest_discover_tests(test_${name} TEST_LIST test_${name}_names DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${arg_TIMEOUT})
  # Lists do not survive gtest_discover_tests; ctest reads this file after the one that names the tests.
  set(properties "${CMAKE_CURRENT_BINARY_DIR}/test_${name}_properties.cmake")
  file(CONFIGURE OUTPUT "${properties}" @ONLY CONTENT [[
if(test_@name@_names)
  set_tests_properties(${test_@name@_names} PROPERTIES LABELS "@arg_LABELS@" ENVIRONMENT "@arg_ENVIRONMENT@")
endif()
]])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${properties}")
  foreach(label IN ITEMS property sanitize)
    if(label IN_LIST arg_LABELS)
      add_dependencies(gpumem_${label}_tests test_${name})
    endif()
  endforeach()
endfunction()
