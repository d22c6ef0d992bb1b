// The simulated device for C tests: looks up its functions.
// SPDX-License-Identifier: Apache-2.0
#include "simulated.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
  __typeof__(&gpumem_simulator_reset_with) reset;
  __typeof__(&gpumem_simulator_run_until_idle) run_until_idle;
  __typeof__(&gpumem_simulator_fail_allocation) fail_allocation;
  __typeof__(&gpumem_simulator_work) work;
  __typeof__(&gpumem_simulator_new_owner) new_owner;
  __typeof__(&gpumem_simulator_allocated) allocated;
  __typeof__(&gpumem_simulator_freed) freed;
  __typeof__(&gpumem_simulator_use_recorded) use_recorded;
  __typeof__(&gpumem_simulator_read_statistics) read_statistics;
  __typeof__(&gpumem_simulator_visit_findings) visit_findings;
  __typeof__(&gpumem_simulator_visit_calls) visit_calls;
  int (*init)(unsigned);
  int (*retain_context)(void**, int);
  int (*set_context)(void*);
  int (*create_stream)(void**, unsigned);
  int (*synchronize)(void*);
  int (*create_event)(void**, unsigned);
  int (*record_event)(void*, void*);
  int (*wait_event)(void*, void*, unsigned);
  int (*destroy_event)(void*);
  int (*begin_capture)(void*, int);
  int (*end_capture)(void*, void**);
  int (*destroy_graph)(void*);
  int (*instantiate)(void**, void*, unsigned long long);
  int (*launch)(void*, void*);
  int (*destroy_executable)(void*);
} driver;

static uint64_t owner;

// Copies the pointer, because ISO C has no conversion from dlsym's result to a function pointer.
static void take(void* place, char const* name) {
  void* const function = dlsym(dlopen(NULL, RTLD_NOW), name);
  if (!function) {
    fprintf(stderr, "%s is missing: preload libgpumem_simulator_driver.so\n", name);
    exit(2);
  }
  memcpy(place, &function, sizeof function);
}

static void require(int result, char const* what) {
  if (result == 0) return;
  fprintf(stderr, "%s returned %d\n", what, result);
  exit(2);
}

static void take_all(void) {
  take(&driver.reset, "gpumem_simulator_reset_with");
  take(&driver.run_until_idle, "gpumem_simulator_run_until_idle");
  take(&driver.fail_allocation, "gpumem_simulator_fail_allocation");
  take(&driver.work, "gpumem_simulator_work");
  take(&driver.new_owner, "gpumem_simulator_new_owner");
  take(&driver.allocated, "gpumem_simulator_allocated");
  take(&driver.freed, "gpumem_simulator_freed");
  take(&driver.use_recorded, "gpumem_simulator_use_recorded");
  take(&driver.read_statistics, "gpumem_simulator_read_statistics");
  take(&driver.visit_findings, "gpumem_simulator_visit_findings");
  take(&driver.visit_calls, "gpumem_simulator_visit_calls");
  take(&driver.init, "cuInit");
  take(&driver.retain_context, "cuDevicePrimaryCtxRetain");
  take(&driver.set_context, "cuCtxSetCurrent");
  take(&driver.create_stream, "cuStreamCreate");
  take(&driver.synchronize, "cuStreamSynchronize");
  take(&driver.create_event, "cuEventCreate");
  take(&driver.record_event, "cuEventRecord");
  take(&driver.wait_event, "cuStreamWaitEvent");
  take(&driver.destroy_event, "cuEventDestroy_v2");
  take(&driver.begin_capture, "cuStreamBeginCapture_v2");
  take(&driver.end_capture, "cuStreamEndCapture");
  take(&driver.destroy_graph, "cuGraphDestroy");
  take(&driver.instantiate, "cuGraphInstantiateWithFlags");
  take(&driver.launch, "cuGraphLaunch");
  take(&driver.destroy_executable, "cuGraphExecDestroy");
}

