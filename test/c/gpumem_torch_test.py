# Tests gpumem_torch without PyTorch: its C functions through ctypes on the simulated device, and its wiring against a
# fake torch module.
# SPDX-License-Identifier: Apache-2.0
import contextlib
import ctypes
import json
import os
import sys
import tempfile
import threading
import types
import unittest
from pathlib import Path

import gpumem_torch
from simulated_device import alone

MIB = 1 << 20


class Plugged(unittest.TestCase):
    def allocate(self, size, stream, device=0):
        block = self.library.gpumem_torch_try_allocate(size, device, stream)
        self.assertIsNotNone(block, self.library.gpumem_last_error())
        self.simulator.driver.gpumem_simulator_allocated(self.simulator.owner, stream, 0, block, size)
        return block

    def free(self, block, size, stream, device=0):
        self.simulator.driver.gpumem_simulator_freed(self.simulator.owner, stream, 0, block, size)
        self.library.gpumem_torch_free(block, size, device, stream)

    def record_stream(self, block, stream):
        function = self.library.gpumem_torch_record_stream
        function.restype, function.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p]
        function(block, stream)

    def assert_refused(self, outcome, text, call, *arguments):
        with self.assertRaises(gpumem_torch.Failure) as caught:
            call(*arguments)
        self.assertEqual(caught.exception.outcome, outcome)
        self.assertIn(text, str(caught.exception))


