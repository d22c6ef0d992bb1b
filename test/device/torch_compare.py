#!/usr/bin/env python3
"""Runs torch_training.py on PyTorch's allocator and on gpumem's, in turn, and compares: losses and checksums must be
bitwise equal. Prints step times and bytes.

Exits with 1 if the results differ, and with 77 without PyTorch or without a GPU. Other arguments are passed to
torch_training.py.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

SKIPPED = 77
TRAINING = Path(__file__).with_name("torch_training.py")
SAME = ("losses", "checksums", "weights")


def run(allocator, more):
    """Runs the training in a process of its own, because an allocator is chosen once per process."""
    done = subprocess.run([sys.executable, str(TRAINING), "--allocator", allocator, *more], stdout=subprocess.PIPE,
                          text=True)
    if done.returncode == SKIPPED:
        sys.exit(SKIPPED)
    if done.returncode != 0:
        print(f"{allocator}: the training ended with {done.returncode}", file=sys.stderr)
        sys.exit(1)
    return json.loads(done.stdout.splitlines()[-1])


def first_difference(name, one, other):
    if one == other:
        return None
    if isinstance(one, list):
        at = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
        one, other = one[at:at + 1], other[at:at + 1]
        name = f"{name}[{at}]"
    return f"{name}: {one} and {other}"


def row(name, results):
    reserved, live = results[0]["peak_reserved"], results[0]["peak_live"]
    times = [result["step_ms"] for result in results]
    utilization = f"{live / reserved:.3f}" if reserved else "-"
    print(f"{name:10} {statistics.median(times):9.2f} {min(times):9.2f} {reserved / 2**20:13.1f} {live / 2**20:10.1f} "
          f"{utilization:>11} {results[0]['device_bytes'] / 2**20:11.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allocators", default="native,gpumem", help="the first one is the reference")
    parser.add_argument("--repeat", type=int, default=3, help="number of runs of each allocator")
    given, more = parser.parse_known_args()
    names = given.allocators.split(",")
    results = {name: [] for name in names}
    for _ in range(given.repeat):
        for name in names:
            results[name].append(run(name, more))

    wanted = results[names[0]][0]
    print(f"{wanted['device']}, PyTorch {wanted['torch']}, {wanted['steps']} steps, {given.repeat} runs of each")
    print(f"{'allocator':10} {'ms/step':>9} {'minimum':>9} {'reserved MiB':>13} {'live MiB':>10} {'utilization':>11} "
          f"{'device MiB':>11}")
    for name in names:
        row(name, results[name])
    differences = [f"{name}, run {number}: {text}" for name in names for number, result in enumerate(results[name], 1)
                   for text in (first_difference(key, wanted[key], result[key]) for key in SAME) if text]
    print("\n".join(differences) if differences else f"losses and checksums are bitwise equal; the last loss is "
          f"{wanted['losses'][-1]} = {float.fromhex(wanted['losses'][-1]):.6f}")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
