#!/usr/bin/env python3
"""gpumem in place of PyTorch's allocator, as a PyTorch program sees it: statistics, limits, streams, threads, processes.

Prints one line per case; each case is a process of its own. Exits with 1 if one fails, and with 77 without PyTorch or
without a GPU.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import os
import subprocess
import sys
import threading
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

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def equal(value, expected):
    assert value == expected, f"{value} is not {expected}"


def bytes_on(device="cuda", size=MIB):
    return torch.empty(size, dtype=torch.uint8, device=device)


@case
def statistics():
    equal(torch.cuda.get_allocator_backend(), "gpumem")
    equal(torch.cuda.memory_allocated(), 0)
    small, large = bytes_on(size=1000), bytes_on(size=3 * MIB + 1)
    equal(torch.cuda.memory_allocated(), 1024 + 3 * MIB + 512)
    stats = torch.cuda.memory_stats()
    equal(stats["requested_bytes.all.current"], 1000 + 3 * MIB + 1)
    equal((stats["allocation.small_pool.current"], stats["allocation.large_pool.current"]), (1, 1))
    assert torch.cuda.memory_reserved() >= 4 * MIB
    del large
    equal(torch.cuda.max_memory_allocated(), 1024 + 3 * MIB + 512)
    torch.cuda.reset_peak_memory_stats()
    equal(torch.cuda.max_memory_allocated(), 1024)
    torch.cuda.reset_accumulated_memory_stats()
    bytes_on(size=512)
    stats = torch.cuda.memory_stats()
    equal((stats["allocated_bytes.all.allocated"], stats["allocated_bytes.all.freed"]), (512, 512))
    equal(torch.cuda.max_memory_allocated(), 1536)
    assert "PyTorch CUDA memory summary" in torch.cuda.memory_summary()
    del small
    torch.cuda.empty_cache()
    equal((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()), (0, 0))
    equal(torch.accelerator.memory_allocated(), 0)
    held = bytes_on()
    equal(torch.accelerator.memory_allocated(), MIB)
    assert held.numel() == MIB


@case
def fraction_and_out_of_memory():
    total = torch.cuda.get_device_properties(0).total_memory
    held = bytes_on(size=64 * MIB)
    torch.cuda.set_per_process_memory_fraction(256 * MIB / total)
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *figures: seen.append(figures))
    for size in (512 * MIB, 200 * MIB):
        try:
            bytes_on(size=size)
            raise AssertionError("more than the limit was granted")
        except torch.OutOfMemoryError as error:
            assert f"CUDA out of memory. Tried to allocate {size // MIB}.00 MiB. GPU 0 has a total" in str(error), error
            assert "256.00 MiB allowed; Of the allocated memory 64.00 MiB is allocated by PyTorch, and" in str(error)
    equal([figures[:2] for figures in seen], [(0, 512 * MIB), (0, 200 * MIB)])
    equal(torch.cuda.memory_stats()["num_ooms"], 2)
    held.fill_(1)
    again = bytes_on(size=128 * MIB).fill_(2)
    torch.cuda.set_per_process_memory_fraction(1.0)
    more = bytes_on(size=512 * MIB).fill_(3)
    equal([int(t.sum()) // t.numel() for t in (held, again, more)], [1, 2, 3])
    try:
        torch.empty(1 << 62, dtype=torch.uint8, device="cuda")
        raise AssertionError("an exabyte was granted")
    except torch.OutOfMemoryError as error:
        assert "more than 1EB memory" in str(error), error


@case
def streams_and_record_stream():
    side = torch.cuda.Stream()
    for number in range(200):
        x = torch.full((MIB,), float(number), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
            x.record_stream(side)
        del x
        torch.full((MIB,), -1.0, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        assert bool((y == 2 * number).all())
    external = torch.cuda.ExternalStream(side.cuda_stream)
    with torch.cuda.stream(external):
        z = torch.ones(MIB, device="cuda")
    equal(float(z.sum()), MIB)


@case
def convolution_benchmark():
    torch.backends.cudnn.benchmark = True
    layer = torch.nn.Conv2d(8, 16, 3).cuda()
    for size in (32, 64, 96):
        layer(torch.rand(4, 8, size, size, device="cuda")).sum().backward()
    torch.cuda.synchronize()


@case
def threads():
    failed = []

    def work(number):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for size in range(1, 200):
                    block = torch.full((size * 1000,), float(number), device="cuda")
                    assert float(block.sum()) == number * size * 1000
        except BaseException as error:
            failed.append(error)

    running = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    equal(failed, [])
    torch.cuda.synchronize()
    equal(torch.cuda.memory_allocated(), 0)


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, number):
        return torch.tensor(float(number * number))


@case
def loader_workers_and_fork():
    held = bytes_on()
    loader = torch.utils.data.DataLoader(Squares(), batch_size=8, num_workers=2, pin_memory=True)
    equal(sum(float(batch.cuda(non_blocking=True).sum()) for batch in loader), float(sum(n * n for n in range(64))))
    child = os.fork()
    if child == 0:
        del held  # a tensor of the parent
        os._exit(0)
    equal(os.waitpid(child, 0)[1], 0)
    equal(int(held.fill_(1).sum()), MIB)


@case
def exit_with_memory_in_use():
    global kept
    kept = [bytes_on() for _ in range(100)]


@case
def install_is_too_late():
    pass  # see run()


@case
def raw_allocations():
    pointer = torch.cuda.caching_allocator_alloc(MIB)
    equal(torch.cuda.memory_allocated(), MIB)
    torch.cuda.caching_allocator_delete(pointer)
    equal(torch.cuda.memory_allocated(), 0)
    try:
        torch.cuda.caching_allocator_delete(pointer)
        raise AssertionError("the pointer was freed twice")
    except RuntimeError as error:
        assert "invalid device pointer" in str(error), error


def graph_of(work, pool=None):
    """Captures the work on a side stream; returns the graph and the result."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = work()
    return graph, result


