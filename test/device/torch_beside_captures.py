#!/usr/bin/env python3
"""gpumem in place of PyTorch's allocator: a library captures a stream of its own while PyTorch gives back a graph's memory.

Exits with 1 if something fails, and with 77 without PyTorch or without a GPU.
"""
# SPDX-License-Identifier: Apache-2.0
import ctypes
import sys
from pathlib import Path

SKIPPED = 77
MIB = 1 << 20
NON_BLOCKING = 1
CAPTURE_MODES = {"global": 0, "thread_local": 1, "relaxed": 2}

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "modules/bridge/python"))  # unless it is installed

try:
    import torch
except ImportError as missing:
    print(f"skipped: no PyTorch here ({missing})", file=sys.stderr)
    sys.exit(SKIPPED)

import gpumem_torch


def empty_cache_in_a_capture(driver, mode):
    stream, made = ctypes.c_void_p(), ctypes.c_void_p()
    calls = [driver.cuStreamCreate(ctypes.byref(stream), NON_BLOCKING), driver.cuStreamBeginCapture_v2(stream, mode)]
    torch.cuda.empty_cache()
    calls.append(driver.cuStreamEndCapture(stream, ctypes.byref(made)))
    calls += [driver.cuGraphDestroy(made), driver.cuStreamDestroy_v2(stream)]
    assert calls == [0] * 5, f"mode {mode}: the driver's answers are {calls}"


def main():
    gpumem_torch.install()
    if not torch.cuda.is_available():
        print("skipped: no GPU here", file=sys.stderr)
        return SKIPPED
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda").fill_(1)
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda").fill_(2)
    graph.replay()
    torch.cuda._sleep(200_000_000)  # about 100 ms of work that empty_cache may wait for
    for mode in CAPTURE_MODES.values():
        empty_cache_in_a_capture(ctypes.CDLL("libcuda.so.1"), mode)
    graph.replay()
    assert int(kept.sum()) == 64 * MIB
    print("captures of other libraries stay valid")
    return 0


if __name__ == "__main__":
    sys.exit(main())