class Memory(Plugged):
    def assert_snapshot_shows(self, block, size):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "snapshot"
            gpumem_torch.snapshot(path)
            regions = json.loads(path.read_text())["regions"]
            found = [each for region in regions for each in region["blocks"] if each["address"] == block]
            self.assertEqual([(each["state"], each["requested"]) for each in found], [("live", size)])
            gpumem_torch.snapshot(path, format="pickle")
            self.assertEqual(path.read_bytes()[:2], b"\x80\x02")
            with self.assertRaises(gpumem_torch.Failure) as caught:
                gpumem_torch.snapshot(path, format="xml")
            self.assertEqual(caught.exception.outcome, "invalid_argument")
        with self.assertRaises(gpumem_torch.Failure):
            gpumem_torch.snapshot(path)  # its folder is gone
        with self.assertRaises(ValueError):
            gpumem_torch.snapshot(path, device=1)

    @alone
    def test_statistics_follow_allocations_and_frees(self):
        self.assertEqual(set(gpumem_torch.statistics(0).values()), {0})
        self.assertEqual(gpumem_torch.trim(), 0)
        self.assertIsNone(gpumem_torch.find(4096))
        stream = self.simulator.stream()
        block = self.allocate(3 * MIB, stream)
        told = gpumem_torch.statistics(0)
        self.assertEqual((told["live"], told["allocations"], told["frees"]), (3 * MIB, 1, 0))
        self.assertGreaterEqual(told["reserved"], 3 * MIB)
        self.assertEqual(set(gpumem_torch.statistics(1).values()), {0})
        found = gpumem_torch.find(block + 5)
        self.assertEqual((found["base"], found["bytes"], found["live"]), (block, 3 * MIB, True))
        self.assert_snapshot_shows(block, 3 * MIB)
        self.free(block, 3 * MIB, stream)
        self.assertFalse(gpumem_torch.find(block)["live"])
        self.assertEqual(gpumem_torch.statistics(0)["live"], 0)
        self.assertEqual(gpumem_torch.statistics(0)["peak_live"], 3 * MIB)
        self.simulator.driver.gpumem_simulator_run_until_idle()
        self.assertEqual(gpumem_torch.trim(keep=told["reserved"]), 0)
        self.assertEqual(gpumem_torch.trim(), told["reserved"])
        self.assertEqual(gpumem_torch.statistics(0)["reserved"], 0)

    # ctypes takes the low bits of a number, and C ends a text at a zero character.
    @alone
    def test_numbers_and_texts_that_c_would_change_are_refused(self):
        with self.assertRaises(ValueError):
            gpumem_torch.configure("limit=1GiB\0,pages=off")
        with self.assertRaises(TypeError):
            gpumem_torch.configure(5)
        stream = self.simulator.stream()
        block = self.allocate(3 * MIB, stream)
        for number in (2**32, 2**64, -2**32):
            self.assert_refused("invalid_argument", "there is no device", gpumem_torch.statistics, number)
            self.assertIsNone(gpumem_torch.find(block + (number << 32)))
            self.assert_refused("invalid_argument", "is no pool", gpumem_torch.share_pool, number << 32)
        self.assertEqual(gpumem_torch.find(ctypes.c_void_p(block))["base"], block)
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaises(ValueError):
                gpumem_torch.snapshot(f"{folder}/a\0b")
            with self.assertRaises(ValueError):
                gpumem_torch.snapshot(f"{folder}/a", format="json\0")
            self.assertEqual(os.listdir(folder), [])
        self.free(block, 3 * MIB, stream)
        self.simulator.driver.gpumem_simulator_run_until_idle()
        self.assertEqual(gpumem_torch.trim(keep=2**64), 0)
        self.assertGreater(gpumem_torch.trim(), 0)

    @alone
    def test_trim_and_peaks_over_each_stack(self):
        stacks = ("pool", "fixed(block_size=4MiB)", "cuda", "async", "managed", "pinned",
                  "async_managed", "limiting(pool,limit=64MiB)", "limiting(cuda,limit=64MiB)", "statistics(pool(cuda))",
                  "statistics(managed)", "binning(pool,bins=1MiB:fixed)", "binning(cuda,bins=8MiB:pool(cuda))",
                  "aligned(pool,alignment=4KiB)", "fallback(pool(limit=2MiB),cuda)", "thread_safe(async)",
                  "tracking(pool,report=/dev/null)", "failing(pool)", "prefetch(pool(managed))",
                  "logging(pool,file=/dev/null)")
        for device, text in enumerate(stacks):
            pool = ctypes.c_void_p()
            gpumem_torch.check(self.library.gpumem_make_pool(device, text.encode(), ctypes.byref(pool)))
            gpumem_torch.share_pool(pool.value, device)
            stream = self.simulator.stream(device)
            self.free(self.allocate(3 * MIB, stream, device), 3 * MIB, stream, device)
            self.simulator.driver.gpumem_simulator_run_until_idle()
            gpumem_torch.trim(device=device)
            told = gpumem_torch.statistics(device)
            kept = told["reserved"] if "async" in text else 0  # the driver decides when its pool gives memory back
            self.assertEqual((told["live"], told["reserved"]), (0, kept), text)
            self.assertGreaterEqual(told["peak_live"], 3 * MIB, text)

    @alone
    def test_no_bytes(self):
        self.assertIsNone(self.library.gpumem_torch_try_allocate(0, 0, None))
        self.library.gpumem_torch_free(None, 0, 0, None)
        self.assertEqual(gpumem_torch.statistics(0)["allocations"], 0)

    @alone
    def test_want_of_memory_is_null_and_a_sentence(self):
        gpumem_torch.configure({"limit": "4MiB", "name": "small"})
        stream = self.simulator.stream()
        self.assertIsNone(self.library.gpumem_torch_try_allocate(5 * MIB, 0, stream))
        self.assertIn(b"gpumem: out of memory (too_large) in 'small': requested 5.0 MiB", self.library.gpumem_last_error())
        self.free(self.allocate(4 * MIB, stream), 4 * MIB, stream)

    @alone
    def test_the_default_stream_of_another_device(self):
        self.simulator.make_current(0)
        block = self.library.gpumem_torch_try_allocate(MIB, 1, None)
        self.assertIsNotNone(block)
        self.library.gpumem_torch_free(block, MIB, 1, None)
        self.assertEqual((gpumem_torch.statistics(1)["live"], gpumem_torch.statistics(1)["frees"]), (0, 1))

    @alone
    def test_several_threads(self):
        failed = []

        def work(number):
            stream = self.simulator.stream()
            size = (number + 1) * 100_000
            try:
                for _ in range(50):
                    block = self.allocate(size, stream)
                    self.simulator.write(stream, block, size)
                    self.free(block, size, stream)
            except BaseException as error:
                failed.append(error)

        self.simulator.stream()
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])
        self.assertEqual((gpumem_torch.statistics(0)["allocations"], gpumem_torch.statistics(0)["live"]), (200, 0))