static void reset(int devices, int stepping, size_t addresses) {
  struct gpumem_simulator_options const options = {devices, (size_t)8 << 30, 1, stepping, 10000, 1, 0, 1};
  struct gpumem_simulator_details const details = {0, 0, NULL, addresses};
  take_all();
  require(driver.reset(&options, &details), "the reset");
  require(driver.init(0), "cuInit");
  owner = driver.new_owner();
}

void simulated_reset(int devices) { reset(devices, GPUMEM_STEPPING_MANUAL, 0); }
void simulated_reset_running(int devices) { reset(devices, GPUMEM_STEPPING_AUTOMATIC, 0); }
void simulated_reset_without_addresses(int devices) { reset(devices, GPUMEM_STEPPING_MANUAL, 1); }

void simulated_write(void* stream, void* pointer, size_t bytes) {
  struct gpumem_simulator_touch const touch = {pointer, bytes, 1};
  require(driver.work(stream, &touch, 1, 1000, NULL, NULL, NULL), "work");
}

void simulated_allocated(void* stream, void* pointer, size_t bytes) {
  driver.allocated(owner, stream, 0, pointer, bytes);
}

void simulated_freed(void* stream, void* pointer, size_t bytes) { driver.freed(owner, stream, 0, pointer, bytes); }

void simulated_use_recorded(void* stream, void* pointer) { driver.use_recorded(stream, pointer); }

static void count_finding(void* context, struct gpumem_simulator_finding const* found) {
  ++*(int*)context;
  fprintf(stderr, "finding: %s\n", found->text);
}

void simulated_run(void) { driver.run_until_idle(); }

int simulated_finish(void) {
  int wrong = driver.run_until_idle() != 0;
  driver.visit_findings(count_finding, &wrong, 1);
  return wrong;
}

void simulated_fail_allocation(unsigned long long nth) { driver.fail_allocation(nth); }

unsigned long long simulated_device_bytes(void) {
  struct gpumem_simulator_statistics statistics;
  driver.read_statistics(&statistics);
  return statistics.bytes_allocated;
}

void simulated_make_current(int device) {
  void* context = NULL;
  require(driver.retain_context(&context, device), "cuDevicePrimaryCtxRetain");
  require(driver.set_context(context), "cuCtxSetCurrent");
}

void* simulated_stream(int device) {
  void* stream = NULL;
  simulated_make_current(device);
  require(driver.create_stream(&stream, 1), "cuStreamCreate");
  return stream;
}

void simulated_synchronize(void* stream) { require(driver.synchronize(stream), "cuStreamSynchronize"); }

void simulated_order(void* earlier, void* later) {
  void* event = NULL;
  require(driver.create_event(&event, 2), "cuEventCreate");
  require(driver.record_event(event, earlier), "cuEventRecord");
  require(driver.wait_event(later, event, 0), "cuStreamWaitEvent");
  require(driver.destroy_event(event), "cuEventDestroy");
}

void simulated_begin_capture(void* stream) { require(driver.begin_capture(stream, 1), "cuStreamBeginCapture"); }

void simulated_end_capture(void* stream) {
  void* graph = NULL;
  require(driver.end_capture(stream, &graph), "cuStreamEndCapture");
  require(driver.destroy_graph(graph), "cuGraphDestroy");
}

void* simulated_captured(void* stream) {
  void *graph = NULL, *executable = NULL;
  require(driver.end_capture(stream, &graph), "cuStreamEndCapture");
  require(driver.instantiate(&executable, graph, 0), "cuGraphInstantiate");
  require(driver.destroy_graph(graph), "cuGraphDestroy");
  return executable;
}

void simulated_launch(void* graph, void* stream) { require(driver.launch(graph, stream), "cuGraphLaunch"); }

void simulated_destroy_graph(void* graph) { require(driver.destroy_executable(graph), "cuGraphExecDestroy"); }

struct call_count {
  char const* name;
  unsigned long long calls;
};

static void add_calls(void* context, char const* name, uint64_t count) {
  struct call_count* const sum = context;
  if (!sum->name || strcmp(name, sum->name) == 0) sum->calls += count;
}

unsigned long long simulated_calls(char const* name) {
  struct call_count sum = {name, 0};
  driver.visit_calls(add_calls, &sum);
  return sum.calls;
}
