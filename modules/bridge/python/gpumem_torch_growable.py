"""Tensors that grow in place over gpumem's memory: see gpumem_torch.growable."""
# SPDX-License-Identifier: Apache-2.0
import ctypes
import math

import gpumem_torch

LEGACY_STREAM = 1  # GPUMEM_STREAM_LEGACY; PyTorch's stream 0 is the legacy stream


class Sizes(ctypes.Structure):
    """gpumem_growable_sizes of growable.h."""
    _fields_ = [("size", ctypes.c_size_t), ("data", ctypes.c_void_p)] + [
        (name, ctypes.c_uint64) for name in ("bytes", "mapped", "reserved", "granularity")]


def _library():
    library = gpumem_torch.library()
    pointer, size, code, time = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint64
    for name, arguments in (("make", [pointer, pointer, ctypes.c_char_p, ctypes.POINTER(pointer)]),
                            ("grow", [pointer, pointer, size, time]), ("shrink", [pointer, pointer, size]),
                            ("discard", [pointer, pointer, size, size]),
                            ("restore", [pointer, pointer, size, size, time]),
                            ("info", [pointer, ctypes.POINTER(Sizes)]), ("free", [pointer])):
        function = getattr(library, f"gpumem_growable_{name}")
        function.restype, function.argtypes = code, arguments
    return library


class _Buffer:
    """Owns a buffer of the C library. The tensors over it keep it alive."""

    def __init__(self, library, pool, stream, options):
        self.free, self.handle = library.gpumem_growable_free, ctypes.c_void_p()
        text = gpumem_torch._text(options)
        gpumem_torch.check(library.gpumem_growable_make(pool, stream, text, ctypes.byref(self.handle)))

    def __del__(self):
        if self.handle:
            self.free(self.handle)


class _Memory:
    """The first bytes of a buffer, by the interface through which libraries of Python share GPU memory."""

    def __init__(self, buffer, address, size):
        self.buffer = buffer
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


