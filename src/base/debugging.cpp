// Carries gdb's printers for the library's types into every program.
// SPDX-License-Identifier: Apache-2.0
module gpumem:debugging.impl;

// sync.cpp refers to this name, so that the linker takes this object file out of the library.
extern "C" [[gnu::visibility("hidden")]] char const gpumem_debugging = 0;

// gdb runs the text of an entry of kind 4 as Python. The first line is the name of the text and has no space. The
// section is not loaded when the program runs.
asm(".pushsection .debug_gdb_scripts, \"MS\", @progbits, 1\n"
    ".byte 4\n"
    ".ascii \"gpumem_printers\\n\"\n"
    ".incbin \"gdb_printers.py\"\n"
    ".byte 0\n"
    ".popsection\n");

// The linker takes the object files of most interfaces for their initializers, and those of these, which have nothing
// to initialize, for the types that they describe. The section is not loaded either.
asm(".pushsection .debug_gpumem_types, \"\", @progbits\n"
    ".quad _ZGIW6gpumemWP5chunk\n"
    ".quad _ZGIW6gpumemWP10block_info\n"
    ".quad _ZGIW6gpumemWP12peak_tracker\n"
    ".quad _ZGIW6gpumemWP16executor_adaptor\n"
    ".popsection\n");
