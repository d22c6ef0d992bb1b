# The simulated device for Python tests.
# SPDX-License-Identifier: Apache-2.0
import ctypes
import functools
import os
import traceback

import gpumem_torch


class Touch(ctypes.Structure):
    _fields_ = [("pointer", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("write", ctypes.c_int)]


class Options(ctypes.Structure):
    _fields_ = [("devices", ctypes.c_int), ("capacity", ctypes.c_size_t), ("seed", ctypes.c_uint64),
                ("manual", ctypes.c_int), ("stall_timeout_ms", ctypes.c_uint64), ("virtual_memory", ctypes.c_int),
                ("pageable_memory", ctypes.c_int), ("concurrent_managed_access", ctypes.c_int)]


class Party(ctypes.Structure):
    _fields_ = [("stream", ctypes.c_uint64), ("operation", ctypes.c_uint64), ("action", ctypes.c_char_p)]


class Finding(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("earlier", Party), ("later", Party), ("block_address", ctypes.c_uint64),
                ("block_bytes", ctypes.c_uint64), ("block_number", ctypes.c_uint64), ("missing", ctypes.c_char_p),
                ("text", ctypes.c_char_p)]


class Simulator:
    """24 simulated devices in place of the driver. They run only in `finish` and in calls that wait."""

    def __init__(self):
        self.driver = ctypes.CDLL(os.environ["GPUMEM_SIMULATOR_LIBRARY"], mode=ctypes.RTLD_GLOBAL)
        pointer, number = ctypes.c_void_p, ctypes.c_uint64
        for name, result, arguments in (
                ("gpumem_simulator_work", ctypes.c_int, [pointer, pointer, ctypes.c_size_t, number] + [pointer] * 3),
                ("gpumem_simulator_new_owner", number, []),
                ("gpumem_simulator_allocated", None, [number, pointer, ctypes.c_int, pointer, ctypes.c_size_t]),
                ("gpumem_simulator_freed", None, [number, pointer, ctypes.c_int, pointer, ctypes.c_size_t]),
                ("gpumem_simulator_use_recorded", None, [pointer, pointer]),
                ("gpumem_simulator_run_until_idle", number, []),
                ("cuCtxSetCurrent", ctypes.c_int, [pointer]),
                ("cuStreamWaitEvent", ctypes.c_int, [pointer, pointer, ctypes.c_uint]),
                ("cuEventRecord", ctypes.c_int, [pointer, pointer])):
            getattr(self.driver, name).restype, getattr(self.driver, name).argtypes = result, arguments
        options = Options(devices=24, capacity=1 << 33, seed=1, manual=1, stall_timeout_ms=10000, virtual_memory=1,
                          concurrent_managed_access=1)
        self.require(self.driver.gpumem_simulator_reset(ctypes.byref(options)))
        self.owner = self.driver.gpumem_simulator_new_owner()

    @staticmethod
    def require(result):
        assert result == 0, result

    def make_current(self, device):
        context = ctypes.c_void_p()
        self.require(self.driver.cuInit(0))
        self.require(self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self.require(self.driver.cuCtxSetCurrent(context))

    def stream(self, device=0):
        stream = ctypes.c_void_p()
        self.make_current(device)
        self.require(self.driver.cuStreamCreate(ctypes.byref(stream), 1))
        return stream.value

    def order(self, earlier, later):
        event = ctypes.c_void_p()
        self.require(self.driver.cuEventCreate(ctypes.byref(event), 2))
        self.require(self.driver.cuEventRecord(event, earlier))
        self.require(self.driver.cuStreamWaitEvent(later, event, 0))

    def write(self, stream, block, size):
        touch = Touch(block, size, 1)
        self.require(self.driver.gpumem_simulator_work(stream, ctypes.byref(touch), 1, 1000, None, None, None))

    def finish(self):
        """Runs the device until no work is left; returns its findings as text."""
        found = []
        visit = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Finding))
        if self.driver.gpumem_simulator_run_until_idle() != 0:
            found.append("device work was left waiting")
        self.driver.gpumem_simulator_visit_findings(visit(lambda _, f: found.append(f.contents.text.decode())), None, 1)
        return found


def alone(test):
    """Runs the test in a process of its own, on the simulated device, which must have no findings."""

    @functools.wraps(test)
    def run(self):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            text = ""
            try:
                self.simulator = Simulator()
                self.library = gpumem_torch.library()
                test(self)
                self.assertEqual(self.simulator.finish(), [])
            except BaseException:
                text = traceback.format_exc()
            os.write(writer, text.encode()[:60000])
            os._exit(bool(text))
        os.close(writer)
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != 0:
            self.fail(text or f"the test's process ended with {status}")

    return run
