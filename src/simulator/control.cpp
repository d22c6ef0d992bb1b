// The C control interface, which the client library calls.
// SPDX-License-Identifier: Apache-2.0
#include "control.h"

#include <memory>
#include <string>
#include <utility>

#include "simulation.hpp"

using namespace simulated;

namespace {

/// Returns whether the calling thread runs a function that a stream runs as its work, such as a host function. If so,
/// reports the call. Such a function must not allocate, free or enqueue, just as it must not call the driver.
bool refused_in_function(simulation& device, char const* call) {
  if (!this_host_thread().in_function) return false;
  device.report_finding(finding_kind::call_in_host_function,
                        std::string(call) + " by a function that runs as device work");
  return true;
}

/// Sets `actor` to a new point of the stream, or of the host if `by_host` is not 0. The access that the caller is about
/// to check happens at this point. Returns false if the stream does not exist.
bool actor_of(simulation& device, void* stream, int by_host, char const* action, actor& actor) {
  if (by_host != 0) {
    actor = device.host_point(action);
    return true;
  }
  CUresult error;
  stream_ptr const on = device.resolve(static_cast<CUstream>(stream), error);
  if (on) actor = device.point(on, action);
  return on != nullptr;
}

gpumem_simulator_party outside(party const& side) { return {side.stream, side.operation, side.action}; }

/// Owns the context of a work function; calls `drop` on it when the work is destroyed.
struct held_context {
  void (*run)(void*);
  void (*drop)(void*);
  void* context;
  held_context(void (*r)(void*), void (*d)(void*), void* c) : run(r), drop(d), context(c) {}
  held_context(held_context const&) = delete;
  held_context& operator=(held_context const&) = delete;
  ~held_context() {
    if (drop != nullptr) drop(context);
  }
};

} // namespace

int gpumem_simulator_interface(void) { return GPUMEM_SIMULATOR_INTERFACE; }

int gpumem_simulator_reset(gpumem_simulator_options const* options) {
  return gpumem_simulator_reset_with(options, &simulation::default_details);
}

int gpumem_simulator_reset_with(gpumem_simulator_options const* options, gpumem_simulator_details const* details) {
  locked const lock(simulation_mutex);
  simulation& device = the_simulation();
  return device.reset(*options, *details) ? 0 : 1;
}

uint64_t gpumem_simulator_resets(void) {
  locked const lock(simulation_mutex);
  return the_simulation().resets();
}

void gpumem_simulator_seed(uint64_t seed) {
  locked const lock(simulation_mutex);
  simulation& device = the_simulation();
  device.reseed(seed);
}

uint64_t gpumem_simulator_step(uint64_t steps) {
  locked const lock(simulation_mutex);
  simulation& device = the_simulation();
  uint64_t run = 0;
  while (run < steps && device.step()) ++run;
  return run;
}

uint64_t gpumem_simulator_run_until_idle(void) {
  locked const lock(simulation_mutex);
  simulation& device = the_simulation();
  return device.run_until_idle();
}

void gpumem_simulator_fail_allocation(uint64_t nth) {
  locked const lock(simulation_mutex);
  simulation& device = the_simulation();
  device.faults.fail_allocation(nth);
}

void gpumem_simulator_fail_call(char const* name, uint64_t nth, int result) {
  locked const lock(simulation_mutex);
  simulation& device = the_simulation();
  device.faults.fail_call(name, nth, static_cast<CUresult>(result));
}

void gpumem_simulator_sticky_error(int result) {
  locked const lock(simulation_mutex);
  simulation& device = the_simulation();
  device.faults.stick(static_cast<CUresult>(result));
}

int gpumem_simulator_never_complete(void* handle) {
  locked const lock(simulation_mutex);
  simulation& device = the_simulation();
  CUresult error;
  auto const found = device.resolve(static_cast<CUevent>(handle), error);
  if (!found) return error;
  if (found->last && !found->last->done())
    found->last->never_completes = true;
  else
    found->next_never_completes = true;
  return CUDA_SUCCESS;
}

