// simulation: checks whether a call is allowed; makes and destroys streams and contexts; captures that a call
// invalidates.
// SPDX-License-Identifier: Apache-2.0
#include "simulation.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "real_driver.hpp"

namespace simulated {

namespace {

constexpr gpumem_simulator_options default_options{1, std::size_t{80} << 30, 1, 0, 10000, 1, 0, 1};

bool read_number(std::string_view const text, std::uint64_t& number) {
  auto const [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failed == std::errc{} && end == text.data() + text.size();
}

std::atomic<bool> forked{false};
simulation* made = nullptr;

/// Runs at the exit of the process. Prints the findings that the program has not taken; if there are any, turns an exit
/// status of success into EXIT_FAILURE. In glibc such a handler may call exit(): the other handlers still run, and the
/// last status counts.
void end_process(int status, void*) {
  if (in_forked_child() || !made->findings.print_untaken() || status != EXIT_SUCCESS) return;
  std::exit(EXIT_FAILURE);
}

} // namespace

gpumem::support::guarded_mutex simulation_mutex;
call_hook on_call;

bool in_forked_child() noexcept { return forked.load(std::memory_order_relaxed); }

simulation& the_simulation() {
  static simulation* const one = [] {
    made = new simulation;
    ::on_exit(end_process, nullptr);
    ::pthread_atfork(nullptr, nullptr, [] { forked = made->initialised(); });
    return made;
  }();
  return *one;
}

host_thread& this_host_thread() {
  static std::atomic<std::uint64_t> made{0};
  thread_local host_thread self{.number = ++made, .contexts = {}};
  return self;
}

simulation::simulation() {
  gpumem_simulator_options options = default_options;
  char const* const seed = std::getenv("GPUMEM_SIMULATOR_SEED");
  bool const understood = seed == nullptr || read_number(seed, options.seed);
  reset(options);
  if (!understood) wrong_seed_ = seed;
}

CUresult simulation::initialise() {
  if (initialised_) return CUDA_SUCCESS;
  if (std::string const real = real_driver_in_use(); !real.empty()) {
    std::fprintf(stderr, "gpumem simulator: refuses to start beside a real driver (%s)\n", real.c_str());
    return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
  }
  if (wrong_seed_) {
    std::fprintf(stderr, "gpumem simulator: GPUMEM_SIMULATOR_SEED is '%s', but must be a number from 0 to 2^64 - 1\n",
                 wrong_seed_->c_str());
    return CUDA_ERROR_INVALID_VALUE;
  }
  initialised_ = true;
  return CUDA_SUCCESS;
}

CUresult simulation::admit(char const* name, unsigned rules) {
  ++calls[name];
  if (this_host_thread().in_function) {
    report_finding(finding_kind::call_in_host_function,
                   std::string(name) + " was called by a function that runs as device work");
    return CUDA_ERROR_NOT_PERMITTED;
  }
  if (CUresult const fault = faults.at_call(name); fault != CUDA_SUCCESS) return fault;
  if ((rules & before_init) != 0) return CUDA_SUCCESS;
  if (!initialised_) return CUDA_ERROR_NOT_INITIALIZED;
  if (faults.sticky() != CUDA_SUCCESS) return faults.sticky();
  if ((rules & needs_context) != 0) {
    context const* home = current();
    if (home == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (!home->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  if ((rules & unsafe_in_capture) != 0 && forbidden_by_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return CUDA_SUCCESS;
}

void simulation::report_finding(finding_kind kind, std::string const& text, party later) {
  findings.add({kind, {}, later, {}, {}, text});
}

/// Chooses the component that counts the operations of the new stream in vector clocks. Reuses the component
/// of an ended stream if the host has seen all work of that stream complete.
void simulation::take_component(stream& stream) {
  std::erase_if(retired_, [&](stream_ptr const& gone) {
    if (!host.covers(gone->component, gone->number)) return false;
    free_components_.push_back({gone->component, gone->number});
    return true;
  });
  if (free_components_.empty()) {
    stream.component = components_++;
    return;
  }
  stream.component = free_components_.back().component;
  stream.base = stream.number = free_components_.back().counted;
  free_components_.pop_back();
}

stream_ptr simulation::make_stream(context& home, stream_kind kind, unsigned flags, int priority) {
  auto new_stream = std::make_shared<stream>();
  new_stream->id = ++stream_ids_;
  new_stream->home = &home;
  new_stream->kind = kind;
  new_stream->flags = flags;
  new_stream->priority = priority;
  take_component(*new_stream);
  home.streams.push_back(new_stream);
  if (kind == stream_kind::own) {
    new_stream->handle = static_cast<CUstream>(streams.insert(new_stream));
    ++streams_made;
  }
  return new_stream;
}

void simulation::retire(stream_ptr const& stream) {
  std::erase(stream->home->streams, stream);
  if (stream->blocking()) stream->home->ended_order.join(stream->order);
  stream->home->ended.join(stream->order);
  retired_.push_back(stream);
}

stream_ptr simulation::legacy_of(context& home) {
  if (!home.legacy) home.legacy = make_stream(home, stream_kind::legacy, 0, 0);
  return home.legacy;
}

stream_ptr simulation::per_thread_of(context& home) {
  stream_ptr& stream = home.per_thread[this_host_thread().number];
  if (!stream) {
    stream = make_stream(home, stream_kind::per_thread, 0, 0);
    call_at_end_of_this_thread();
  }
  return stream;
}

stream_ptr simulation::resolve(CUstream handle, CUresult& error) {
  stream_ptr found = look_up(handle, error);
  if (found) found->clear_returned_lists();
  return found;
}

stream_ptr simulation::look_up(CUstream handle, CUresult& error) {
  error = CUDA_SUCCESS;
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    context* home = current();
    if (home != nullptr && home->active)
      return handle == CU_STREAM_PER_THREAD ? per_thread_of(*home) : legacy_of(*home);
    error = home == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return nullptr;
  }
  if (stream_ptr const* found = streams.find(handle)) return *found;
  if (streams.state(handle) == handle_state::destroyed)
    report_finding(finding_kind::dead_stream, "use of a stream handle after its stream was destroyed");
  error = CUDA_ERROR_INVALID_HANDLE;
  return nullptr;
}

std::shared_ptr<event> simulation::resolve(CUevent handle, CUresult& error) {
  error = CUDA_SUCCESS;
  if (auto const* found = events.find(handle)) return *found;
  if (events.state(handle) == handle_state::destroyed)
    report_finding(finding_kind::dead_event, "use of an event handle after its event was destroyed");
  error = CUDA_ERROR_INVALID_HANDLE;
  return nullptr;
}

context* simulation::current() const {
  auto const& stack = this_host_thread().contexts;
  return stack.empty() ? nullptr : stack.back();
}

void simulation::activate(context& home) {
  if (!home.active) home.id = ++context_ids_;
  home.active = true;
  legacy_of(home);
}

/// Destroys the streams, events and memory of the context. Work that has not run is dropped.
void simulation::destroy(context& home) {
  std::vector<void const*> dead;
  events.visit([&](event const& e) {
    if (e.home != &home) return;
    dead.push_back(e.handle);
    if (e.last) e.last->never_completes = false; // ends waits for this record
  });
  for (void const* handle : dead) events.end(handle);
  for (stream_ptr const& stream : home.streams) {
    stream->queue.clear();
    if (stream->handle != nullptr && stream->alive) streams.end(stream->handle);
    stream->alive = false;
    host.join(stream->order);
    retired_.push_back(stream);
  }
  std::erase_if(active_, [&](stream_ptr const& stream) { return stream->home == &home; });
  std::erase_if(captures, [&](auto const& open) {
    if (open->members.front().stream->home != &home) return false;
    forget_nodes(*open->made);
    return true;
  });
  forget_streams(home);
  pools.drop(home);
  actor const actor = host_point("destruction of the context");
  for (std::uint64_t const address : allocations.of(&home)) {
    order.removed(actor, address, allocations.find(address)->granted, false);
    allocations.free(address);
  }
  home.active = false;
  home.flags = 0;
  ++progress_;
  changed_.notify_all();
}

bool simulation::forbidden_by_capture() {
  host_thread const& self = this_host_thread();
  if (self.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  bool found = false;
  for (auto const& open : captures) {
    bool const own_access = open->begun_by == self.number && open->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool const global =
        open->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && self.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own_access && !global) continue;
    invalidate(*open);
    found = true;
  }
  return found;
}

// As driver 580 does, invalidates the captures whatever their capture mode and that of the thread.
bool simulation::breaks_captures_of(context const& home) {
  bool found = false;
  for (auto const& open : captures) {
    bool const here = std::any_of(open->members.begin(), open->members.end(),
                                  [&](auto const& member) { return member.stream->home == &home; });
    if (!here) continue;
    invalidate(*open);
    found = true;
  }
  return found;
}

CUresult simulation::add_to_capture(stream_ptr const& stream, operation&& work) {
  capture& open = *stream->capturing;
  if (open.invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (auto const found = open.clash_of(stream, work)) {
    party const later{stream->id, open.enter(stream).nodes + 1, work.action};
    block_name const bytes{0, found->bytes.address, found->bytes.bytes};
    findings.add({finding_kind::unordered_access, found->earlier, later, bytes,
                  "stream " + std::to_string(stream->id) + " is not ordered after " + describe(found->earlier),
                  "unordered access in a captured graph to " + describe(bytes) + ": " + describe(later) +
                      " is not ordered after " + describe(found->earlier)});
  }
  open.add(stream, std::move(work), nodes);
  return CUDA_SUCCESS;
}

void simulation::forget_nodes(graph const& graph) {
  for (CUgraphNode const each : graph.handles) nodes.erase(each);
}

bool simulation::legacy_breaks_capture(stream const& stream) {
  if (stream.kind != stream_kind::legacy) return false;
  bool found = false;
  for (auto const& open : captures)
    for (auto const& member : open->members) {
      if (member.stream->home != stream.home || !member.stream->blocking()) continue;
      invalidate(*open);
      found = true;
    }
  return found;
}

bool simulation::legacy_meets_capture(stream const& stream) const {
  if (stream.kind != stream_kind::legacy) return false;
  return std::any_of(captures.begin(), captures.end(), [&](auto const& open) {
    return std::any_of(open->members.begin(), open->members.end(), [&](auto const& member) {
      return member.stream->home == stream.home && member.stream->blocking();
    });
  });
}

} // namespace simulated