class RecordStream(Plugged):
    def use_on_side(self, recorded):
        """Uses one stream's memory on another, frees it before that use has run, and allocates again."""
        gpumem_torch.configure("limit=4MiB")
        main, side = self.simulator.stream(), self.simulator.stream()
        block = self.allocate(4 * MIB, main)
        self.simulator.order(main, side)
        if recorded:
            self.record_stream(block, side)
        self.simulator.write(side, block, 4 * MIB)  # after record_stream, as PyTorch programs may do
        if recorded:
            self.simulator.driver.gpumem_simulator_use_recorded(side, block)
        self.free(block, 4 * MIB, main)
        again = self.allocate(4 * MIB, main)
        self.assertEqual(again, block)
        self.simulator.write(main, again, 4 * MIB)
        self.free(again, 4 * MIB, main)

    @alone
    def test_memory_is_reused_behind_the_work_of_recorded_streams(self):
        self.use_on_side(recorded=True)

    @alone
    def test_what_is_not_recorded_is_found(self):
        self.use_on_side(recorded=False)
        self.assertTrue(self.simulator.finish())


class Configuration(Plugged):
    @alone
    def test_options_that_are_refused(self):
        for options, text in (("limt=1GiB", "'limt' is unknown"), ("limit=much", "'limit' is not a size: 'much'"),
                              ("limit", "has no value"), ("limit=1,limit=2", "given twice"),
                              ("cross_stream=yes", "ordered, completed or wait"), ({"limit": ""}, "has an empty value"),
                              ({"effort": float("nan")}, "a number from 0 to 1, not 'nan'"),
                              ({"pages": 0}, "on or off, not '0'"), (",", "missing between commas")):
            self.assert_refused("invalid_argument", text, gpumem_torch.configure, options)
        self.assert_refused("invalid_argument", "no device -1", gpumem_torch.statistics, -1)

    def drawn_for_a_block(self):
        stream, called = self.simulator.stream(), set()
        self.free(self.allocate(1, stream), 1, stream)
        visit = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64)
        self.simulator.driver.gpumem_simulator_visit_calls(visit(lambda _, name, n: called.add(name)), None)
        return called & {b"cuMemAlloc", b"cuMemCreate"}

    @alone
    def test_a_dict_says_on_and_off(self):
        gpumem_torch.configure({"pages": False, "effort": 5e-05, "hardened": False})
        self.assertEqual(self.drawn_for_a_block(), {b"cuMemAlloc"})

    @alone
    def test_contradictions_are_found_at_the_first_allocation(self):
        gpumem_torch.configure("limit=1MiB,initial_size=2MiB")
        self.assertIsNone(self.library.gpumem_torch_try_allocate(1, 0, self.simulator.stream()))
        self.assertIn(b"larger than its limit", self.library.gpumem_last_error())
        gpumem_torch.configure("limit=2MiB,initial_size=2MiB")
        stream = self.simulator.stream()
        self.free(self.allocate(1, stream), 1, stream)

    @alone
    def test_the_environment_serves_where_nothing_is_said(self):
        os.environ["GPUMEM_TORCH_OPTIONS"] = "limit=8MiB, release_threshold=0"
        self.assertEqual(self.drawn_for_a_block(), {b"cuMemCreate"})
        self.assertEqual(gpumem_torch.statistics(0)["limit"], 8 * MIB)

    @alone
    def test_a_faulty_environment_is_told(self):
        os.environ["GPUMEM_TORCH_OPTIONS"] = "limit=8 Mebi"
        self.assert_refused("invalid_argument", "'8 Mebi'", gpumem_torch.configure)
        self.assertIsNone(self.library.gpumem_torch_try_allocate(1, 0, self.simulator.stream()))
        self.assertIn(b"'8 Mebi'", self.library.gpumem_last_error())

    @alone
    def test_what_is_said_wins_until_the_first_use(self):
        os.environ["GPUMEM_TORCH_OPTIONS"] = "limit=8MiB"
        gpumem_torch.configure("limit=4MiB")
        stream = self.simulator.stream()
        self.free(self.allocate(1, stream), 1, stream)
        self.assertEqual(gpumem_torch.statistics(0)["limit"], 4 * MIB)
        self.assert_refused("invalid_argument", "already has its pool", gpumem_torch.configure, "limit=5MiB")

    @alone
    def test_the_library_is_missing(self):
        gpumem_torch._library = None
        os.environ["GPUMEM_LIBRARY"] = "/nowhere/libgpumem_c.so"
        with self.assertRaisesRegex(ImportError, "gpumem's library was not found: /nowhere"):
            gpumem_torch.version()

    @alone
    def test_pools_of_ones_own(self):
        stream, pool, block = self.simulator.stream(), ctypes.c_void_p(), ctypes.c_void_p()
        gpumem_torch.check(self.library.gpumem_make_pool(0, b"limit=1GiB", ctypes.byref(pool)))
        gpumem_torch.check(self.library.gpumem_allocate(pool, stream, 100, 256, ctypes.byref(block)))
        gpumem_torch.check(self.library.gpumem_free_sized(pool, stream, block, 100))
        self.assert_refused("invalid_argument", "double free",
                            lambda: gpumem_torch.check(self.library.gpumem_free(pool, stream, block)))
        gpumem_torch.check(self.library.gpumem_release(pool))

    @alone
    def test_captures_get_graph_memory(self):
        stream, driver, library = self.simulator.stream(), self.simulator.driver, self.library
        pool, memory, scope, block, graph = (ctypes.c_void_p() for _ in range(5))
        kept = ctypes.c_size_t()
        gpumem_torch.check(library.gpumem_make_pool(0, b"", ctypes.byref(pool)))
        gpumem_torch.check(library.gpumem_graph_memory_make(pool, ctypes.byref(memory)))
        gpumem_torch.check(library.gpumem_graph_memory_capture(memory, stream, ctypes.byref(scope)))
        self.simulator.require(driver.cuStreamBeginCapture_v2(ctypes.c_void_p(stream), 1))
        gpumem_torch.check(library.gpumem_allocate(pool, stream, 3 * MIB, 256, ctypes.byref(block)))
        gpumem_torch.check(library.gpumem_free(pool, stream, block))
        self.simulator.require(driver.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)))
        self.simulator.require(driver.cuGraphDestroy(graph))
        gpumem_torch.check(library.gpumem_capture_scope_end(scope))
        gpumem_torch.check(library.gpumem_graph_memory_bytes(memory, ctypes.byref(kept)))
        self.assertGreaterEqual(kept.value, 3 * MIB)
        gpumem_torch.check(library.gpumem_graph_memory_free(memory))
        gpumem_torch.check(library.gpumem_release(pool))

    @alone
    def test_texts_of_the_guide_describe_resources(self):
        page = (Path(__file__).parents[2] / "modules/guide/from_rmm.md").read_text()
        table = page.split("\n## Resources\n")[1].split("\n## ")[0]
        texts = [text for row in table.splitlines() if row.startswith("|") for text in row.split("|")[3].split("`")[1::2]]
        known = [text for text in texts if not text.startswith(("callbacks", "gpumem_make_pool_over", "system"))]
        self.assertEqual((len(known), len(texts)), (15, 18))
        self.simulator.make_current(0)
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)  # for the log
            for text in known:
                pool = ctypes.c_void_p()
                gpumem_torch.check(self.library.gpumem_make_pool(0, text.encode(), ctypes.byref(pool)))
                gpumem_torch.check(self.library.gpumem_release(pool))

    @alone
    def test_a_pool_of_the_program_is_shared(self):
        stream, pool = self.simulator.stream(), ctypes.c_void_p()
        gpumem_torch.check(self.library.gpumem_make_pool(0, b"name=ours", ctypes.byref(pool)))
        self.assert_refused("invalid_argument", "is NULL", gpumem_torch.share_pool, None)
        self.assert_refused("invalid_argument", "of device 0, not of device 1", gpumem_torch.share_pool, pool.value, 1)
        gpumem_torch.share_pool(pool.value)
        gpumem_torch.configure("limit=1GiB")  # as install does, for the other devices
        block = self.allocate(1000, stream)
        shared = gpumem_torch._Statistics(size=ctypes.sizeof(gpumem_torch._Statistics))
        gpumem_torch.check(self.library.gpumem_read_statistics(pool, ctypes.byref(shared)))
        self.assertEqual((shared.live, gpumem_torch.statistics()["live"]), (1000, 1000))
        self.free(block, 1000, stream)
        self.assert_refused("invalid_argument", "already has its pool", gpumem_torch.share_pool, pool.value)


