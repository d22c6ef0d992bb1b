"""gpumem as the memory of PyTorch.

    import gpumem_torch
    gpumem_torch.install("limit=60GiB")       # before PyTorch's first use of a GPU; from here on for all its memory
    ...
    print(gpumem_torch.statistics(0)["peak_reserved"])

or beside PyTorch's own allocator:

    pool = gpumem_torch.mem_pool()
    with torch.cuda.use_mem_pool(pool):
        block = torch.empty(1 << 20, device="cuda")

`configure`, `statistics`, `find`, `trim` and `library` also work without PyTorch: they need only ctypes. gpumem's
library is searched at GPUMEM_LIBRARY, in the wheel, where the package installs it, and by its name.

`install` puts a class of gpumem in place of PyTorch's allocator. Functions such as torch.cuda.memory_allocated work as
before. The wheel has the class for released versions of PyTorch; for others it is compiled at the first call: see
gpumem_torch_build. If that is not possible, `install(plug_in=True)` uses PyTorch's CUDAPluggableAllocator. PyTorch then
refuses statistics, snapshots and memory pools, and if memory runs out it raises a RuntimeError that begins with
"gpumem: out of memory".
"""
# SPDX-License-Identifier: Apache-2.0
import ctypes
import os
import threading
from pathlib import Path

__all__ = ["Failure", "configure", "statistics", "find", "growable", "install", "installed", "library", "mem_pool",
           "share_pool", "snapshot", "trim", "version"]

OUTCOMES = ("granted", "stopped", "deadline", "closed", "too_large", "exhausted", "preempted", "stalled",
            "capture_unsupported", "device_lost", "invalid_argument", "driver_error")
# Functions of gpumem that PyTorch's CUDAPluggableAllocator calls, by the setter that takes each.
HOOKS = {
    "set_record_stream_fn": "gpumem_torch_record_stream",
    "set_reset_fn": "gpumem_torch_empty_cache",
    "set_memory_fraction_fn": "gpumem_torch_memory_fraction",
    "set_begin_allocate_to_pool": "gpumem_torch_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "gpumem_torch_end_allocate_to_pool",
    "set_release_pool": "gpumem_torch_release_pool",
}
LIBRARY_NAME = "libgpumem_c.so.0"
INTERFACE = 0, 2  # major and minor version of the library to which the structures below belong


class Failure(RuntimeError):
    """Raised if a call of gpumem fails. `outcome` is the name of the outcome, one of OUTCOMES; the text says why."""

    def __init__(self, outcome, text):
        super().__init__(text)
        self.outcome = outcome


class _Statistics(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in (
        "live", "allocated", "reserved", "largest_free", "limit", "peak_live", "peak_reserved", "allocations", "frees",
        "failures", "upstream_allocations", "upstream_frees", "coalesces", "coalesces_refused", "reuse_same_stream",
        "reuse_ordered", "reuse_completed", "reuse_waited", "reuse_after_sync", "free", "free_ranges", "free_in_use", "in_use_streams", "quarantined",
        "cached", "reuse_thread_cache", "largest_block", "waiting", "waiting_bytes", "oldest_wait_ns",
        "reserved_in_all", "shards", "lent")]


class _Block(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("base", ctypes.c_void_p), ("bytes", ctypes.c_uint64),
                ("allocated", ctypes.c_uint64), ("stream", ctypes.c_uint64), ("live", ctypes.c_uint64)]


_lock = threading.RLock()
_library = None
_kept = {}  # keeps allocators alive, because PyTorch's pools hold only pointers to them


def _candidates():
    named = os.environ.get("GPUMEM_LIBRARY")
    if named:
        return [named]
    here = Path(__file__).resolve()
    in_wheel = here.parent / "gpumem_torch.libs" / LIBRARY_NAME
    beside = here.parent.parent.parent / LIBRARY_NAME  # this file is <libdir>/gpumem/python/gpumem_torch.py
    return [str(path) for path in (in_wheel, beside) if path.exists()] + [LIBRARY_NAME]


