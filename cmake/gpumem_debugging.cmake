# Debug information in every kind of build: gdb's printers, and the types that users see and the printers read.
# Included by modules/CMakeLists.txt, whose folder the properties of the files belong to.
# SPDX-License-Identifier: Apache-2.0

# clang describes a class of a named module only where it compiles the interface, never in a program that imports it.
# With a reduced BMI it does not do so there either: it describes what the functions of that one file use. So the
# generated interface is compiled with -g and has a full BMI. That makes a program's file 2 MiB larger; nothing of it is
# loaded. The partitions are compiled without it.
option(GPUMEM_DEBUG_TYPES "Describe the library's types to debuggers, in Release builds too" ON)
set(GPUMEM_DESCRIBED "")
if(GPUMEM_DEBUG_TYPES AND NOT GPUMEM_SANITIZE AND NOT GPUMEM_PARTITIONS)
  set(GPUMEM_DESCRIBED "${CMAKE_CURRENT_BINARY_DIR}/gpumem/gpumem.cppm")
endif()

# Gives the files of the library's target their options; called after gpumem_add_module_library().
function(gpumem_add_debug_information)
  # In a release no path of this machine: neither of the project nor of the headers.
  set(maps -fdebug-compilation-dir=.)
  foreach(folder IN ITEMS "${PROJECT_BINARY_DIR}" "${PROJECT_SOURCE_DIR}" "${GPUMEM_CUDA_INCLUDE_DIR}" "${GPUMEM_CCCL_INCLUDE_DIR}")
    list(APPEND maps "-fdebug-prefix-map=${folder}/=")
  endforeach()
  set(options "$<$<CONFIG:Release>:${maps}>")
  if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 22)
    list(APPEND options -fno-modules-reduced-bmi)
  endif()
  set_property(SOURCE ${GPUMEM_DESCRIBED} APPEND PROPERTY COMPILE_OPTIONS -g "${options}")
  set(carrier "${PROJECT_SOURCE_DIR}/src/base/debugging.cpp" "${CMAKE_CURRENT_BINARY_DIR}/gpumem/base.debugging.cpp")
  set_property(SOURCE ${carrier} APPEND PROPERTY COMPILE_OPTIONS "-I${PROJECT_SOURCE_DIR}/src/base")
  set_property(SOURCE ${carrier} APPEND PROPERTY OBJECT_DEPENDS "${PROJECT_SOURCE_DIR}/src/base/gdb_printers.py")
endfunction()
