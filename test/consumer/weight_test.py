#!/usr/bin/env python3
"""Fails if a user's project compiles more than one interface of gpumem, or more than 50 MB of them, or takes more than 15
steps for a program of one file.
SPDX-License-Identifier: Apache-2.0

usage: weight_test.py NINJA BUILD_FOLDER PROGRAM"""
import subprocess
import sys
from pathlib import Path

LARGEST, MOST_STEPS = 50_000_000, 15

ninja, folder, program = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
interfaces = list(folder.glob("CMakeFiles/gpumem__gpumem@synth_*.dir/*.bmi"))
bytes_of_all = sum(path.stat().st_size for path in interfaces)
# The steps that compile interfaces are known only when ninja runs.
steps = subprocess.run([ninja, "-C", folder, "-t", "commands", program], check=True, capture_output=True, text=True)
count = len(interfaces) + len([line for line in steps.stdout.splitlines() if not line.startswith("ninja:")])
print(f"{len(interfaces)} interfaces of {bytes_of_all} bytes, {count} steps")
sys.exit(not (len(interfaces) == 1 and bytes_of_all <= LARGEST and count <= MOST_STEPS))
