#!/usr/bin/env python3
"""gpumem in place of PyTorch's allocator: streams from outside, settings, and the text of out of memory.

Exits with 1 if something fails, and with 77 without PyTorch or without a GPU.
"""
# SPDX-License-Identifier: Apache-2.0
import ctypes
import sys
from pathlib import Path

SKIPPED = 77
MIB = 1 << 20

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "modules/bridge/python"))  # unless it is installed

try:
    import torch
except ImportError as missing:
    print(f"skipped: no PyTorch here ({missing})", file=sys.stderr)
    sys.exit(SKIPPED)

import gpumem_torch


def equal(value, expected):
    assert value == expected, f"{value} is not {expected}"


def bytes_on_device(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def streams_from_outside():
    """Memory that was freed on such a stream goes back although no call comes that has the stream."""
    handle = ctypes.c_uint64()
    equal(int(torch.cuda.cudart().cudaStreamCreate(ctypes.addressof(handle))), 0)
    with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
        block = bytes_on_device(64 * MIB).fill_(1)
        del block
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    equal(torch.cuda.memory_reserved(), 0)
    equal(int(torch.cuda.cudart().cudaStreamDestroy(handle.value)), 0)


def settings():
    torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:[32:1,64:4,128:2,>:2]")
    held = [bytes_on_device(20 * MIB)]
    equal(torch.cuda.memory_allocated(), 20 * MIB)
    held.append(bytes_on_device(84 * MIB))
    equal(torch.cuda.memory_allocated(), (20 + 96) * MIB)
    equal(torch.cuda.memory_stats()["requested_bytes.all.current"], (20 + 84) * MIB)
    torch.cuda.memory._set_allocator_settings("")
    held.append(bytes_on_device(84 * MIB))
    equal(torch.cuda.memory_allocated(), (20 + 96 + 84) * MIB)
    for block in held:
        block.fill_(1)
    try:
        torch.cuda.memory._set_allocator_settings("roundup:2")
        raise AssertionError("a setting that there is not was taken")
    except (ValueError, RuntimeError) as error:
        assert "Unrecognized" in str(error), error


def out_of_memory():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        bytes_on_device(64 * MIB)
    try:
        bytes_on_device(1 << 50)
        raise AssertionError("a petabyte was granted")
    except torch.OutOfMemoryError as error:
        assert "with 64.00 MiB allocated in private pools (e.g., CUDA Graphs), and " in str(error), error
        print(error)  # with the memory of each process, where NVML lists any


def main():
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU here", file=sys.stderr)
        return SKIPPED
    gpumem_torch.install()
    for check in (streams_from_outside, settings, out_of_memory):
        check()
        print(f"{check.__name__}: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
