# Installs the build to the stage. The list of its files becomes MANIFEST; a list that an installation by the user left in
# the build folder stays, so that its target `uninstall` still removes what the user installed.
# SPDX-License-Identifier: Apache-2.0
set(list "${BUILD}/install_manifest.txt")
file(REMOVE "${BUILD}/manifest_of_the_user.txt")
if(EXISTS "${list}")
  file(RENAME "${list}" "${BUILD}/manifest_of_the_user.txt")
endif()
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${STAGE}" RESULT_VARIABLE status)
if(EXISTS "${list}")
  file(RENAME "${list}" "${MANIFEST}")
endif()
if(EXISTS "${BUILD}/manifest_of_the_user.txt")
  file(RENAME "${BUILD}/manifest_of_the_user.txt" "${list}")
endif()
if(status)
  message(FATAL_ERROR "the installation failed")
endif()
