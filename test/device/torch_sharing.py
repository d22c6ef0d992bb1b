#!/usr/bin/env python3
"""gpumem in place of PyTorch's allocator: tensors that processes share, which lie in pages.

Exits with 1 if something fails, and with 77 without PyTorch or without a GPU.
"""
# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

SKIPPED = 77
MIB = 1 << 20

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "modules/bridge/python"))  # unless it is installed

try:
    import torch
    import torch.multiprocessing
    import torch.utils.data
except ImportError as missing:
    print(f"skipped: no PyTorch here ({missing})", file=sys.stderr)
    sys.exit(SKIPPED)

import gpumem_torch

WAIT = 120  # seconds for the other process


def equal(value, expected):
    assert value == expected, f"{value} is not {expected}"


def used_elsewhere(inbox, outbox):
    """The other process: adds 1 to each tensor, and sends a tensor of its own for each."""
    gpumem_torch.install()
    for tensors in iter(inbox.get, None):
        made = [(one + 1).to(one.dtype) for one in tensors]
        for one in tensors:
            one.add_(1)
        torch.cuda.synchronize()
        del tensors, one
        outbox.put(made)
        inbox.task_done()
    del made
    inbox.task_done()


def tensors_travel():
    """Small and large tensors, slices of one storage, and tensors of the other process; memory goes back afterwards."""
    context = torch.multiprocessing.get_context("spawn")
    inbox, outbox = context.JoinableQueue(), context.Queue()
    process = context.Process(target=used_elsewhere, args=(inbox, outbox))
    process.start()
    for size in (5, 300_000, 3 * MIB, 300 * MIB):
        whole = torch.arange(size, device="cuda", dtype=torch.float32)
        tensors = [whole[: size // 2], whole[size // 2 :], torch.full((7,), size, device="cuda", dtype=torch.int64)]
        inbox.put(tensors)
        made = outbox.get(timeout=WAIT)
        for mine, theirs in zip(tensors, made):
            assert torch.equal(mine, theirs), f"{size}: what the other process wrote is not here"
        assert torch.equal(whole, torch.arange(size, device="cuda", dtype=torch.float32) + 1)
        del whole, tensors, made, mine, theirs
        inbox.join()
    inbox.put(None)
    inbox.join()
    process.join(WAIT)
    equal(process.exitcode, 0)
    torch.cuda.ipc_collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= 4 * MIB, torch.cuda.memory_summary()


class cuda_batches(torch.utils.data.Dataset):
    """Rows that a worker makes on the GPU."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((50_000,), index, device="cuda", dtype=torch.float32)


def start_worker(_):
    gpumem_torch.install()


def data_loader():
    loader = torch.utils.data.DataLoader(cuda_batches(), batch_size=8, num_workers=2, worker_init_fn=start_worker,
                                         multiprocessing_context="spawn")
    seen = []
    for _ in range(2):
        for batch in loader:
            assert batch.is_cuda
            seen += batch[:, -1].tolist()
            del batch
    equal(seen, 2 * [float(index) for index in range(64)])


def main():
    gpumem_torch.install()
    if not torch.cuda.is_available():
        print("skipped: no GPU here", file=sys.stderr)
        return SKIPPED
    tensors_travel()
    tensors_travel()
    data_loader()
    print("tensors are shared between processes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
