# Functions that add libraries of modules, and the module library itself: one list of files, and one target for each
# variant.
# SPDX-License-Identifier: Apache-2.0

# The module is written in partitions. It is built from one generated interface, which costs an importer a tenth of what
# the partitions cost. The preset `partitions` builds it as it is written; clangd and the linters read that.
option(GPUMEM_PARTITIONS "Build the module from its partitions, without the generated interface" OFF)
# The linters read how each file is compiled alone.
set(GPUMEM_JOIN_SOURCES ON)
if(GPUMEM_PARTITIONS AND NOT GPUMEM_SANITIZE)
  set(GPUMEM_JOIN_SOURCES OFF)
endif()
option(GPUMEM_TUNABLE "Read the tuning constants from the environment, for experiments with benchmarks" OFF)
if(GPUMEM_BUILD_TESTS OR NOT GPUMEM_PARTITIONS OR GPUMEM_TUNABLE)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()
set(GPUMEM_TUNING_FOLDER "${PROJECT_SOURCE_DIR}/src")
if(GPUMEM_TUNABLE)
  if(GPUMEM_BUILD_TESTS)
    message(FATAL_ERROR "GPUMEM_TUNABLE needs -DGPUMEM_BUILD_TESTS=OFF: the tests are compiled with the usual constants")
  endif()
  set(GPUMEM_TUNING_FOLDER "${PROJECT_BINARY_DIR}/tunable")
  execute_process(COMMAND "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/cmake/tunable.py"
    "${PROJECT_SOURCE_DIR}/src/base/tuning.hpp" "${GPUMEM_TUNING_FOLDER}/base/tuning.hpp" COMMAND_ERROR_IS_FATAL ANY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
    "${PROJECT_SOURCE_DIR}/src/base/tuning.hpp" "${PROJECT_SOURCE_DIR}/cmake/tunable.py")
endif()
# Units with more in their global module fragment than includes, or with options of their own.
set(GPUMEM_SINGLE_UNITS
  base/cuda.cpp base/debugging.cpp base/scheduled/sync.cpp base/sync.cpp pools/engine/nvtx_counters.cpp)

# gpumem_reduce_bmis(<target> [<interface>...])
# Makes the project's own build write BMIs without the parts that importers cannot see: those of these files, or of all.
# The package's configuration decides it again for the importer's compiler. From clang 22 on this is the default. Remove
# the function when clang >= 22 is required.
function(gpumem_reduce_bmis target)
  if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 20)
    return()
  elseif(ARGN)
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS "$<BUILD_INTERFACE:-fexperimental-modules-reduced-bmi>")
  else()
    target_compile_options(${target} PRIVATE "$<BUILD_INTERFACE:-fexperimental-modules-reduced-bmi>")
  endif()
endfunction()

# gpumem_add_implementation_partitions(<target> PRIMARY <interface> FILES <file>... [MODULES_OF <target>...])
# Adds implementation partitions of the target's module. No file imports them, so they are compiled only to objects: in
# a file set each would get a BMI too, which doubles the time. They find the interfaces in the target's own folder, and
# those of other modules in their targets' folders. They are compiled after the primary interface, which imports all
# other interfaces. The properties of the files belong to the calling folder, so each folder can have only one such
# target. CMake knows partitions only in file sets (CMake merge request 7369); no report that asks for partitions without
# a BMI is known. Remove the function when CMake compiles them to objects only.
function(gpumem_add_implementation_partitions target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "PRIMARY" "FILES;MODULES_OF")
  cmake_path(IS_PREFIX CMAKE_CURRENT_BINARY_DIR "${arg_PRIMARY}" generated)
  set(base "${CMAKE_CURRENT_SOURCE_DIR}")
  if(generated)
    set(base "${CMAKE_CURRENT_BINARY_DIR}")
  endif()
  cmake_path(RELATIVE_PATH arg_PRIMARY BASE_DIRECTORY "${base}" OUTPUT_VARIABLE primary)
  string(REPLACE "../" "__/" primary "${primary}")
  set(objects "${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${target}.dir")
  set(folders "-fprebuilt-module-path=${objects}")
  foreach(other IN LISTS arg_MODULES_OF)
    get_target_property(folder ${other} BINARY_DIR)
    list(APPEND folders "-fprebuilt-module-path=${folder}/CMakeFiles/${other}.dir")
  endforeach()
  target_sources(${target} PRIVATE ${arg_FILES})
  set_source_files_properties(${arg_FILES} PROPERTIES
    CXX_SCAN_FOR_MODULES OFF COMPILE_OPTIONS "${folders}" OBJECT_DEPENDS "${objects}/${primary}.o")
