// simulation: begins a new test in the same process, and ends the streams of threads that have ended.
// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>

#include <string>
#include <utility>

#include "simulation.hpp"

namespace simulated {

namespace {

constexpr std::uint64_t first_part = 2; // the resets until load() has returned: its own, and that of the constructor

/// Runs at the end of a thread, after the destructors of its thread-local objects, which may still use its streams.
void end_of_thread(void*) {
  locked const lock(simulation_mutex);
  the_simulation().end_thread(this_host_thread().number);
}

} // namespace

/// The values of this key need no meaning: pthread calls end_of_thread() for each thread that has set one. If a later
/// destructor uses the stream again, it sets the value again, and pthread calls the function again.
void simulation::call_at_end_of_this_thread() {
  static auto const key = [] {
    pthread_key_t made{};
    ::pthread_key_create(&made, end_of_thread);
    return made;
  }();
  ::pthread_setspecific(key, this);
}

void simulation::end_thread(std::uint64_t number) {
  for (auto const& home : primaries) {
    auto const found = home->per_thread.find(number);
    if (found == home->per_thread.end()) continue;
    stream_ptr const ended = std::move(found->second);
    home->per_thread.erase(found);
    ended->alive = false;
    if (ended->queue.empty()) retire(ended);
  }
}

/// Objects that the program holds stay: the library keeps streams, events and memory until the process ends.
bool simulation::reset(gpumem_simulator_options const& options, gpumem_simulator_details const& details) {
  if (executing_ || !blocked_.empty()) return false;
  options_ = options;
  strict_pool_destroy_ = details.strict_pool_destroy != 0;
  wrong_seed_.reset();
  vain_ = {};
  findings.end_part();
  ++resets_;
  bool const named = details.name != nullptr && *details.name != '\0';
  findings.name(named ? details.name : resets_ > first_part ? "part " + std::to_string(resets_ - first_part + 1) : "");
  faults.clear();
  drop_captures();
  drop_work();
  see_all_complete();
  pools.after_wait(*this, [](position const&) { return true; });
  if (details.keep_objects == 0) clear_objects();
  streams.restart();
  events.restart();
  graphs.restart();
  nodes.restart();
  executables.restart();
  modules.restart();
  order.check_all_memory(options.pageable_memory != 0);
  calls.clear();
  operations_run = streams_made = implicit_waits = 0;
  chance_ = random_source(options.seed);
  eagerness_ = calls_at_this_pace_ = 0;
  allocations.configure(options.devices, options.capacity);
  mappings.set_most(details.addresses);
  while (std::cmp_less(primaries.size(), options.devices)) {
    primaries.push_back(std::make_unique<context>());
    primaries.back()->device = static_cast<int>(primaries.size()) - 1;
  }
  return true;
}

void simulation::forget_streams(context& home) {
  home.streams.clear();
  home.per_thread.clear();
  home.legacy.reset();
  home.ended_order = {};
  home.ended = {};
  home.peers.clear();
}

/// Begins as a new process would, but for the contexts, which stay retained.
void simulation::clear_objects() {
  for (auto const& home : primaries) forget_streams(*home);
  retired_.clear();
  pools.clear();
  advice.clear();
  streams.clear();
  events.clear();
  graphs.clear();
  nodes.clear();
  executables.clear();
  modules.clear();
  order.clear();
  mappings.clear();
  physicals.clear();
  allocations.clear();
  free_components_.clear();
  components_ = 1;
  host = {};
  host_time = events_made = captures_made = 0;
  for (auto const& home : primaries)
    if (home->active) legacy_of(*home);
}

void simulation::reseed(std::uint64_t seed) {
  while (step()) {}
  see_all_complete();
  chance_ = random_source(seed);
  eagerness_ = calls_at_this_pace_ = 0;
}

void simulation::see_all_complete() {
  for (auto const& home : primaries) {
    for (stream_ptr const& stream : home->streams)
      if (stream->queue.empty()) host.join(stream->order);
    host.join(home->ended);
  }
}

/// Ends all work that has not run, without running it. It counts as complete.
void simulation::drop_work() {
  events.visit([](event& each) {
    each.next_never_completes = false;
    if (each.last) each.last->never_completes = false;
  });
  for (stream_ptr const& stream : std::exchange(active_, {})) {
    stream->queue.clear();
    if (!stream->alive) retire(stream);
  }
  ++progress_;
  changed_.notify_all();
}

void simulation::drop_captures() {
  events.visit([](event& each) { each.captured.reset(); });
  for (auto const& open : std::exchange(captures, {})) {
    for (auto const& member : open->members) member.stream->capturing.reset();
    forget_nodes(*open->made);
    graphs.erase(open->handle);
  }
}

} // namespace simulated
