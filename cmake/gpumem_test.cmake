# gpumem_add_test() and what it needs.
# SPDX-License-Identifier: Apache-2.0
if(GPUMEM_BUILD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
  # Precompiled headers: they take two thirds of the compile time of most tests.
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/test_headers.cpp" CONTENT "")
  add_library(gpumem_test_headers OBJECT "${PROJECT_BINARY_DIR}/test_headers.cpp")
  target_link_libraries(gpumem_test_headers PRIVATE gpumem_cccl GTest::gmock)
  target_compile_options(gpumem_test_headers PRIVATE -O0)
  target_precompile_headers(gpumem_test_headers PRIVATE
    <gtest/gtest.h> <algorithm> <atomic> <chrono> <functional> <memory> <string> <thread> <vector>
    <cuda/devices> <cuda/memory_resource> <cuda/std/expected> <cuda/std/span> <cuda/stream> <cuda.h>)
  # The sanitizer presets build the first target, the tests labelled `property`. The second has all tests that suit a
  # sanitizer.
  add_custom_target(gpumem_property_tests)
  add_custom_target(gpumem_sanitize_tests)
endif()

# gpumem_join_tests(<name> <sources>): replaces each ten test files of the list <sources> by one that joins them.
function(gpumem_join_tests name sources)
  set(others ${${sources}})
  list(FILTER others EXCLUDE REGEX "_test\\.cpp$")
  set(tests ${${sources}})
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(LENGTH tests count)
  if(NOT GPUMEM_JOIN_SOURCES OR count LESS 2)
    return()
  endif()
  list(TRANSFORM tests PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  set(script "${PROJECT_SOURCE_DIR}/cmake/joined_tests.py")
  while(tests)
    list(SUBLIST tests 0 10 group)
    list(REMOVE_ITEM tests ${group})
    list(LENGTH tests left)
    set(joined "${CMAKE_CURRENT_BINARY_DIR}/${name}_${left}.cpp")
    add_custom_command(OUTPUT "${joined}" COMMAND Python3::Interpreter "${script}" "${joined}" ${group}
      DEPENDS "${script}" ${group} COMMENT "Joining test files of ${name}" VERBATIM)
    list(APPEND others "${joined}")
  endwhile()
  set(${sources} "${others}" PARENT_SCOPE)
endfunction()

# gpumem_add_test(<name> SOURCES <file>... [ALONE] [LIBRARY gpumem|gpumem_scheduled] [LIBRARIES <library>...]
#                 [LABELS <label>...] [TIMEOUT <seconds>] [ENVIRONMENT <name=value>...])
# Adds the program test_<name> from sources under test/, with GoogleMock's main unless one source has its own main. Each
# test in it is a test of ctest. The label `property` also builds and runs it under a sanitizer. With gpumem_scheduled
# that is the address sanitizer, where a failing seed can be replayed; with free threads it is the thread sanitizer,
# since a schedule hides races. The label `sanitize` only says that the tests suit a sanitizer.
# ALONE: joined_tests.py must not join the test files.
# The tests' own code is not optimized: that takes a third of its compile time, and the library is optimized.
function(gpumem_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "ALONE" "LIBRARY;TIMEOUT" "SOURCES;LIBRARIES;LABELS;ENVIRONMENT")
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
  if(NOT arg_ALONE)
    gpumem_join_tests(test_${name} arg_SOURCES)
  endif()
  add_executable(test_${name} ${arg_SOURCES})
  target_link_libraries(test_${name} PRIVATE ${arg_LIBRARY} ${arg_LIBRARIES} GTest::gmock GTest::gmock_main)
  target_include_directories(test_${name} PRIVATE "${PROJECT_SOURCE_DIR}/src") # tuning constants
  target_compile_options(test_${name} PRIVATE -O0)
  target_precompile_headers(test_${name} REUSE_FROM gpumem_test_headers)
  gtest_discover_tests(test_${name} TEST_LIST test_${name}_names DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${arg_TIMEOUT})
  # gtest_discover_tests cannot pass lists (CMake issue 17812), so the properties are in this file, which ctest reads
  # after the list of tests. Remove it when the required CMake passes lists.
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