endfunction()

# The version as <gpumem/version.h> counts it.
math(EXPR GPUMEM_BUILT_VERSION
  "${PROJECT_VERSION_MAJOR} * 10000 + ${PROJECT_VERSION_MINOR} * 100 + ${PROJECT_VERSION_PATCH}")
# Binaries contain the paths of some source files, for messages. These options keep the machine's folders out of them.
set(GPUMEM_PREFIX_MAPS
  "$<BUILD_INTERFACE:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>"
  "$<BUILD_INTERFACE:-fmacro-prefix-map=${GPUMEM_CUDA_INCLUDE_DIR}/=>"
  "$<BUILD_INTERFACE:-fmacro-prefix-map=${GPUMEM_CCCL_INCLUDE_DIR}/=>")

# libbacktrace comes with GCC. Clang finds it there too.
if(GPUMEM_WITH_LIBBACKTRACE)
  include(CheckLibraryExists)
  check_library_exists(backtrace backtrace_create_state "" GPUMEM_LIBBACKTRACE_FOUND)
endif()

# Thread-local variables by TLS descriptors, which the C library reads without a call of __tls_get_addr. Programs are
# linked without either. Other processors use descriptors anyway.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT GPUMEM_SANITIZE)
  set(GPUMEM_TLS_OPTIONS -mtls-dialect=gnu2)
endif()

# gpumem_generate_interface(<target> <interfaces> <implementations>)
# Generates <folder>/gpumem.cppm of all interfaces, and units of at most four implementations each, which lie in one
# folder of src/; <folder> has the target's name, in the calling folder's build folder. Sets `implementations` to the
# units.
function(gpumem_generate_interface name interfaces implementations)
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/${name}")
  # Relative paths, since the project's own folder may have a blank in its name.
  string(REPLACE "${PROJECT_SOURCE_DIR}/" "" files "${interfaces}")
  list(JOIN files " " files)
  set(list "gpumem.cppm: ${files}\n")
  set(sources)
  set(units)
  set(unit_folder)
  foreach(file IN LISTS implementations)
    cmake_path(GET file PARENT_PATH file_folder)
    if(NOT file_folder STREQUAL unit_folder OR count EQUAL 4 OR file IN_LIST GPUMEM_SINGLE_UNITS)
      string(REPLACE "/" "." unit "${file}")
      list(APPEND units "${folder}/${unit}")
      string(APPEND list "\n${unit}:")
      set(unit_folder "${file_folder}")
      set(count 0)
    endif()
    if(file IN_LIST GPUMEM_SINGLE_UNITS)
      set(unit_folder)
    endif()
    string(APPEND list " src/${file}")
    list(APPEND sources "${PROJECT_SOURCE_DIR}/src/${file}")
    math(EXPR count "${count} + 1")
  endforeach()
  string(REPLACE "\n\n" "\n" list "${list}")
  file(CONFIGURE OUTPUT "${folder}.list" CONTENT "${list}\n" @ONLY)
  set(script "${PROJECT_SOURCE_DIR}/cmake/one_interface.py")
  add_custom_command(OUTPUT "${folder}/gpumem.cppm" ${units}
    COMMAND Python3::Interpreter "${script}" "${folder}.list" "${folder}"
    DEPENDS "${script}" "${folder}.list" ${interfaces} ${sources}
    COMMENT "Generating the interface and the units of ${name}" VERBATIM)
  set(implementations "${units}" PARENT_SCOPE)
endfunction()