@case
def graphs_that_share_a_pool():
    x = torch.arange(MIB, dtype=torch.float32, device="cuda")

    def work(factor):
        y = x
        for _ in range(10):
            y = torch.relu(y * factor + 1)  # each step allocates and frees
        return y

    pool, graphs = torch.cuda.graph_pool_handle(), []
    for factor in (0.5, 0.25, 2.0):
        graphs.append((factor, *graph_of(lambda: work(factor), pool)))
    before = torch.cuda.memory_allocated()
    for fill in (1.0, 3.0):
        x.fill_(fill)
        for factor, graph, result in graphs:
            graph.replay()
            expected = work(factor)
            assert torch.equal(result, expected), factor
            del expected
    equal(torch.cuda.memory_allocated(), before)
    del graphs, graph, result
    torch.cuda.empty_cache()
    equal(torch.cuda.memory_allocated(), 4 * MIB)


@case
def graph_of_a_training_step():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    x, y = torch.rand(256, 64, device="cuda"), torch.rand(256, 1, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    graph, loss = graph_of(step)
    graph.replay()
    first = float(loss)
    for _ in range(100):
        torch.rand(300_000, device="cuda")  # other memory comes and goes
        graph.replay()
    assert float(loss) < first / 2, (first, float(loss))


@case
def memory_pools():
    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(outer):
        one = bytes_on(size=3 * MIB).fill_(1)
        with torch.cuda.use_mem_pool(inner):
            two = bytes_on(size=3 * MIB).fill_(2)
        three = bytes_on(size=3 * MIB).fill_(3)
    four = bytes_on(size=3 * MIB).fill_(4)
    where = {}
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                where[block["address"]] = tuple(segment["segment_pool_id"])
    equal([where[t.data_ptr()] for t in (one, two, three, four)], [outer.id, inner.id, outer.id, (0, 0)])
    equal([int(t.max()) for t in (one, two, three, four)], [1, 2, 3, 4])
    equal(outer.use_count(), 1)
    kept = one.data_ptr()
    del outer, inner, two, three
    torch.cuda.empty_cache()
    equal((int(one.min()), one.data_ptr()), (1, kept))


@case
def history_and_snapshots():
    torch.cuda.memory._record_memory_history(max_entries=1000)
    kept = bytes_on(size=5 * MIB)
    bytes_on(size=1000)
    torch.cuda.memory._dump_snapshot("/tmp/gpumem_torch_snapshot.pickle")
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    entries = snapshot["device_traces"][0]
    actions = [(entry["action"], entry["size"]) for entry in entries
               if entry["size"] in (5 * MIB, 1000) and entry["action"] != "snapshot"]
    equal(actions, [("alloc", 5 * MIB), ("alloc", 1000), ("free_requested", 1000), ("free_completed", 1000)])
    assert any(entry["action"] == "segment_map" for entry in entries)
    assert any("torch_allocator.py" in frame["filename"] for frame in entries[0]["frames"])
    sizes = [(s["total_size"], sum(b["size"] for b in s["blocks"])) for s in snapshot["segments"]]
    assert sizes and all(total == blocks for total, blocks in sizes)
    equal(sum(total for total, _ in sizes), torch.cuda.memory_reserved())
    assert kept.numel() == 5 * MIB


@case
def profiler():
    with torch.profiler.profile(profile_memory=True) as seen:
        bytes_on(size=MIB)
    changes = [event.device_memory_usage for event in seen.events() if event.device_memory_usage]
    equal(sum(changes), 0)


@case
def compiled_with_graph_trees():
    @torch.compile(mode="reduce-overhead")
    def work(x):
        return (x @ x).relu().sum(dim=0)

    for number in range(6):
        x = torch.full((64, 64), float(number), device="cuda")
        assert torch.allclose(work(x), torch.full((64,), 64.0 * 64 * number * number, device="cuda"))


@case
def disabled_cache():
    kept = bytes_on()
    torch.cuda.caching_allocator_enable(False)
    other = bytes_on().fill_(7)
    del kept
    equal(int(other.sum()), 7 * MIB)
    del other
    torch.cuda.caching_allocator_enable(True)
    equal(torch.cuda.memory_allocated(), 0)


@case
def fork_with_history():
    torch.cuda.memory._record_memory_history()
    held = [bytes_on()]
    child = os.fork()
    if child == 0:
        held.clear()
        os._exit(0)
    equal(os.waitpid(child, 0)[1], 0)


@case
def two_devices():
    if torch.cuda.device_count() < 2:
        return
    x = torch.rand(512, 300, device="cuda:0")
    expected = x.cpu()
    assert torch.equal(x.t().to("cuda:1").cpu(), expected.t())  # a kernel reads the other device's memory
    assert torch.equal(x.to("cuda:1", torch.float64).cpu(), expected.double())
    assert torch.equal(x.to("cuda:1").cpu(), expected)
    x.record_stream(torch.cuda.default_stream(1))
    y = x.to("cuda:1", non_blocking=True)
    del x
    torch.full((512, 300), -1.0, device="cuda:0")
    assert torch.equal(y.cpu(), expected)
    assert torch.cuda.memory_allocated(1) > 0


def run(name):
    if name == "install_is_too_late":
        torch.ones(1, device="cuda")
        try:
            gpumem_torch.install()
            raise AssertionError("it was installed")
        except RuntimeError as error:
            assert "has used CUDA already" in str(error), error
    else:
        gpumem_torch.install()
        CASES[name]()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, help="run only this case, in this process")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU here", file=sys.stderr)
        return SKIPPED
    if given.case:
        run(given.case)
        print(f"{given.case}: ok")
        return 0
    failed = 0
    for name in CASES:
        done = subprocess.run([sys.executable, __file__, "--case", name], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        lines = done.stdout.strip().splitlines() or ["no output"]
        print(lines[-1] if done.returncode == 0 else f"{name}: FAILED with {done.returncode}: {lines[-1]}", flush=True)
        if done.returncode != 0:
            print(done.stdout, file=sys.stderr)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
