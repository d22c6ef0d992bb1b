#!/usr/bin/env python3
# Each installed tool says its name and version, and names the option in its help. Arguments: the version, the tools.
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path


def output(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command} failed: {done.stdout}{done.stderr}")
    return done.stdout


for tool in sys.argv[2:]:
    said = output(tool, "--version")
    if said != f"{Path(tool).name} {sys.argv[1]}\n":
        sys.exit(f"{tool} --version says: {said}")
    if "--version" not in output(tool, "--help"):
        sys.exit(f"{tool} --help does not name --version")
