// The C control interface of the simulated device: its functions beside those of the driver.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface; it increases with each change. A client library refuses a simulator of another
 * version. */
#define GPUMEM_SIMULATOR_INTERFACE 8

/* When device work runs. AUTOMATIC: a random part of it in each driver call. MANUAL: only in step(), run_until_idle()
 * and calls that wait. IMMEDIATE: in each driver call all work that can run. */
enum gpumem_simulator_stepping { GPUMEM_STEPPING_AUTOMATIC, GPUMEM_STEPPING_MANUAL, GPUMEM_STEPPING_IMMEDIATE };

struct gpumem_simulator_options {
  int devices;
  size_t capacity; /* bytes of each device */
  uint64_t seed;
  int stepping;                  /* a gpumem_simulator_stepping */
  uint64_t stall_timeout_ms;     /* a host call that waits this long without progress is a deadlock */
  int virtual_memory;            /* 0: the devices have no virtual memory */
  int pageable_memory;           /* 0: the devices cannot access memory of the host's own allocators */
  int concurrent_managed_access; /* 0: managed memory cannot be prefetched */
};

/* More options. They are no fields of gpumem_simulator_options, which programs pass without stating its size. */
struct gpumem_simulator_details {
  int strict_pool_destroy; /* 0: a driver pool may be destroyed once its frees are complete */
  int keep_objects;        /* 0: a reset destroys the streams, events, memory, pools and graphs */
  char const* name;        /* names untaken findings at the end of the process; null or empty: a number */
  size_t addresses;        /* bytes of addresses that may be reserved at a time; 0: no bound */
};

struct gpumem_simulator_touch {
  void const* pointer;
  size_t bytes;
  int write;
};

/* One side of a finding (an error of the program that the device has detected). Stream 0 is the host. */
struct gpumem_simulator_party {
  uint64_t stream;
  uint64_t operation;
  char const* action;
};

struct gpumem_simulator_finding {
  int kind;
  struct gpumem_simulator_party earlier;
  struct gpumem_simulator_party later;
  uint64_t block_address;
  uint64_t block_bytes;
  uint64_t block_number;
  char const* missing;
  char const* text;
};

struct gpumem_simulator_statistics {
  uint64_t operations_run;
  uint64_t operations_pending;
  uint64_t streams_created;
  uint64_t streams_alive;
  uint64_t stream_handles_recycled;
  uint64_t event_handles_recycled;
  uint64_t implicit_synchronizations;
  uint64_t bytes_allocated; /* on all devices, now */
  uint64_t bytes_reserved;  /* reserved addresses of virtual memory, now */
  uint64_t mappings;        /* number of mappings, now */
};

int gpumem_simulator_interface(void);
int gpumem_simulator_reset(struct gpumem_simulator_options const* options); /* details: 0, 1, null */
int gpumem_simulator_reset_with(struct gpumem_simulator_options const* options,
                                struct gpumem_simulator_details const* details);
uint64_t gpumem_simulator_resets(void); /* how often it was reset */
void gpumem_simulator_seed(uint64_t seed);
uint64_t gpumem_simulator_step(uint64_t steps);
uint64_t gpumem_simulator_run_until_idle(void);

void gpumem_simulator_fail_allocation(uint64_t nth);
void gpumem_simulator_fail_call(char const* name, uint64_t nth, int result);
void gpumem_simulator_sticky_error(int result);
int gpumem_simulator_never_complete(void* event);

int gpumem_simulator_work(void* stream, struct gpumem_simulator_touch const* touches, size_t count,
                          uint64_t nanoseconds, void (*run)(void*), void (*drop)(void*), void* context);

uint64_t gpumem_simulator_new_owner(void);
void gpumem_simulator_allocated(uint64_t owner, void* stream, int by_host, void* pointer, size_t bytes);
void gpumem_simulator_freed(uint64_t owner, void* stream, int by_host, void* pointer, size_t bytes);
void gpumem_simulator_use_recorded(void* stream, void* pointer);
/* Between own_work(1) and own_work(0), work that the calling thread enqueues counts as a resource's own work on its
 * memory. Such work may touch bytes that the resource has not granted as a block. */
void gpumem_simulator_own_work(int begins);

void gpumem_simulator_on_call(void (*hook)(void*), void* context);
void gpumem_simulator_on_block(bool (*hook)(void*), void* context);

void gpumem_simulator_read_statistics(struct gpumem_simulator_statistics* statistics);
void gpumem_simulator_visit_calls(void (*visit)(void*, char const* name, uint64_t count), void* context);
void gpumem_simulator_clear_calls(void);
void gpumem_simulator_visit_findings(void (*visit)(void*, struct gpumem_simulator_finding const*), void* context,
                                     int take);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