def _open():
    tried = []
    if not os.environ.get("GPUMEM_LIBRARY"):
        try:  # the copy that the program has loaded already: another copy could not free its blocks
            return ctypes.CDLL(LIBRARY_NAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            pass
    for path in _candidates():
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            tried.append(str(error))
    raise ImportError("gpumem's library was not found: " + "; ".join(tried))


def _declare(lib):
    pointer, size, code = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    signatures = {
        "gpumem_version": (ctypes.c_uint32, []),
        "gpumem_last_error": (ctypes.c_char_p, []),
        "gpumem_make_pool": (code, [code, ctypes.c_char_p, ctypes.POINTER(pointer)]),
        "gpumem_retain": (code, [pointer]),
        "gpumem_release": (code, [pointer]),
        "gpumem_release_on": (code, [pointer, ctypes.POINTER(pointer), size]),
        "gpumem_allocate": (code, [pointer, pointer, size, size, ctypes.POINTER(pointer)]),
        "gpumem_allocate_sync": (code, [pointer, size, size, ctypes.POINTER(pointer)]),
        "gpumem_acquire": (code, [pointer, pointer, size, size, ctypes.c_uint64, ctypes.POINTER(pointer)]),
        "gpumem_free": (code, [pointer, pointer, pointer]),
        "gpumem_free_sized": (code, [pointer, pointer, pointer, size]),
        "gpumem_free_sync": (code, [pointer, pointer, size]),
        "gpumem_record_use": (code, [pointer, pointer, pointer]),
        "gpumem_synchronize": (code, [pointer, ctypes.c_uint64]),
        "gpumem_trim": (code, [pointer, size, ctypes.POINTER(size)]),
        "gpumem_reserve": (code, [pointer, size]),
        "gpumem_set_limit": (code, [pointer, size]),
        "gpumem_device": (code, [pointer, ctypes.POINTER(code)]),
        "gpumem_read_statistics": (code, [pointer, ctypes.POINTER(_Statistics)]),
        "gpumem_find": (code, [pointer, pointer, ctypes.POINTER(_Block)]),
        "gpumem_set_label": (code, [pointer, pointer, ctypes.c_char_p]),
        "gpumem_write_snapshot": (code, [pointer, ctypes.c_char_p, ctypes.c_char_p]),
        "gpumem_graph_memory_make": (code, [pointer, ctypes.POINTER(pointer)]),
        "gpumem_graph_memory_capture": (code, [pointer, pointer, ctypes.POINTER(pointer)]),
        "gpumem_graph_memory_bytes": (code, [pointer, ctypes.POINTER(size)]),
        "gpumem_graph_memory_free": (code, [pointer]),
        "gpumem_capture_scope_end": (code, [pointer]),
        "gpumem_torch_configure": (code, [ctypes.c_char_p]),
        "gpumem_torch_share_pool": (code, [code, pointer]),
        "gpumem_torch_pool": (code, [code, ctypes.POINTER(pointer)]),
        "gpumem_torch_try_allocate": (pointer, [size, code, pointer]),
        "gpumem_torch_free": (None, [pointer, size, code, pointer]),
        "gpumem_torch_empty_cache": (None, []),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments


def library():
    """Returns gpumem's library with its C functions declared. Opens it at the first call. Raises ImportError."""
    global _library
    with _lock:
        if _library is None:
            lib = _open()
            number = lib.gpumem_version()
            if (number // 10000, number // 100 % 100) != INTERFACE:
                raise ImportError(f"{lib._name} is gpumem {number // 10000}.{number // 100 % 100}, "
                                  f"this module is of {INTERFACE[0]}.{INTERFACE[1]}")
            try:
                _declare(lib)
            except AttributeError as error:
                raise ImportError(f"{lib._name} is older than this module: {error}") from None
            _library = lib
        return _library


def check(outcome):
    """Raises Failure unless `outcome`, the result of a function of the library, is 0 (granted)."""
    if outcome != 0:
        name = OUTCOMES[outcome] if 0 <= outcome < len(OUTCOMES) else str(outcome)
        raise Failure(name, library().gpumem_last_error().decode(errors="replace"))


def _text(text, encode=str.encode):
    """Returns a text as C takes it. Raises TypeError for other types, and ValueError if the text has a zero character,
    where C would end it."""
    encoded = encode(text)
    if b"\0" in encoded:
        raise ValueError(f"gpumem_torch: the text {text!r} has a zero character")
    return encoded


def version():
    """Returns the library's version as (major, minor, patch)."""
    number = library().gpumem_version()
    return number // 10000, number // 100 % 100, number % 100


def configure(options=None):
    """Sets the options of the pools. Each device gets one pool at its first allocation. `options` is a text as for
    gpumem_make_pool in gpumem.h ("limit=8GiB,initial_size=1GiB"), or a dict of such options, with True for on and False
    for off. None means the text in the environment variable GPUMEM_TORCH_OPTIONS. Raises Failure for unknown or
    malformed options, and once a device has its pool.

    - limit, initial_size, release_threshold, chunk_size, smallest_block, largest_block: sizes in bytes or with a unit.
      A pool with a chunk_size draws chunks as with pages=off.
    - pages: on, the default, draws virtual pages where the device has them. off draws chunks of cudaMalloc, for memory
      that cudaIpcGetMemHandle takes, or that other devices reach by cudaDeviceEnablePeerAccess. torch.multiprocessing
      needs no such memory.
    - effort: from 0 to 1, the share of the time that may be spent on moving free pages.
    - cross_stream: ordered, completed or wait; which memory of other streams a request may get.
    - shard_per_thread, pass_through: on or off.
    - failure_report: a file to which the pool appends where its memory is when a request fails.
    - max_overtakes: a count; stall_timeout: seconds, as 1.5s. Both are for requests that wait in C or C++.
    - name: text for reports.
    - hardened: on or off, and then guard, quarantine and poison, which are sizes, and history, a count.

    pool_options in gpumem/pool_options.hpp says what each does."""
    if isinstance(options, dict):
        text = {True: "on", False: "off"}
        options = ",".join(f"{name}={text[value] if isinstance(value, bool) else value}"
                           for name, value in options.items())
    check(library().gpumem_torch_configure(None if options is None else _text(options)))


def _torch():
    try:
        import torch
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise ModuleNotFoundError("gpumem_torch: this Python has no PyTorch; configure, statistics, find, trim and "
                                  "library work without it, with the device as a number", name="torch") from None
    return torch


def _pool(device):
    pool = ctypes.c_void_p()
    check(library().gpumem_torch_pool(device, ctypes.byref(pool)))
    return pool


def _ordinal(device):
    """Returns the ordinal of a device: 1, "cuda:1", torch.device("cuda", 1), or None for the current device."""
    if isinstance(device, int):
        if not -2**31 <= device < 2**31:  # ctypes would take the low bits for another device
            raise Failure("invalid_argument", f"gpumem_torch: there is no device {device}")
        return device
    torch = _torch()
    if device is None:
        return torch.cuda.current_device()
    index = torch.device(device).index
    return torch.cuda.current_device() if index is None else index


def share_pool(handle, device=0):
    """Makes PyTorch use a pool of a C or C++ part of the program. Call it before the device's first allocation.
    `handle` is the gpumem_pool* as an int: `pool.handle()` in C++. Raises Failure once the device has its pool."""
    if isinstance(handle, int) and not 0 < handle < 2**64:
        raise Failure("invalid_argument", f"gpumem_torch: {handle} is no pool")
    check(library().gpumem_torch_share_pool(_ordinal(device), handle))


def statistics(device=0):
    """Returns bytes and counts of the device's pool by their names in gpumem_statistics; zeros if there is no pool."""
    result = _Statistics(size=ctypes.sizeof(_Statistics))
    pool = _pool(_ordinal(device))
    if pool:
        check(library().gpumem_read_statistics(pool, ctypes.byref(result)))
    return {name: getattr(result, name) for name, _ in _Statistics._fields_ if name != "size"}


def find(pointer, device=0):
    """Returns the block or free range of the device's pool that holds this address: base, bytes, allocated, stream,
    live. Returns None if the pool does not own the address."""
    block = _Block(size=ctypes.sizeof(_Block))
    pool = _pool(_ordinal(device))
    pointer = getattr(pointer, "value", pointer)  # of a ctypes.c_void_p
    if pool and pointer and 0 <= pointer < 2**64:
        check(library().gpumem_find(pool, pointer, ctypes.byref(block)))
    if not block.base:
        return None
    return {"base": block.base, "bytes": block.bytes, "allocated": block.allocated, "stream": block.stream,
            "live": bool(block.live)}


def snapshot(path, device=0, format="json"):
    """Writes all that the device's pool knows of its memory to a file: blocks, pages, thread caches, statistics. `format`
    is "json", or "pickle" for PyTorch's _memory_viz.py. Memory of torch.cuda.MemPool is shown as the blocks that it has
    from the pool. Raises Failure if the file cannot be written, and ValueError while the device has no pool."""
    pool = _pool(_ordinal(device))
    if not pool:
        raise ValueError(f"gpumem_torch: device {_ordinal(device)} has no pool before its first allocation")
    check(library().gpumem_write_snapshot(pool, _text(path, os.fsencode), _text(f"format={format}")))


def growable(shape, dtype=None, dim=0, *, reserve, device=None, page=None, name="growable"):
    """Returns a gpumem_torch_growable.Growable: a tensor that grows in place along the dimension `dim`, over pages of the
    device's pool. `reserve` is the greatest length of that dimension: it reserves addresses, which cost no memory. `page`
    is the largest page in bytes or with a unit, as "32MiB". `name` names the memory in snapshots and reports. Raises
    torch.OutOfMemoryError, and Failure for wrong options and a pool without pages.

        cache = gpumem_torch.growable((0, 8, 128), torch.float16, reserve=1 << 20)
        keys = cache.grow_(4096)               # a view of 4096 rows; older views keep their address
    """
    from gpumem_torch_growable import Growable
    return Growable(shape, dtype, dim, reserve, device, page, name)


def trim(keep=0, device=0, wait=1.0):
    """Gives free memory of the device's pool beyond `keep` reserved bytes back, and returns the bytes given back.
    Memory goes back only if the work that uses it is complete; waits for that for at most `wait` seconds, and for at
    most an hour. Raises ValueError if `keep` or `wait` is negative or no number. Unlike
    torch.cuda.empty_cache this also gives memory back while a captured graph lives, so the graph must not use any of
    it."""
    if not keep >= 0 or not wait >= 0:
        raise ValueError(f"trim needs bytes and seconds that are not negative, not keep={keep}, wait={wait}")
    given_back = ctypes.c_size_t()
    pool = _pool(_ordinal(device))
    if pool:
        outcome = library().gpumem_synchronize(pool, int(min(wait, 3600) * 1e9))
        if outcome != OUTCOMES.index("deadline"):
            check(outcome)
        check(library().gpumem_trim(pool, min(keep, 2**64 - 1), ctypes.byref(given_back)))
    return given_back.value


def _address(name):
    return ctypes.cast(getattr(library(), name), ctypes.c_void_p).value


def _wire(allocator):
    """Passes HOOKS to PyTorch's allocator. Without the hook for record_stream it would ignore Tensor.record_stream."""
    inner = allocator.allocator()
    if not hasattr(inner, "set_record_stream_fn"):
        raise RuntimeError("this PyTorch takes no record_stream of an allocator from outside: memory used on a second "
                           "stream would be reused too early")
    for setter, function in HOOKS.items():
        if hasattr(inner, setter):
            getattr(inner, setter)(_address(function))


def _allocator(allocate):
    with _lock:
        if allocate not in _kept:
            _kept[allocate] = _torch().cuda.memory.CUDAPluggableAllocator(library()._name, allocate, "gpumem_torch_free")
        return _kept[allocate]


def _load_allocator(torch):
    """Returns the library with the allocator class for this PyTorch: the wheel's, otherwise a built one."""
    import gpumem_torch_build
    path = gpumem_torch_build.shipped(torch) or gpumem_torch_build.build(torch)
    ctypes.CDLL(library()._name, mode=ctypes.RTLD_GLOBAL)  # so that the class finds gpumem's functions
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError:  # a PyTorch that was compiled elsewhere may lack a symbol
        loaded = ctypes.CDLL(str(gpumem_torch_build.build(torch)))
    loaded.gpumem_torch_install_allocator.restype = ctypes.c_char_p
    return loaded


def install(options=None, *, plug_in=False):
    """Makes gpumem PyTorch's allocator for this process. Call it before PyTorch's first use of a GPU. `options` are
    those of `configure`. `plug_in` installs gpumem by PyTorch's CUDAPluggableAllocator, which needs no compiler. Raises
    Failure for wrong options, gpumem_torch_build.BuildError if the allocator class cannot be built, and RuntimeError
    once PyTorch has used a GPU. Without PyTorch `install` and `mem_pool` raise ModuleNotFoundError."""
    torch = _torch()
    with _lock:
        if installed() and options is None:
            return
        if plug_in:
            configure(options)
            allocator = _allocator("gpumem_torch_allocate")
            _wire(allocator)
            torch.cuda.memory.change_current_allocator(allocator)
            _kept["installed"] = allocator
        else:
            loaded = _load_allocator(torch)
            configure(options)
            failure = loaded.gpumem_torch_install_allocator()
            if failure:
                raise RuntimeError(f"gpumem_torch: {failure.decode(errors='replace')}")
            _kept["installed"] = loaded


def installed():
    """Returns whether `install` has made gpumem PyTorch's allocator."""
    return "installed" in _kept


def mem_pool(options=None, device=None, **more):
    """Returns a torch.cuda.MemPool for torch.cuda.use_mem_pool that gets its memory from gpumem. `device` None is the
    current device; `more` is passed to torch.cuda.MemPool. PyTorch caches memory in the pool, and gives it back at
    torch.cuda.empty_cache or when the pool is destroyed. `options` are those of `configure`, for the first pool
    only."""
    torch = _torch()
    if options is not None:
        configure(options)
    allocator = _allocator("gpumem_torch_try_allocate")
    with torch.cuda.device(_ordinal(device)):
        return torch.cuda.MemPool(allocator.allocator(), **more)
