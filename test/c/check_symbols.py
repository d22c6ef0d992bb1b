#!/usr/bin/env python3
# The shared library must export exactly the functions that its headers declare.
# SPDX-License-Identifier: Apache-2.0
import re
import subprocess
import sys
from pathlib import Path


def declared(headers):
    names = set()
    for header in headers:
        text = re.sub(r"//.*|^\s*#.*", "", Path(header).read_text(), flags=re.M)
        names |= set(re.findall(r"\b(gpumem_\w+)\s*\(", text))
    return names


def shown(nm, library):
    lines = subprocess.run([nm, "--dynamic", "--defined-only", library], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    return {line.split()[-1].split("@")[0] for line in lines}


def main():
    nm, library, *headers = sys.argv[1:]
    wanted, there = declared(headers), shown(nm, library)
    for name in sorted(wanted - there):
        print(f"{name} is declared, but the library does not export it")
    for name in sorted(there - wanted):
        print(f"{name} is exported, but no header declares it")
    print(f"{len(wanted & there)} functions are declared and exported")
    return 0 if wanted == there and wanted else 1


if __name__ == "__main__":
    sys.exit(main())
