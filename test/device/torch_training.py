#!/usr/bin/env python3
"""Trains for fifty steps on one of two allocators, with bitwise reproducible results: forward, backward, optimizer, and
copies on a side stream whose memory is freed while they may still run.

Prints one JSON object: the losses and checksums as hexadecimal floats, the time of a step, and the bytes of the device.
Exits with 77 without PyTorch or without a GPU. torch_compare.py runs it on both allocators and compares.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import os
import sys
import time
from pathlib import Path

SKIPPED = 77

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at cuBLAS's start, for deterministic algorithms
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "modules/bridge/python"))  # unless it is installed

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError as missing:
    print(f"skipped: no PyTorch here ({missing})", file=sys.stderr)
    sys.exit(SKIPPED)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allocator", choices=("native", "gpumem", "mem_pool"), default="native",
                        help="PyTorch's own, gpumem in its place, or gpumem below PyTorch's in a MemPool")
    parser.add_argument("--options", default=None, help="options of gpumem's pools, as in GPUMEM_TORCH_OPTIONS")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warm", type=int, default=10, help="steps whose time does not count")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512, help="tokens of the longest sequence; they vary by step")
    parser.add_argument("--words", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    if not 0 < given.warm < given.steps:
        parser.error("--warm has to be less than --steps, and at least 1")
    return given


class Block(nn.Module):
    """Attention from basic operations: the backward passes of the fused ones are not deterministic on every GPU."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        parts = self.mix(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-1, -2)) * (width // self.heads) ** -0.5
        weights = weights.masked_fill(mask, float("-inf")).softmax(-1)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.narrow(functional.gelu(self.wide(self.between(x))))


class Model(nn.Module):
    def __init__(self, given):
        super().__init__()
        self.words = nn.Embedding(given.words, given.width)
        self.places = nn.Embedding(given.length, given.width)
        self.blocks = nn.ModuleList(Block(given.width, given.heads) for _ in range(given.layers))
        self.end = nn.Linear(given.width, given.words)

    def forward(self, tokens):
        length = tokens.shape[1]
        places = torch.arange(length, device=tokens.device)
        mask = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        x = self.words(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x, mask)
        return self.end(x)


class Feeder:
    """Copies the next batch on a side stream, and computes checksums of the main stream's results there."""

    def __init__(self, given):
        self.given = given
        self.stream = torch.cuda.Stream()
        self.chance = torch.Generator().manual_seed(given.seed)
        self.checksums = []

    def batch(self):
        """Tokens whose length differs from step to step, so that no two steps request the same sizes."""
        given = self.given
        length = int(torch.randint(given.length // 2, given.length + 1, (1,), generator=self.chance)) // 8 * 8
        host = torch.randint(given.words, (given.batch, length + 1), generator=self.chance).pin_memory()
        with torch.cuda.stream(self.stream):
            tokens = host.to("cuda", non_blocking=True)
        main = torch.cuda.current_stream()
        main.wait_stream(self.stream)
        tokens.record_stream(main)  # the main stream may still use it when it is freed
        return tokens

    def look_at(self, values):
        """Uses the main stream's memory on the side stream after record_stream; the caller frees it at once."""
        self.stream.wait_stream(torch.cuda.current_stream())
        values.record_stream(self.stream)
        with torch.cuda.stream(self.stream):
            copy = torch.empty_like(values)
            for _ in range(4):  # long enough to make a reuse that is too early visible
                copy.copy_(values)
            self.checksums.append(copy.double().sum())


def train(given):
    """Runs the steps. They never wait for the device, so that memory is freed while it is still in use."""
    torch.manual_seed(given.seed)
    model = Model(given).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)
    feeder = Feeder(given)
    losses, least_free, started = [], torch.cuda.mem_get_info()[0], 0.0
    for step in range(given.steps):
        if step == given.warm:
            torch.cuda.synchronize()
            started = time.perf_counter()
        tokens = feeder.batch()
        scores = model(tokens[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        feeder.look_at(scores.detach())
        del scores, tokens
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if step < given.warm:  # reserved memory peaks early, and the query costs time
            least_free = min(least_free, torch.cuda.mem_get_info()[0])
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - started) / (given.steps - given.warm)
    least_free = min(least_free, torch.cuda.mem_get_info()[0])
    weights = sum(p.detach().double().sum() for p in model.parameters())
    return {"losses": [float(loss).hex() for loss in losses],
            "checksums": [float(sum_).hex() for sum_ in feeder.checksums],
            "weights": float(weights).hex(), "step_ms": 1e3 * seconds,
            "device_bytes": torch.cuda.mem_get_info()[1] - least_free}


def run(given):
    """Trains on the selected allocator, and adds the allocator's statistics."""
    if given.allocator == "native":
        result = train(given)
        result["peak_reserved"] = torch.cuda.max_memory_reserved()
        result["peak_live"] = torch.cuda.max_memory_allocated()
        return result
    import gpumem_torch
    if given.allocator == "gpumem":
        gpumem_torch.install(given.options)
        result = train(given)
    else:
        pool = gpumem_torch.mem_pool(given.options)
        with torch.cuda.use_mem_pool(pool):  # this thread only; autograd's thread uses PyTorch's own allocator
            result = train(given)
    told = gpumem_torch.statistics(None)
    result["peak_reserved"], result["peak_live"], result["statistics"] = told["peak_reserved"], told["peak_live"], told
    return result


def main():
    given = arguments()
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU here", file=sys.stderr)
        return SKIPPED
    torch.use_deterministic_algorithms(True)
    # Filling would hide a read of memory that no work has written; the result must not depend on the allocator.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cuda.matmul.allow_tf32 = False
    result = {"allocator": given.allocator, "torch": torch.__version__, "steps": given.steps}
    result.update(run(given))
    result["device"] = torch.cuda.get_device_name()
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