# gpumem_add_module_library(<name> [INTERFACES <file>...] [IMPLEMENTATIONS <file>...] [FULL <file>...])
# Adds a static library from the lists GPUMEM_HEADERS, GPUMEM_INTERFACES (paths under modules/) and
# GPUMEM_IMPLEMENTATIONS (paths under src/), and from the additional files of this variant, named the same way. FULL:
# absolute paths of the interfaces whose BMIs are not reduced.
function(gpumem_add_module_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "INTERFACES;IMPLEMENTATIONS;FULL")
  set(headers ${GPUMEM_HEADERS})
  set(interfaces ${GPUMEM_INTERFACES} ${arg_INTERFACES})
  set(implementations ${arg_IMPLEMENTATIONS} ${GPUMEM_IMPLEMENTATIONS})
  list(TRANSFORM headers PREPEND "${PROJECT_SOURCE_DIR}/modules/")
  list(TRANSFORM interfaces PREPEND "${PROJECT_SOURCE_DIR}/modules/")

  add_library(${name} STATIC)
  if(GPUMEM_PARTITIONS)
    list(TRANSFORM implementations PREPEND "${PROJECT_SOURCE_DIR}/src/")
    set(folder "${PROJECT_SOURCE_DIR}/modules")
    set(primary "${folder}/gpumem.cppm")
  else()
    gpumem_generate_interface(${name} "${interfaces}" "${implementations}")
    set(folder "${CMAKE_CURRENT_BINARY_DIR}/${name}")
    set(primary "${folder}/gpumem.cppm")
    set(interfaces "${primary}")
  endif()
  if(GPUMEM_JOIN_SOURCES AND NOT GPUMEM_PARTITIONS)
    # The headers of most units, which take more than half of their compile time. In partitions clang 19 then leaves out
    # a friend of the standard library.
    target_precompile_headers(${name} PRIVATE <algorithm> <array> <atomic> <bit> <chrono> <map> <memory> <mutex>
      <optional> <span> <stdexcept> <string> <unordered_map> <vector> <cuda.h>)
    set(others ${GPUMEM_SINGLE_UNITS})
    list(TRANSFORM others REPLACE "/" ".")
    list(TRANSFORM others PREPEND "${folder}/")
    set_source_files_properties(${interfaces} ${others} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  endif()
  target_sources(${name}
    PUBLIC FILE_SET CXX_MODULES BASE_DIRS "${folder}" FILES ${interfaces}
    PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/modules/bridge" FILES ${headers})
  # Where an importer of GCC and the library both have an inline variable, the linker keeps GCC's, without clang's dynamic
  # initialization. So interfaces have none.
  set_property(SOURCE ${interfaces} APPEND PROPERTY COMPILE_OPTIONS "$<BUILD_INTERFACE:-Wglobal-constructors>")
  set(reduced ${interfaces})
  if(arg_FULL)
    list(REMOVE_ITEM reduced ${arg_FULL})
  endif()
  if(reduced)
    gpumem_reduce_bmis(${name} ${reduced})
  endif()
  gpumem_add_implementation_partitions(${name} PRIMARY "${primary}" FILES ${implementations})
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_compile_options(${name} PRIVATE "$<BUILD_INTERFACE:-Wthread-safety>" "$<BUILD_INTERFACE:${GPUMEM_TLS_OPTIONS}>"
    ${GPUMEM_PREFIX_MAPS})
  target_include_directories(${name} PRIVATE "$<BUILD_INTERFACE:${GPUMEM_TUNING_FOLDER}>"
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>")
  target_compile_definitions(${name} PRIVATE GPUMEM_BUILT_VERSION=${GPUMEM_BUILT_VERSION})
  # For gpumem_c and for users' shared libraries. In programs the linker removes the indirections.
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  # In the installed package, the finder that it contains defines the same target.
  target_link_libraries(${name} PUBLIC
    "$<BUILD_INTERFACE:gpumem_cccl>" "$<INSTALL_INTERFACE:gpumem::cccl>" Threads::Threads ${CMAKE_DL_LIBS})
  if(GPUMEM_WITH_LIBBACKTRACE AND GPUMEM_LIBBACKTRACE_FOUND)
    target_compile_definitions(${name} PRIVATE GPUMEM_WITH_LIBBACKTRACE)
    target_link_libraries(${name} PRIVATE backtrace)
  endif()
endfunction()
