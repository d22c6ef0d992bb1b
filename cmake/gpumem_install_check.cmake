# The first step of an installation, before that of any folder: fails if a file is missing.
# SPDX-License-Identifier: Apache-2.0
set(files gpumem gpumem_thrust gpumem_snapshot gpumem_growable gpumem_device_heap gpumem_simulator gpumem_simulator_driver gpumem_simulator_runtime gpumem_c)
# Builds the files without which the installation fails; the tools of bench/ are installed if they were built.
add_custom_target(gpumem_installed_files)
add_dependencies(gpumem_installed_files ${files})
list(TRANSFORM files REPLACE "(.+)" "[==[$<TARGET_FILE:\\1>]==]")
list(JOIN files " " files)
install(CODE "
  foreach(file IN ITEMS ${files})
    if(NOT EXISTS \"\${file}\")
      cmake_path(GET file FILENAME name)
      message(FATAL_ERROR \"gpumem is not built completely: \${name} is missing. Build the target \"
        \"gpumem_installed_files before, or install by `bash cmake/run.sh install PREFIX`.\")
    endif()
  endforeach()")
