# Before project(): if neither CXX nor CMAKE_CXX_COMPILER is set, prefers a clang that builds modules to the system's
# c++.
# SPDX-License-Identifier: Apache-2.0
if(NOT CMAKE_CXX_COMPILER AND NOT CMAKE_TOOLCHAIN_FILE AND "$ENV{CXX}" STREQUAL "")
  # 19 and 20 first, since nvcc 13.0 accepts no newer clang as its host compiler. Remove the order when the required
  # nvcc accepts all of them.
  find_program(gpumem_clang NAMES clang++-19 clang++-20 clang++-21 clang++-22 clang++-23 NO_CACHE)
  if(gpumem_clang)
    set(CMAKE_CXX_COMPILER "${gpumem_clang}")
  endif()
endif()
