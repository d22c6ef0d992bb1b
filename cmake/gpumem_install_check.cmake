# The first step of an installation, before that of any folder: fails if a file is missing.
# SPDX-License-Identifier: Apache-2.0
set(gpumem_tools)
if(GPUMEM_BUILD_BENCH)
  set(gpumem_tools gpumem-replay gpumem-bench gpumem-completion-bench gpumem-waiting-bench)
endif()
set(files gpumem gpumem_thrust gpumem_simulator gpumem_simulator_driver gpumem_simulator_runtime gpumem_c ${gpumem_tools})
list(TRANSFORM files REPLACE "(.+)" "[==[$<TARGET_FILE:\\1>]==]")
list(JOIN files " " files)
install(CODE "
  foreach(file IN ITEMS ${files})
    if(NOT EXISTS \"\${file}\")
      cmake_path(GET file FILENAME name)
      message(FATAL_ERROR \"gpumem is not built completely: \${name} is missing. Build the target all before, or \"
        \"install by `bash cmake/run.sh install PREFIX`, which builds only the library.\")
    endif()
  endforeach()")