class Growable:
    """A tensor that grows in place along one dimension. `tensor` is a view of its present size.

    All views begin at one address. A view stays valid while the buffer is not made smaller than it, and a captured
    graph goes on to use the memory after a growth. New rows have undefined contents. Memory is given back in the order
    of the device's current stream, and at the end of the last view in that of the last call's stream: work on other
    streams must come before. No call waits for the GPU. A view cannot be
    resized beyond its memory: PyTorch's `resize_` raises RuntimeError then. While the first row is discarded, PyTorch makes
    no new view, so grow_ and shrink_ raise, and `tensor` is None."""

    def __init__(self, shape, dtype, dim, reserve, device, page, name):
        torch = self._torch = gpumem_torch._torch()
        self._device = gpumem_torch._ordinal(device)
        shape = list(shape)
        if not -len(shape) <= dim < len(shape):
            raise IndexError(f"gpumem_torch.growable: a tensor of {len(shape)} dimensions has no dimension {dim}")
        self._dim = dim % len(shape)
        self._length = shape.pop(self._dim)
        if min([self._length, *shape]) < 0 or reserve < max(self._length, 1):
            raise ValueError(f"gpumem_torch.growable: reserve={reserve} must be at least the length {self._length} and 1, "
                             "and no length may be negative")
        self._dtype = torch.get_default_dtype() if dtype is None else dtype
        self._rest, self._reserve = shape, reserve
        self._row = math.prod(shape) * torch.empty(0, dtype=self._dtype).element_size()
        if self._row == 0:
            raise ValueError("gpumem_torch.growable: the other dimensions have no elements")
        self._library = _library()
        if set(name) & set(",()"):
            raise ValueError(f"gpumem_torch.growable: the name {name!r} has a comma or a parenthesis")
        options = f"reserve={self._row * reserve},initial={self._row * self._length},name={name}"
        if page is not None:
            options += f",page={page}"
        try:
            with torch.cuda.device(self._device):  # a default stream belongs to the current device
                self._buffer = _Buffer(self._library, self._pool(), self._stream(), options)
        except gpumem_torch.Failure as failure:
            self._raise(failure)
        self._view()

    def _pool(self):
        pool = gpumem_torch._pool(self._device)
        if not pool:  # the first allocation makes it
            stream = self._torch.cuda.current_stream(self._device).cuda_stream
            block = self._library.gpumem_torch_try_allocate(1, self._device, stream)
            if block:
                self._library.gpumem_torch_free(block, 1, self._device, stream)
            pool = gpumem_torch._pool(self._device)
        return pool

    def _stream(self):
        return self._torch.cuda.current_stream(self._device).cuda_stream or LEGACY_STREAM

    def _raise(self, failure):
        if failure.outcome in ("exhausted", "too_large", "deadline"):
            raise self._torch.OutOfMemoryError(str(failure)) from failure
        raise failure

    def _call(self, name, *arguments):
        function = getattr(self._library, f"gpumem_growable_{name}")
        try:
            with self._torch.cuda.device(self._device):
                gpumem_torch.check(function(self._buffer.handle, *arguments))
        except gpumem_torch.Failure as failure:
            self._raise(failure)

    def _view(self):
        self.tensor = None  # an older view may be longer than the memory, if there is no new one
        size = self._row * self._length
        device = f"cuda:{self._device}"
        if size:
            memory = _Memory(self._buffer, self.sizes()["data"], size)
            flat = self._torch.as_tensor(memory, device=device).view(self._dtype)
        else:
            flat = self._torch.empty(0, dtype=self._dtype, device=device)
        self.tensor = flat.view(self._length, *self._rest).movedim(0, self._dim)
        return self.tensor

    @staticmethod
    def _time(wait):
        if wait is None:
            return 2**64 - 1
        if not wait >= 0:
            raise ValueError(f"a wait of {wait} seconds is negative or no number")
        return int(min(wait, 1e9) * 1e9)

    def _rows(self, begin, end):
        if not 0 <= begin <= end <= self._length:
            raise IndexError(f"rows {begin} to {end} do not lie in the {self._length} rows of the tensor")
        return begin * self._row, (end - begin) * self._row

    def sizes(self):
        """Returns bytes by name: `bytes` of the tensor, `mapped` pages, `reserved` addresses, the `granularity` of
        discards; and the address, `data`."""
        sizes = Sizes(size=ctypes.sizeof(Sizes))
        gpumem_torch.check(self._library.gpumem_growable_info(self._buffer.handle, ctypes.byref(sizes)))
        return {name: getattr(sizes, name) for name, _ in Sizes._fields_ if name != "size"}

    def grow_(self, length, wait=0):
        """Makes the tensor `length` long in its growing dimension and returns the new view; an older view stays valid. If
        memory is missing, waits in the pool's line for at most `wait` seconds; None: without end. Raises
        torch.OutOfMemoryError then, and for more than the reserved length. A length below the present one raises
        ValueError: see shrink_."""
        if length < self._length:
            raise ValueError(f"the tensor has {self._length} rows, more than {length}: call shrink_")
        if length > self._reserve:
            raise self._torch.OutOfMemoryError(f"gpumem: the tensor has addresses for {self._reserve} rows, not {length}")
        self._call("grow", self._stream(), length * self._row, self._time(wait))
        self._length = length
        return self._view()

    def shrink_(self, length):
        """Makes the tensor `length` long, which is at most its present length, and returns the new view. Memory beyond it
        goes back: no work that is enqueued later may use older, longer views."""
        _, size = self._rows(0, length)
        self._call("shrink", self._stream(), size)
        self._length = length
        return self._view()

    def discard(self, begin, end):
        """Gives the memory of the rows from `begin` to before `end` back; work that is enqueued later may not use these
        rows. Their bytes begin and end at multiples of sizes()["granularity"]."""
        self._call("discard", self._stream(), *self._rows(begin, end))

    def restore(self, begin, end, wait=0):
        """Gives discarded rows memory again, with undefined contents. Waits as grow_ does."""
        self._call("restore", self._stream(), *self._rows(begin, end), self._time(wait))
