// The simulated device for C tests: preloaded, with its functions looked up by name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stddef.h>

#include "control.h"

/// Resets everything, with that many devices. The device runs only in simulated_run, simulated_finish and in calls that
/// wait. Call it first.
void simulated_reset(int devices);
/// The same, but the device runs by itself.
void simulated_reset_running(int devices);
/// The same as the first, but the device reserves no addresses.
void simulated_reset_without_addresses(int devices);

/// Runs the device until no work is left.
void simulated_run(void);
/// Waits on the host for the work of the stream.
void simulated_synchronize(void* stream);

/// Runs the device until no work is left; prints its findings and returns their number.
int simulated_finish(void);

/// Enqueues work that writes the memory when it runs.
void simulated_write(void* stream, void* pointer, size_t bytes);

/// Tell the checker about calls of a pool: before a free, after an allocation.
void simulated_allocated(void* stream, void* pointer, size_t bytes);
void simulated_freed(void* stream, void* pointer, size_t bytes);
void simulated_use_recorded(void* stream, void* pointer);

/// Makes the nth allocation from now fail for lack of memory.
void simulated_fail_allocation(unsigned long long nth);
/// Returns the bytes allocated from the driver, on all devices.
unsigned long long simulated_device_bytes(void);
/// Returns how often the driver's function was called; NULL: all functions.
unsigned long long simulated_calls(char const* name);

/// Makes a stream of the device; the device is made current to the calling thread.
void* simulated_stream(int device);
void simulated_make_current(int device);
/// Makes work that is enqueued on `later` from now on wait for the work that `earlier` has.
void simulated_order(void* earlier, void* later);
void simulated_begin_capture(void* stream);
void simulated_end_capture(void* stream);
/// Ends the capture of the stream and returns its graph, which can be launched.
void* simulated_captured(void* stream);
void simulated_launch(void* graph, void* stream);
void simulated_destroy_graph(void* graph);
