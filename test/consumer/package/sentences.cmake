# Runs find_package(gpumem) as if for several compilers and generators, and compares the reason of each refusal.
# SPDX-License-Identifier: Apache-2.0
cmake_minimum_required(VERSION 3.28)

# expect(<sentence> <component> [<variable> <value>]...): find_package fails with this sentence.
function(expect sentence component)
  set(CMAKE_GENERATOR Ninja)
  set(CMAKE_CXX_COMPILER clang++)
  set(CMAKE_CXX_COMPILER_ID Clang)
  set(CMAKE_CXX_COMPILER_VERSION 19)
  set(CMAKE_CXX_COMPILER_CLANG_SCAN_DEPS clang-scan-deps)
  set(CMAKE_CXX_COMPILE_FEATURES cxx_std_20 cxx_std_23)
  while(ARGN)
    list(POP_FRONT ARGN variable value)
    set(${variable} "${value}")
  endwhile()
  find_package(gpumem QUIET COMPONENTS ${component})
  if(gpumem_FOUND OR NOT gpumem_NOT_FOUND_MESSAGE MATCHES "${sentence}")
    message(SEND_ERROR "\"${gpumem_NOT_FOUND_MESSAGE}\" instead of \"${sentence}\"")
  endif()
endfunction()

expect("enable the language CXX first" module CMAKE_CXX_COMPILER_ID "")
expect("GCC through 15 cannot compile coroutines in modules" module CMAKE_CXX_COMPILER_ID GNU)
expect("GCC through 15 cannot compile coroutines in modules" "" CMAKE_CXX_COMPILER_ID GNU)
expect("clang 19 or newer; clang.. is Clang 18.1" thrust CMAKE_CXX_COMPILER_VERSION 18.1)
expect("clang 19 or newer; clang.. is AppleClang 19" module CMAKE_CXX_COMPILER_ID AppleClang)
expect("clang.. comes without clang-scan-deps" module CMAKE_CXX_COMPILER_CLANG_SCAN_DEPS "")
expect("need the generator Ninja, not Unix Makefiles" module CMAKE_GENERATOR "Unix Makefiles")
expect("has no flag for C..26 .*needs CMake 3.31" module CMAKE_CXX_STANDARD 26)
expect("no component thurst; its components are module, thrust, simulator, c, bridge" thurst)
file(COPY "${CMAKE_PREFIX_PATH}/${LIBRARY_FOLDER}/cmake/gpumem" DESTINATION "${SCRATCH}/lib/cmake") # without the C ABI
set(CMAKE_PREFIX_PATH "${SCRATCH}")
expect("this installation of gpumem does not have the component c" c)
