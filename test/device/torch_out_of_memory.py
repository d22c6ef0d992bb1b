#!/usr/bin/env python3
"""Lets PyTorch exceed gpumem's memory limit: in the main thread, in a backward pass written in Python, and in one of
PyTorch's own, on autograd's thread. Each time Python must get a RuntimeError, all memory of the pass must be freed, and
training must work with less memory. The results are compared with the CPU's.

Prints one line per case; each case is a process of its own. Exits with 1 if one fails, and with 77 without PyTorch or
without a GPU.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import gc
import subprocess
import sys
import threading
from pathlib import Path

SKIPPED = 77
MIB = 1 << 20
LIMIT = 512  # MiB, as all sizes below
SMALL = 96  # fits in every case

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "modules/bridge/python"))  # unless it is installed

try:
    import torch
    from torch import nn
except ImportError as missing:
    print(f"skipped: no PyTorch here ({missing})", file=sys.stderr)
    sys.exit(SKIPPED)


def main_thread(size):
    """Fills two tensors of `size` MiB."""
    elements = size * MIB // 4
    one = torch.full((elements,), 3.0, device="cuda")
    two = torch.full((elements,), 4.0, device="cuda")
    for block, value in ((one, 3), (two, 4)):
        assert block.min() == value == block.max(), "the tensor holds something else"


class Scratch(torch.autograd.Function):
    """Doubles its argument. The backward pass allocates `size` MiB."""
    threads = set()

    @staticmethod
    def forward(ctx, x, size):
        ctx.size = size
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        Scratch.threads.add(threading.get_native_id())
        scratch = torch.full((ctx.size * MIB // 4,), 2.0, device=gradient.device)
        return gradient * scratch[:gradient.numel()], None


def python_backward(size):
    x = torch.rand(1000, device="cuda", requires_grad=True)
    Scratch.apply(x, size).sum().backward()
    assert Scratch.threads and threading.get_native_id() not in Scratch.threads, "it ran on the main thread"
    torch.testing.assert_close(x.grad.cpu(), torch.full((1000,), 2.0))


def cxx_backward(size):
    """The left side of the product takes `size` MiB, and its gradient takes as much again."""
    columns = 1024
    narrow = torch.rand(columns, 8)
    wide = torch.rand(size * MIB // 4 // columns, columns, device="cuda", requires_grad=True)
    (wide @ narrow.cuda()).sum().backward()
    for row in (wide.grad.amin(0), wide.grad.amax(0)):
        torch.testing.assert_close(row.cpu(), narrow.sum(1))


def train(device):
    """Trains a small model; returns its losses and weights."""
    torch.manual_seed(7)
    data, wanted = torch.rand(512, 256), torch.rand(512, 16)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 16)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data, wanted, losses = data.to(device), wanted.to(device), []
    for _ in range(10):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(data), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [value.detach().cpu() for value in (*losses, *model.parameters())]


def go_on(case, expected):
    """Runs the case with less memory, and a training whose results must equal the CPU's."""
    case(SMALL)
    torch.testing.assert_close(train("cuda"), expected, rtol=1e-3, atol=1e-5)
    torch.cuda.synchronize()


def run(case, size):
    """Runs the case out of memory once, and before and after with enough memory. Returns PyTorch's error message."""
    import gpumem_torch
    gpumem_torch.install(f"limit={LIMIT}MiB")
    expected = train("cpu")
    go_on(case, expected)  # first-use allocations of libraries are live from here on
    before = gpumem_torch.statistics(0)
    told = None
    try:
        case(size)
    except RuntimeError as error:
        told = str(error)
    gc.collect()
    torch.cuda.synchronize()
    after = gpumem_torch.statistics(0)
    assert told is not None, f"{size} MiB were granted"
    assert "gpumem: out of memory" in told, told
    assert after["failures"] > before["failures"], "the pool has refused nothing"
    assert after["live"] == before["live"], f"{after['live'] - before['live']} bytes were not freed"
    go_on(case, expected)
    return told


CASES = {
    "more than the limit": (main_thread, 2 * LIMIT),
    "more than is left": (main_thread, 300),
    "backward in Python": (python_backward, 2 * LIMIT),
    "backward in C++": (cxx_backward, 300),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, help="run only this case, in this process")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU here", file=sys.stderr)
        return SKIPPED
    if given.case:
        torch.backends.cuda.matmul.allow_tf32 = False
        told = run(*CASES[given.case]).splitlines()[0]
        print(f"{given.case}: ok, training continued after '{told[:100]}'")
        return 0
    failed = 0
    for case in CASES:
        done = subprocess.run([sys.executable, __file__, "--case", case], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        lines = done.stdout.strip().splitlines() or ["no output"]
        print(lines[-1] if done.returncode == 0 else f"{case}: FAILED with {done.returncode}: {lines[-1]}", flush=True)
        if done.returncode != 0:
            print(done.stdout, file=sys.stderr)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
