# cmake -DOUTPUT=FILE "-DASSETS=NAME=FILE;…" -P embed.cmake: writes a C++ file that holds the files.
# SPDX-License-Identifier: Apache-2.0
set(text "#include \"assets.hpp\"\nnamespace report_assets {\n")
foreach(asset IN LISTS ASSETS)
  string(REGEX MATCH "^([^=]+)=(.+)$" found "${asset}")
  set(name "${CMAKE_MATCH_1}")
  file(REAL_PATH "${CMAKE_MATCH_2}" path)
  file(READ "${path}" hex HEX)
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," hex "${hex}")
  string(APPEND text "static char const ${name}_text[] = {${hex}'\\0'};\n"
    "std::string_view const ${name}{${name}_text, sizeof ${name}_text - 1};\n")
endforeach()
file(WRITE "${OUTPUT}" "${text}}\n")
