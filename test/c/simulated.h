// The simulated device as a C test reaches it: preloaded, and looked up by name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stddef.h>

#include "control.h"

/// Everything as new, with that many devices; the device runs only in simulated_finish and in calls that wait. First of
/// all.
void simulated_reset(int devices);

/// Runs the device until nothing is left.
void simulated_run(void);

/// Runs the device until nothing is left, and counts and prints what it found wrong.
int simulated_finish(void);

/// Work on the stream that writes the memory when the device gets to it.
void simulated_write(void* stream, void* pointer, size_t bytes);

/// What the checker has to know of a pool's calls: before a free, after an allocation.
void simulated_allocated(void* stream, void* pointer, size_t bytes);
void simulated_freed(void* stream, void* pointer, size_t bytes);
void simulated_use_recorded(void* stream, void* pointer);

/// The nth allocation from now is out of memory.
void simulated_fail_allocation(unsigned long long nth);
/// Held of the driver, on all devices.
unsigned long long simulated_device_bytes(void);

/// A stream of the device, with the device current to the calling thread.
void* simulated_stream(int device);
void simulated_make_current(int device);
/// Work given to `later` from now on waits for what `earlier` has been given.
void simulated_order(void* earlier, void* later);
void simulated_begin_capture(void* stream);
void simulated_end_capture(void* stream);
