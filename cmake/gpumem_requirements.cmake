# The compilers and generators that can build the modules, and the language mode in which a project imports them.
# Shared by gpumem's own build, by projects that add it as a subdirectory, and by the installed package.
# SPDX-License-Identifier: Apache-2.0

# gpumem_check_toolchain(<use> <result>)
# Sets the result to a sentence that says why the modules cannot be built (use: build) or imported (use: import) here;
# empty if they can.
function(gpumem_check_toolchain use result)
  set(sentence "")
  set(imported_by_gcc OFF)
  if(use STREQUAL import AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 16)
    set(imported_by_gcc ON)
  endif()
  if(CMAKE_VERSION VERSION_LESS 3.28)
    set(sentence "gpumem's modules need CMake 3.28 or newer; this is CMake ${CMAKE_VERSION}.")
  elseif(NOT CMAKE_CXX_COMPILER_ID)
    set(sentence "gpumem needs a C++ compiler: enable the language CXX first.")
  elseif(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT imported_by_gcc)
    # GCC 15: no number of a report is known; the mailing list gcc-patches has the cause and a patch of 2026-01-09. GCC
    # 16 ignores [[clang::preserve_most]]: a library that it compiles would change registers that clang's callers keep.
    # It links the implementations that clang compiled, from an installed package. Remove the branch when no function
    # has that attribute and GCC compiles the implementations.
    string(CONCAT sentence "gpumem needs clang 19 or newer: GCC through 15 cannot compile coroutines in modules, and GCC "
      "16 imports only an installed gpumem, built by clang. "
      "GCC links gpumem::bridge, without modules: find_package(gpumem COMPONENTS bridge).")
  elseif(NOT imported_by_gcc AND (NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang" OR CMAKE_CXX_COMPILER_VERSION VERSION_LESS 19))
    string(CONCAT sentence "gpumem needs clang 19 or newer; ${CMAKE_CXX_COMPILER} is "
      "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}.")
  elseif(NOT imported_by_gcc AND NOT CMAKE_CXX_COMPILER_CLANG_SCAN_DEPS)
    # Checked here, because CMake 3.31 itself would go on and report that it cannot find Threads. No report is known. To
    # reproduce, hide clang-scan-deps, set CMAKE_CXX_STANDARD and CMAKE_CXX_SCAN_FOR_MODULES, and find Threads.
    string(CONCAT sentence "${CMAKE_CXX_COMPILER} comes without clang-scan-deps, which modules need: "
      "install it (Debian: clang-tools-19).")
  elseif(NOT CMAKE_GENERATOR MATCHES "Ninja")
    set(sentence "gpumem's modules need the generator Ninja, not ${CMAKE_GENERATOR} (cmake -G Ninja).")
  else()
    gpumem_language_mode(standard extensions)
    string(TOUPPER "CMAKE_CXX_FLAGS_${CMAKE_BUILD_TYPE}" flags)
    gpumem_disables_exceptions(without_exceptions "${CMAKE_CXX_FLAGS} ${${flags}}")
    if(without_exceptions)
      set(sentence "gpumem throws exceptions, so CMAKE_CXX_FLAGS must not have -fno-exceptions.")
    elseif(NOT "cxx_std_${standard}" IN_LIST CMAKE_CXX_COMPILE_FEATURES)
      string(CONCAT sentence "CMake ${CMAKE_VERSION} has no flag for C++${standard} of ${CMAKE_CXX_COMPILER_ID} "
        "${CMAKE_CXX_COMPILER_VERSION}: C++26 needs CMake 3.31 or newer.")
    endif()
  endif()
  set(${result} "${sentence}" PARENT_SCOPE)
endfunction()

# gpumem_disables_exceptions(<result> <options>): sets the result to ON if the options, separated by blanks or
# semicolons, end with exceptions disabled.
function(gpumem_disables_exceptions result options)
  string(REGEX MATCHALL "(^|[; ])-f(no-)?exceptions" found "${options}")
  list(POP_BACK found last)
  set(${result} OFF PARENT_SCOPE)
  if(last MATCHES "no-")
    set(${result} ON PARENT_SCOPE)
  endif()
endfunction()

# gpumem_language_mode(<standard> <extensions>)
# Sets the two results to the mode that the calling project asks for by CMAKE_CXX_STANDARD and CMAKE_CXX_EXTENSIONS. The
# standard is 20 at least.
function(gpumem_language_mode standard extensions)
  set(${standard} 20 PARENT_SCOPE)
  if(CMAKE_CXX_STANDARD MATCHES "^2[0-9]$")
    set(${standard} "${CMAKE_CXX_STANDARD}" PARENT_SCOPE)
  endif()
  set(${extensions} ON PARENT_SCOPE)
  if(DEFINED CMAKE_CXX_EXTENSIONS AND NOT CMAKE_CXX_EXTENSIONS)
    set(${extensions} OFF PARENT_SCOPE)
  endif()
endfunction()

# gpumem_import_in(<standard> <extensions> <headers>)
# Compiles the installed modules in this mode, with this folder of headers. CMake 3.28 does not give the modules the
# folders of their target's file set HEADERS; 3.31 does. No report is known. CMake compiles the interfaces of imported
# targets in the mode that the target names, not in the importer's. No report is known; CMake issue 25916 has a like
# case, with `import std`. From CMake 4.4 on it uses the importer's mode. Remove the function when CMake 4.4 is
# required.
function(gpumem_import_in standard extensions headers)
  foreach(target IN ITEMS gpumem::gpumem gpumem::thrust gpumem::snapshot gpumem::growable gpumem::device_heap)
    set_target_properties(${target} PROPERTIES IMPORTED_CXX_MODULES_INCLUDE_DIRECTORIES "${headers}"
      IMPORTED_CXX_MODULES_COMPILE_FEATURES "cxx_std_${standard}" CXX_EXTENSIONS "${extensions}")
    # clang 19 ignores -fexperimental-modules-reduced-bmi where it writes only a BMI.
    if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 20)
      set_property(TARGET ${target} PROPERTY IMPORTED_CXX_MODULES_COMPILE_OPTIONS
        "SHELL:-Xclang -emit-reduced-module-interface")
    endif()
  endforeach()
endfunction()

# gpumem_check_importers_later(<directory>)
# Checks the targets of this directory, and of those below it, when all are known. The interfaces throw exceptions. A
# target and the modules that it imports must be compiled in the same mode: otherwise clang refuses the BMI, with a text
# that does not name the remedy. From CMake 4.4 on each importer gets BMIs in its own mode, and the mode is not checked.
# Remove that check when CMake 4.4 is required.
function(gpumem_check_importers_later directory)
  cmake_language(DEFER DIRECTORY "${directory}" GET_CALL_IDS calls)
  if(NOT gpumem_check IN_LIST calls)
    gpumem_language_mode(standard extensions)
    cmake_language(EVAL CODE "cmake_language(DEFER DIRECTORY [==[${directory}]==] ID gpumem_check
      CALL gpumem_check_importers [==[${directory}]==] ${standard} ${extensions})")
  endif()
endfunction()

function(gpumem_check_importers directory standard extensions)
  get_property(folders DIRECTORY "${directory}" PROPERTY SUBDIRECTORIES)
  get_property(targets DIRECTORY "${directory}" PROPERTY BUILDSYSTEM_TARGETS)
  foreach(folder IN LISTS folders)
    gpumem_check_importers("${folder}" ${standard} ${extensions})
  endforeach()
  get_directory_property(flags DIRECTORY "${directory}" DEFINITION CMAKE_CXX_FLAGS)  # also if set after find_package
  foreach(target IN LISTS targets)
    gpumem_check_importer(${target} ${standard} ${extensions} "${flags}")
  endforeach()
endfunction()

function(gpumem_check_importer target standard extensions flags)
  get_target_property(type ${target} TYPE)
  gpumem_property(scanned ${target} CXX_SCAN_FOR_MODULES ON)
  if(NOT type MATCHES "EXECUTABLE|STATIC|SHARED|MODULE|OBJECT" OR NOT scanned)
    return()
  endif()
  gpumem_used_targets(used ${target})
  if(NOT gpumem::gpumem IN_LIST used AND NOT gpumem IN_LIST used)
    return()
  endif()

  gpumem_property(options ${target} COMPILE_OPTIONS "")
  gpumem_property(features ${target} COMPILE_FEATURES "")
  foreach(other IN LISTS used)
    gpumem_property(part ${other} INTERFACE_COMPILE_OPTIONS "")
    list(APPEND options ${part})
    gpumem_property(part ${other} INTERFACE_COMPILE_FEATURES "")
    list(APPEND features ${part})
  endforeach()
  list(TRANSFORM options REPLACE "^.*COMPILE_LANG[A-Z_]*:[^>]*CXX[^>]*>:|^.*CONFIG:[^>]*>:|SHELL:|>+$" "")
  gpumem_disables_exceptions(without_exceptions "${flags};${options}")
  if(without_exceptions)
    message(SEND_ERROR "gpumem: the target ${target} is compiled with -fno-exceptions, and imports gpumem, which throws "
      "exceptions: import it in a target without that option.")
  endif()
  if(CMAKE_VERSION VERSION_LESS 4.4)
    gpumem_check_mode(${target} ${standard} ${extensions} "${options}" "${features}")
  endif()
endfunction()

function(gpumem_check_mode target standard extensions options features)
  gpumem_property(own_standard ${target} CXX_STANDARD 20)
  gpumem_property(own_extensions ${target} CXX_EXTENSIONS ON)
  if(NOT own_standard MATCHES "^2[0-9]$")
    set(own_standard 20)
  endif()
  foreach(feature IN LISTS features)
    if(feature MATCHES "^cxx_std_(2[0-9])$" AND CMAKE_MATCH_1 GREATER own_standard)
      set(own_standard "${CMAKE_MATCH_1}")
    endif()
  endforeach()

  gpumem_mode_name(own_mode ${own_standard} ${own_extensions})
  gpumem_mode_name(mode ${standard} ${extensions})
  if(NOT own_mode STREQUAL mode)
    message(SEND_ERROR "gpumem: the target ${target} is compiled as ${own_mode}, gpumem's modules as ${mode}. "
      "Before CMake 4.4 all importers in a project need one language mode: set CMAKE_CXX_STANDARD and "
      "CMAKE_CXX_EXTENSIONS before find_package or add_subdirectory, not the properties of a target.")
  endif()
  foreach(option IN LISTS options)
    if(option MATCHES "^-(std=|pthread$|f(openmp|no-rtti|fast-math|no-math-errno|wrapv|trapv|\
stack-protector|unsigned-char|short-enums|freestanding|no-builtin|no-char8_t))")
      message(SEND_ERROR "gpumem: the target ${target} has the option ${option}, gpumem's modules do not. Before CMake "
        "4.4 a module and its importers need the same options: put it into CMAKE_CXX_FLAGS, or import gpumem only in "
        "targets without it.")
    endif()
  endforeach()
endfunction()

function(gpumem_mode_name result standard extensions)
  set(${result} "c++${standard}" PARENT_SCOPE)
  if(extensions)
    set(${result} "gnu++${standard}" PARENT_SCOPE)
  endif()
endfunction()

# gpumem_property(<result> <target> <property> <default>): sets the result to the property, or to the default.
function(gpumem_property result target property default)
  get_target_property(value ${target} ${property})
  if(value MATCHES "-NOTFOUND$")
    set(value "${default}")
  endif()
  set(${result} "${value}" PARENT_SCOPE)
endfunction()

# gpumem_used_targets(<result> <target>): sets the result to the targets whose usage requirements this target gets.
function(gpumem_used_targets result target)
  set(used)
  gpumem_property(todo ${target} LINK_LIBRARIES "")
  while(todo)
    list(POP_FRONT todo item)
    string(REGEX REPLACE "^\\$<BUILD_INTERFACE:(.*)>$" "\\1" item "${item}")
    if(NOT TARGET "${item}")
      continue()
    endif()
    gpumem_property(item "${item}" ALIASED_TARGET "${item}")
    if(NOT item IN_LIST used)
      list(APPEND used "${item}")
      gpumem_property(links "${item}" INTERFACE_LINK_LIBRARIES "")
      list(APPEND todo ${links})
    endif()
  endwhile()
  set(${result} "${used}" PARENT_SCOPE)
endfunction()
