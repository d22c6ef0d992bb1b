// Puts gdb's printers for the library's types into every program.
// SPDX-License-Identifier: Apache-2.0
module gpumem:debugging.impl;

// sync.cpp refers to this name, so that the linker takes this object file out of the static library.
extern "C" [[gnu::visibility("hidden")]] char const gpumem_debugging = 0;

// gdb runs the text of an entry of kind 4 as Python. The first line is the name of the text and has no space. This
// section is not loaded when the program runs.
asm(".pushsection .debug_gdb_scripts, \"MS\", @progbits, 1\n"
    ".byte 4\n"
    ".ascii \"gpumem_printers\\n\"\n"
    ".incbin \"gdb_printers.py\"\n"
    ".byte 0\n"
    ".popsection\n");

// This symbol makes the linker take the object file of the interface, and with it the debug information of the types.
// This section is not loaded either.
asm(".pushsection .debug_gpumem_types, \"\", @progbits\n"
    ".quad _ZGIW6gpumem\n"
    ".popsection\n");
