#!/usr/bin/env python3
# The shared library throws exceptions that its callers catch, so both must share one C++ runtime. If the library
# contained its own copy, an exception would end the process. Arguments: readelf, nm, the library.
# SPDX-License-Identifier: Apache-2.0
import re
import subprocess
import sys

LIBRARIES = {"libgcc_s.so.1", "libstdc++.so.6"}
FUNCTIONS = {"_Unwind_Resume", "__cxa_throw", "__gxx_personality_v0"}  # a library that throws imports these
OWN = {"_Unwind_RaiseException", *FUNCTIONS}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(nm, *arguments):
    return {line.split()[-1].split("@")[0] for line in output(nm, *arguments).splitlines() if line.strip()}


def main():
    readelf, nm, library = sys.argv[1:]
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", output(readelf, "-d", library)))
    wrong = [f"{name} is not linked" for name in sorted(LIBRARIES - needed)]
    # A stripped library lists only the symbols that it imports.
    wrong += [f"{name} is not imported from another library"
              for name in sorted(FUNCTIONS - symbols(nm, "--dynamic", "--undefined-only", library))]
    wrong += [f"{name} is defined in it" for name in sorted(OWN & symbols(nm, "--defined-only", library))]
    print("\n".join(f"{library}: {text}" for text in wrong) or f"{library} uses the shared C++ runtime")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