class StandIn:
    """A fake of the parts of PyTorch that the module uses; it records the calls."""

    def __init__(self, hooks):
        self.asked = []
        asked = self.asked

        class Inner:
            pass

        for hook in hooks:
            setattr(Inner, hook, lambda self, address, hook=hook: asked.append((hook, address)))

        class CUDAPluggableAllocator:
            def __init__(self, path, allocate, free):
                self.path, self.names, self.inner = path, (allocate, free), Inner()

            def allocator(self):
                return self.inner

        self.module = types.ModuleType("torch")
        self.module.cuda = types.SimpleNamespace(
            memory=types.SimpleNamespace(CUDAPluggableAllocator=CUDAPluggableAllocator,
                                         change_current_allocator=lambda a: asked.append(("change", a))),
            MemPool=lambda inner, **more: ("pool", inner, more),
            device=lambda ordinal: asked.append(("device", ordinal)) or contextlib.nullcontext(),
            current_device=lambda: 1)
        self.module.device = lambda text: types.SimpleNamespace(index=int(text[5:]) if ":" in text else None)
        sys.modules["torch"] = self.module


class Tensor:
    """A fake of a tensor: the memory and the shape that a view has."""

    def __init__(self, memory, dtype, shape, device):
        self.memory, self.dtype, self.shape, self.device = memory, dtype, shape, device

    def view(self, first, *rest):
        if isinstance(first, int):
            return Tensor(self.memory, self.dtype, [first, *rest], self.device)
        return Tensor(self.memory, first, self.shape, self.device)

    def movedim(self, source, target):
        shape = list(self.shape)
        shape.insert(target, shape.pop(source))
        return Tensor(self.memory, self.dtype, shape, self.device)

    def element_size(self):
        return {"uint8": 1, "half": 2, "float": 4}[self.dtype]


