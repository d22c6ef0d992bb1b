import ctypes
import time
from gpumem_torch import check, library  # PyTorch is not needed

lib, driver = library(), ctypes.CDLL("libcuda.so.1")
context, stream = ctypes.c_void_p(), ctypes.c_void_p(2)  # GPUMEM_STREAM_PER_THREAD
driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), driver.cuCtxSetCurrent(context)

def in_use():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return total.value - free.value  # by all programs

def walk(name, keeps, text):
    pool, block, before = ctypes.c_void_p(), ctypes.c_void_p(), in_use()

    def tell(when, kept, give_back=lambda: None):
        end = time.monotonic() + 5
        while not kept and in_use() != before and time.monotonic() < end:
            time.sleep(.001)  # gpumem's own thread may give memory back
            give_back()
        print(f"{name:10}  {when:7}  {(in_use() - before) / 2**20:.2f} MiB")
        assert (in_use() != before) == kept

    check(lib.gpumem_make_pool(0, text, ctypes.byref(pool)))
    for size in 100 << 10, 8 << 20:
        check(lib.gpumem_allocate(pool, stream, size, 256, ctypes.byref(block)))
        tell("live", True)
        check(lib.gpumem_free(pool, stream, block))
        driver.cuStreamSynchronize(stream)
        tell("freed", keeps)
        if size < 1 << 20:
            tell("trimmed", False, lambda: lib.gpumem_trim(pool, 0, ctypes.byref(ctypes.c_size_t())))
    lib.gpumem_release(pool)
    tell("ended", False)

for arguments in (("direct", False, b"cuda"), ("pool", True, b"pool(cuda)"), ("driver", True, b"async"),
                  ("binning", True, b"binning(pool(cuda),min_exponent=10,max_exponent=20)"),
                  ("fixed size", True, b"fixed(cuda,block_size=8MiB,blocks_per_chunk=4)")):
    walk(*arguments)
