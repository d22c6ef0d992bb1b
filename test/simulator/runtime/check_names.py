#!/usr/bin/env python3
"""The simulated runtime has each function of NVIDIA's, with the same version. Arguments: nm, ours, NVIDIA's."""
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys


def names(nm, library):
    lines = subprocess.run([nm, "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in lines.splitlines() if "@@" in line}


def main():
    nm, ours, theirs = sys.argv[1:]
    wanted = names(nm, theirs)
    missing = sorted(wanted - names(nm, ours))
    print("\n".join(missing) or f"all {len(wanted)} functions are there")
    return bool(missing) or not wanted


if __name__ == "__main__":
    sys.exit(main())
