import ctypes

from gpumem_torch import check, library

gpumem = library()  # the functions of gpumem.h
pool, block = ctypes.c_void_p(), ctypes.c_void_p()
check(gpumem.gpumem_make_pool(0, b"limit=64MiB", ctypes.byref(pool)))
stream = 2  # GPUMEM_STREAM_PER_THREAD, or the address of a stream
check(gpumem.gpumem_allocate(pool, stream, 1 << 20, 256, ctypes.byref(block)))
print(f"1 MiB at {block.value:#x}")
check(gpumem.gpumem_free(pool, stream, block))
check(gpumem.gpumem_release(pool))
