# Installs gdb's printers, for programs that gdb does not trust to bring them.
# SPDX-License-Identifier: Apache-2.0
install(FILES "${PROJECT_SOURCE_DIR}/src/base/gdb_printers.py" DESTINATION "${CMAKE_INSTALL_DATADIR}/gpumem/gdb")