class Growing(Plugged):
    def use_torch(self, stream):
        torch = StandIn(gpumem_torch.HOOKS).module
        torch.OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {})
        torch.get_default_dtype = lambda: "float"
        torch.empty = lambda size, dtype="float", device="cpu": Tensor(None, dtype, [size], device)
        torch.as_tensor = lambda memory, device: Tensor(
            memory, "uint8", list(memory.__cuda_array_interface__["shape"]), device)
        torch.cuda.current_stream = lambda device: types.SimpleNamespace(cuda_stream=stream)
        return torch

    def address(self, tensor):
        return tensor.memory.__cuda_array_interface__["data"][0]

    @alone
    def test_tensor_grows_at_its_address(self):
        self.use_torch(self.simulator.stream(0))
        gpumem_torch.configure("limit=64MiB")
        cache = gpumem_torch.growable((8, 0, 128), "half", dim=1, reserve=1 << 20, device=0, name="keys")
        self.assertEqual((cache.tensor.shape, cache.tensor.dtype, cache.tensor.memory), ([8, 0, 128], "half", None))
        first = cache.grow_(1024)
        self.assertEqual((first.shape, first.dtype, first.device), ([8, 1024, 128], "half", "cuda:0"))
        self.assertEqual(first.memory.__cuda_array_interface__["shape"], (2 * MIB,))
        second = cache.grow_(8 * 1024)
        self.assertEqual((self.address(second), second.shape), (self.address(first), [8, 8 * 1024, 128]))
        self.assertIs(cache.tensor, second)
        self.assertGreaterEqual(gpumem_torch.statistics(0)["lent"], 16 * MIB)
        mapped = cache.sizes()["mapped"]
        cache.discard(1024, 3 * 1024)
        self.assertEqual(cache.sizes()["mapped"], mapped - 4 * MIB)
        cache.restore(1024, 2048)
        self.assertEqual(cache.shrink_(1024).shape, [8, 1024, 128])
        self.assertEqual((cache.sizes()["bytes"], cache.sizes()["mapped"]), (2 * MIB, 2 * MIB))
        del first, second, cache
        self.assertEqual(gpumem_torch.statistics(0)["lent"], 0)

    @alone
    def test_views_keep_the_memory(self):
        self.use_torch(self.simulator.stream(0))
        view = gpumem_torch.growable((MIB,), reserve=4 * MIB, device=0).tensor
        self.assertEqual(gpumem_torch.statistics(0)["lent"], 4 * MIB)
        del view
        self.assertEqual(gpumem_torch.statistics(0)["lent"], 0)

    @alone
    def test_want_of_memory_is_that_of_torch(self):
        torch = self.use_torch(self.simulator.stream(0))
        gpumem_torch.configure("limit=16MiB")
        cache = gpumem_torch.growable((0, MIB), "float", reserve=8, device=0)
        for length, text in ((8, "limit"), (9, "addresses for 8 rows, not 9")):
            with self.assertRaisesRegex(torch.OutOfMemoryError, text):
                cache.grow_(length)
        self.assertEqual(cache.grow_(2).shape, [2, MIB])
        with self.assertRaisesRegex(torch.OutOfMemoryError, "16777216|16.0 MiB"):
            gpumem_torch.growable((8, MIB), "float", reserve=8, device=0)

    @alone
    def test_wrong_calls_say_what_is_wrong(self):
        self.use_torch(None)  # the legacy stream
        gpumem_torch.configure("pages=off")
        self.simulator.make_current(0)
        for error, text, call in (
                (IndexError, "no dimension 2", lambda: gpumem_torch.growable((1, 2), dim=2, reserve=2)),
                (ValueError, "reserve=1", lambda: gpumem_torch.growable((2, 2), reserve=1)),
                (ValueError, "a comma", lambda: gpumem_torch.growable((2, 2), reserve=2, device=0, name="a,page=2MiB")),
                (ValueError, "no elements", lambda: gpumem_torch.growable((2, 0), reserve=2)),
                (gpumem_torch.Failure, "pages", lambda: gpumem_torch.growable((2, 2), reserve=2, device=0))):
            with self.assertRaisesRegex(error, text):
                call()

    @alone
    def test_rows_outside_are_refused(self):
        self.use_torch(self.simulator.stream(0))
        cache = gpumem_torch.growable((4, MIB), "half", reserve=8, device=0)
        for error, call in ((ValueError, lambda: cache.grow_(3)), (IndexError, lambda: cache.shrink_(5)),
                            (IndexError, lambda: cache.discard(2, 5)), (IndexError, lambda: cache.restore(-1, 1)),
                            (ValueError, lambda: cache.grow_(5, wait=-1)),
                            (gpumem_torch.Failure, lambda: cache.restore(0, 1))):
            with self.assertRaises(error):
                call()
        self.assertEqual(cache.tensor.shape, [4, MIB])


