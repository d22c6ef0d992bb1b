#!/usr/bin/env python3
"""gpumem in place of PyTorch's allocator: tensors that grow in place.

Exits with 1 if something fails, and with 77 without PyTorch or without a GPU.
"""
# SPDX-License-Identifier: Apache-2.0
import gc
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


def raises(error, call):
    try:
        call()
    except error as caught:
        return str(caught)
    raise AssertionError(f"no {error.__name__}")


def lent():
    gc.collect()
    return gpumem_torch.statistics(0)["lent"]


def views_keep_address_and_contents():
    cache = gpumem_torch.growable((0, 8, 128), torch.bfloat16, reserve=1 << 20, name="cache")
    small = cache.grow_(1000)
    small.fill_(3)
    large = cache.grow_(100_000)
    assert large.data_ptr() == small.data_ptr() and large.shape == (100_000, 8, 128)
    large[1000:] = 4
    assert (small == 3).all() and large.sum(dtype=torch.float64).item() == 1024 * (3 * 1000 + 4 * 99_000)
    assert "not resizable" in raises(RuntimeError, lambda: large.resize_(200_000, 8, 128))
    del cache, large
    assert lent() >= small.nbytes, "a view alone keeps the memory"
    assert (small == 3).all()
    del small
    assert lent() == 0


def inner_dimension_grows():
    cache = gpumem_torch.growable((4, 0, 64), torch.float32, dim=1, reserve=MIB)
    first = cache.grow_(16)
    first.copy_(torch.arange(16, device="cuda").view(1, 16, 1).expand(4, 16, 64))
    second = cache.grow_(5000)
    assert second.shape == (4, 5000, 64) and (second[:, :16] == first).all()


def graphs_of_a_small_cache_run_after_growth():
    cache = gpumem_torch.growable((MIB,), torch.float32, reserve=64 * MIB)
    view = cache.tensor
    view.zero_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        view.add_(0)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        view.add_(1)
    for length in (2, 8, 32, 64):
        cache.grow_(length * MIB)[MIB:] = 7
        graph.replay()
    torch.cuda.synchronize()
    assert (cache.tensor[:MIB] == 4).all() and (cache.tensor[MIB:] == 7).all()


def growth_beside_kernels():
    """A kernel that runs for long uses the memory while the tensor grows many times."""
    cache = gpumem_torch.growable((16 * MIB,), torch.float32, reserve=1024 * MIB)
    view = cache.tensor.zero_()
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        torch.cuda._sleep(50_000_000)
        view.add_(1)
    for length in range(32, 513, 16):
        cache.grow_(length * MIB)[-1] = length
    assert not other.query(), "growth waited for the other stream"
    torch.cuda.current_stream().wait_stream(other)
    assert (cache.tensor[: 16 * MIB] == 1).all() and cache.tensor[-1].item() == 512


def middle_goes_and_comes_back():
    cache = gpumem_torch.growable((256, MIB), torch.uint8, reserve=256, page="2MiB")
    cache.tensor.copy_(torch.arange(256, device="cuda", dtype=torch.uint8).view(256, 1).expand(256, MIB))
    before = lent()
    cache.discard(64, 192)
    assert lent() == before - 128 * MIB
    cache.restore(64, 128)
    cache.tensor[64:128] = 1
    assert (cache.tensor[:64, 0] == torch.arange(64, device="cuda", dtype=torch.uint8)).all()
    assert (cache.tensor[192:, 7] == torch.arange(192, 256, device="cuda", dtype=torch.uint8)).all()
    assert (cache.tensor[64:128] == 1).all()
    cache.shrink_(1)
    assert lent() == 2 * MIB


def want_of_memory_is_that_of_pytorch():
    cache = gpumem_torch.growable((0, MIB), torch.uint8, reserve=1 << 20)
    raises(torch.OutOfMemoryError, lambda: cache.grow_(600 << 10))
    cache.grow_(8)
    raises(gpumem_torch.Failure, lambda: cache.discard(1, 2))


def main():
    if not torch.cuda.is_available():
        print("skipped: no GPU here", file=sys.stderr)
        return SKIPPED
    gpumem_torch.install()
    for test in (views_keep_address_and_contents, inner_dimension_grows, graphs_of_a_small_cache_run_after_growth,
                 growth_beside_kernels, middle_goes_and_comes_back, want_of_memory_is_that_of_pytorch):
        test()
        torch.cuda.synchronize()
        print(f"{test.__name__}: passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