int gpumem_simulator_work(void* stream, gpumem_simulator_touch const* touches, size_t count, uint64_t nanoseconds,
                          void (*run)(void*), void (*drop)(void*), void* context) {
  auto callback = std::make_shared<held_context>(run, drop, context);
  on_call.run();
  locked const lock(simulation_mutex);
  simulation& device = the_simulation();
  if (refused_in_function(device, "work was enqueued")) return CUDA_ERROR_NOT_PERMITTED;
  if (device.faults.sticky() != CUDA_SUCCESS) return device.faults.sticky();
  device.advance();
  CUresult error;
  stream_ptr const on = device.resolve(static_cast<CUstream>(stream), error);
  if (!on) return error;
  operation work;
  work.duration = nanoseconds;
  for (size_t i = 0; i < count; ++i)
    work.touches.push_back(
        {reinterpret_cast<std::uint64_t>(touches[i].pointer), touches[i].bytes, touches[i].write != 0});
  if (run != nullptr) work.run = [callback = std::move(callback)] { callback->run(callback->context); };
  return device.enqueue(on, std::move(work));
}

uint64_t gpumem_simulator_new_owner(void) {
  static std::atomic<uint64_t> made{0};
  return ++made;
}

void gpumem_simulator_allocated(uint64_t owner, void* stream, int by_host, void* pointer, size_t bytes) {
  locked const lock(simulation_mutex);
  simulation& device = the_simulation();
  if (refused_in_function(device, "allocation")) return;
  actor actor;
  if (!actor_of(device, stream, by_host, "allocation", actor)) return;
  device.order.granted(actor, owner, reinterpret_cast<std::uint64_t>(pointer), bytes);
}

void gpumem_simulator_freed(uint64_t owner, void* stream, int by_host, void* pointer, size_t bytes) {
  locked const lock(simulation_mutex);
  simulation& device = the_simulation();
  if (refused_in_function(device, "free")) return;
  actor actor;
  if (!actor_of(device, stream, by_host, "free", actor)) return;
  device.order.returned(actor, owner, reinterpret_cast<std::uint64_t>(pointer), bytes);
}

void gpumem_simulator_use_recorded(void* stream, void* pointer) {
  locked const lock(simulation_mutex);
  simulation& device = the_simulation();
  actor actor;
  if (!actor_of(device, stream, 0, "declared use", actor)) return;
  device.order.use_declared(actor, reinterpret_cast<std::uint64_t>(pointer));
}

void gpumem_simulator_own_work(int begins) { this_host_thread().own_work = begins != 0; }

void gpumem_simulator_on_call(void (*hook)(void*), void* context) {
  on_call.context.store(context, std::memory_order_relaxed);
  on_call.function.store(hook, std::memory_order_release);
}

void gpumem_simulator_on_block(bool (*hook)(void*), void* context) {
  locked const lock(simulation_mutex);
  simulation& device = the_simulation();
  device.on_block = hook;
  device.on_block_context = context;
}

void gpumem_simulator_read_statistics(gpumem_simulator_statistics* statistics) {
  locked const lock(simulation_mutex);
  simulation& device = the_simulation();
  device.pools.collect(device);
  *statistics = {};
  statistics->operations_run = device.operations_run;
  statistics->operations_pending = device.pending();
  statistics->streams_created = device.streams_made;
  for (auto const& home : device.primaries) statistics->streams_alive += home->streams.size();
  statistics->stream_handles_recycled = device.streams.recycled();
  statistics->event_handles_recycled = device.events.recycled();
  statistics->implicit_synchronizations = device.implicit_waits;
  statistics->bytes_reserved = device.mappings.reserved();
  statistics->mappings = device.mappings.mappings();
  for (int i = 0; i < device.options().devices; ++i) statistics->bytes_allocated += device.allocations.used(i);
}

void gpumem_simulator_visit_calls(void (*visit)(void*, char const* name, uint64_t count), void* context) {
  locked const lock(simulation_mutex);
  simulation& device = the_simulation();
  for (auto const& [name, count] : device.calls) visit(context, std::string(name).c_str(), count);
}

void gpumem_simulator_clear_calls(void) {
  locked const lock(simulation_mutex);
  simulation& device = the_simulation();
  device.calls.clear();
}

void gpumem_simulator_visit_findings(void (*visit)(void*, gpumem_simulator_finding const*), void* context, int take) {
  locked const lock(simulation_mutex);
  simulation& device = the_simulation();
  for (finding const& found : device.findings.findings()) {
    gpumem_simulator_finding const shown{static_cast<int>(found.kind), outside(found.earlier), outside(found.later),
                                         found.block.address,          found.block.bytes,      found.block.number,
                                         found.missing.c_str(),        found.text.c_str()};
    visit(context, &shown);
  }
  if (take != 0) device.findings.clear();
}
