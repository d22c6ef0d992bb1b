#!/usr/bin/env python3
# The options that gpumem-advise prints make pools.
# SPDX-License-Identifier: Apache-2.0
import ctypes
import json
import subprocess
import sys
import tempfile

from gpumem_torch import check, library

ONE_SIZE = "Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.000000,allocate,0x10,1048576,0\n"

with tempfile.TemporaryDirectory() as folder:
    trace = f"{folder}/trace.csv"
    with open(trace, "w") as file:
        file.write(ONE_SIZE)
    options = {}
    for traced in trace, sys.argv[2]:
        subprocess.run([sys.argv[1], traced, "--memory", "64GiB", "--json", f"{folder}/advice.json"], check=True,
                       stdout=subprocess.DEVNULL)
        with open(f"{folder}/advice.json") as file:
            options |= {each["resource"]: each["options"] for each in json.load(file)["candidates"]}

assert len(options) == 10, options
gpumem = library()
for resource, text in options.items():
    print(f"{resource}: {text}")
    pool, block = ctypes.c_void_p(), ctypes.c_void_p()
    check(gpumem.gpumem_make_pool(0, text.encode(), ctypes.byref(pool)))
    check(gpumem.gpumem_allocate(pool, 2, 1 << 20, 256, ctypes.byref(block)))
    check(gpumem.gpumem_free(pool, 2, block))
    check(gpumem.gpumem_release(pool))