class Wiring(Plugged):
    def address(self, name):
        return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value

    @alone
    def test_install_gives_all_hooks_and_then_changes_the_allocator(self):
        torch = StandIn(gpumem_torch.HOOKS)
        self.assertFalse(gpumem_torch.installed())
        gpumem_torch.install("limit=1GiB", plug_in=True)
        self.assertTrue(gpumem_torch.installed())
        allocator = gpumem_torch._kept["installed"]
        self.assertEqual(allocator.names, ("gpumem_torch_allocate", "gpumem_torch_free"))
        self.assertEqual(os.path.realpath(allocator.path), os.path.realpath(os.environ["GPUMEM_LIBRARY"]))
        self.assertEqual(torch.asked[:-1], [(hook, self.address(name)) for hook, name in gpumem_torch.HOOKS.items()])
        self.assertEqual(torch.asked[-1], ("change", allocator))

    @alone
    def test_install_refuses_a_torch_that_would_ignore_record_stream(self):
        torch = StandIn([])
        with self.assertRaisesRegex(RuntimeError, "record_stream"):
            gpumem_torch.install(plug_in=True)
        self.assertEqual((torch.asked, gpumem_torch.installed()), ([], False))

    @alone
    def test_install_refuses_options_before_it_changes_anything(self):
        torch = StandIn(gpumem_torch.HOOKS)
        self.assert_refused("invalid_argument", "'limt'", lambda: gpumem_torch.install("limt=1GiB", plug_in=True))
        self.assertEqual(torch.asked, [])

    @alone
    def test_mem_pool_gets_the_function_that_says_null(self):
        torch = StandIn(gpumem_torch.HOOKS)
        kind, inner, more = gpumem_torch.mem_pool("limit=1GiB", device="cuda:0", use_on_oom=True)
        kept = gpumem_torch._kept["gpumem_torch_try_allocate"]
        self.assertEqual((kind, inner, more), ("pool", kept.inner, {"use_on_oom": True}))
        self.assertEqual(kept.names, ("gpumem_torch_try_allocate", "gpumem_torch_free"))
        self.assertEqual(torch.asked, [("device", 0)])
        self.assertIs(gpumem_torch.mem_pool()[1], inner)
        self.assertEqual(torch.asked[-1], ("device", 1))

    @alone
    def test_devices_as_torch_names_them(self):
        StandIn(gpumem_torch.HOOKS)
        stream = self.simulator.stream(1)
        self.free(self.allocate(MIB, stream, device=1), MIB, stream, device=1)
        for name in (1, "cuda:1", "cuda", None):
            self.assertEqual(gpumem_torch.statistics(name)["allocations"], 1)
        self.assertEqual(gpumem_torch.statistics("cuda:0")["allocations"], 0)

    @alone
    def test_install_without_torch_says_what_is_missing(self):
        sys.modules["torch"] = None  # as if it were not installed
        for call in (gpumem_torch.install, gpumem_torch.mem_pool, lambda: gpumem_torch.statistics("cuda:0")):
            with self.assertRaisesRegex(ModuleNotFoundError, "this Python has no PyTorch"):
                call()
        self.assertEqual((gpumem_torch.installed(), gpumem_torch.statistics(0)["live"]), (False, 0))

    @alone
    def test_a_torch_that_lacks_a_module_of_its_own_says_which(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "torch.py").write_text("import a_part_of_torch\n")
            sys.path.insert(0, folder)
            with self.assertRaisesRegex(ModuleNotFoundError, "a_part_of_torch"):
                gpumem_torch.install()

    @alone
    def test_configure_names_every_option(self):
        with self.assertRaises(gpumem_torch.Failure) as caught:
            gpumem_torch.configure("limt=1GiB")
        known = str(caught.exception).split("the options are ")[1].split(", ")
        self.assertGreater(len(known), 18)
        for name in known:
            self.assertRegex(gpumem_torch.configure.__doc__, rf"\b{name}\b")

    def test_the_module_imports_without_torch(self):
        self.assertNotIn("torch", sys.modules)


if __name__ == "__main__":
    unittest.main()
