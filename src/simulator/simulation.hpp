// The whole state of the simulated device behind one lock, and the rules by which it moves.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "capture.hpp"
#include "checker.hpp"
#include "control.h"
#include "device.hpp"
#include "driver_api.hpp"
#include "event.hpp"
#include "faults.hpp"
#include "handle_table.hpp"
#include "host_thread.hpp"
#include "memory.hpp"
#include "physical_memory.hpp"
#include "pool_table.hpp"
#include "random.hpp"
#include "report.hpp"
#include "stream.hpp"
#include "virtual_memory.hpp"

namespace simulated {

using locked = std::unique_lock<std::mutex>;

/// What an entry point asks of the state before it does its work.
enum rule : unsigned {
  plain = 0,
  before_init = 1,       // works before cuInit, and with a sticky error
  needs_context = 2,     // 201 without a current context
  unsafe_in_capture = 4, // invalidates captures that conflict
  quiet = 8,             // the device does not move
};

class simulation {
public:
  simulation();

  std::mutex mutex;

  // --- set-up
  // -------------------------------------------------------------------------------------------------------
  /// Everything as new: handles, memory, findings, counts. False while a function of device work runs.
  bool reset(const gpumem_simulator_options& options);
  /// Runs what can run, lets the host see it all, and starts the sequence of chance anew.
  void reseed(locked& lock, std::uint64_t seed);
  CUresult initialise();
  [[nodiscard]] bool initialised() const noexcept { return initialised_; }
  [[nodiscard]] const gpumem_simulator_options& options() const noexcept { return options_; }

  // --- calls
  // --------------------------------------------------------------------------------------------------------
  /// Counts a call of `name` and says whether it may go on.
  CUresult admit(const char* name, unsigned rules);
  /// Runs a random number of steps, unless the device is stepped by hand.
  void advance(locked& lock);
  void mark_call() const;

  // --- device work
  // --------------------------------------------------------------------------------------------------
  /// Puts work at the end of a stream, or into the stream's capture.
  CUresult enqueue(const stream_ptr& on, operation&& work);
  /// Runs one operation; false if none can run now.
  bool step(locked& lock);
  /// Runs all that can run, and waits for what other threads are running; how many operations are left waiting.
  std::uint64_t run_until_idle(locked& lock);
  /// Runs the device until `done`; fails when nothing can run and nobody can help.
  CUresult block_until(locked& lock, const std::string& what, const std::function<bool()>& done);
  /// Waits for a point of a stream and lets the host see what was ordered before it.
  CUresult wait_for(locked& lock, const stream_ptr& on, const char* call);
  /// Waits for all work of a context; the host learns of no order.
  CUresult wait_for_all(locked& lock, context& home, const char* call);
  /// Whether all work of a stream (of a legacy stream: of all that it stands for) is done.
  [[nodiscard]] bool idle(const stream& on) const;
  /// The clocks of a stream, or of all that a legacy stream stands for, at this point.
  [[nodiscard]] vector_clock order_now(const stream& on) const;
  [[nodiscard]] std::uint64_t pending() const;

  // --- who touches memory
  // -------------------------------------------------------------------------------------------
  /// A new point of a stream that is no device work.
  actor point(const stream_ptr& on, const char* action);
  /// The point of the stream's newest operation.
  static actor newest_point(const stream_ptr& on, const char* action);
  /// A new point of the host.
  actor host_point(const char* action);

  // --- streams, events, contexts
  // ------------------------------------------------------------------------------------
  stream_ptr make_stream(context& home, stream_kind kind, unsigned flags, int priority);
  void retire(const stream_ptr& on);
  /// The stream that a handle means on this thread, or null and `why`. A destroyed handle is a finding.
  stream_ptr resolve(CUstream handle, CUresult& why);
  std::shared_ptr<event> resolve(CUevent handle, CUresult& why);
  stream_ptr legacy_of(context& home);
  stream_ptr per_thread_of(context& home);
  [[nodiscard]] context* current() const;
  void activate(context& home);
  void destroy(context& home);
  /// The result of a wait that began while the context had this id.
  [[nodiscard]] static CUresult after_wait(const context& home, std::uint64_t id) noexcept {
    return home.active && home.id == id ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }

  // --- capture
  // ------------------------------------------------------------------------------------------------------
  void invalidate(capture& broken) const { broken.invalid = true; }
  /// Invalidates the captures that forbid an unsafe call on this thread; whether there was one.
  bool forbidden_by_capture();
  /// A call about the whole context, which invalidates the captures of all its streams; whether there was one.
  bool breaks_captures_of(const context& home);
  /// A use of the legacy stream while a blocking stream of its context captures.
  bool legacy_breaks_capture(const stream& on);
  /// Whether it would be one.
  [[nodiscard]] bool legacy_meets_capture(const stream& on) const;
  std::vector<std::shared_ptr<capture>> captures; // not ended yet
  std::uint64_t captures_made = 0;

  void find(finding_kind kind, const std::string& text, party later = {});

  report findings;
  memory allocations;
  physical_memory physicals;
  virtual_memory mappings;
  vector_clock host;
  checker order{findings, allocations, mappings, host};
  simulated::faults faults;
  pool_table pools;
  handle_table<stream> streams;
  handle_table<event> events;
  handle_table<graph> graphs;
  handle_table<graph> executables;
  handle_table<int> modules; // modules, libraries, kernels and functions: accepted, never run
  std::vector<std::unique_ptr<context>> primaries;
  std::unordered_map<std::string_view, std::uint64_t> calls;
  std::uint64_t host_time = 0; // simulated nanoseconds
  std::uint64_t operations_run = 0;
  std::uint64_t streams_made = 0;
  std::uint64_t events_made = 0;
  std::uint64_t implicit_waits = 0;

  std::atomic<void (*)(void*)> on_call = nullptr;
  std::atomic<void*> on_call_context = nullptr;
  bool (*on_block)(void*) = nullptr;
  void* on_block_context = nullptr;

private:
  struct blocked_call {
    std::uint64_t thread;
    std::string what;
  };

  void order_behind(stream& on, operation* work);
  stream* choose();
  void finish(stream& on);
  void drop_work();
  bool alone() const;
  CUresult deadlocked(const std::string& what);
  std::string who_waits() const;
  void take_component(stream& made);

  gpumem_simulator_options options_{};
  bool initialised_ = false;
  bool executing_ = false;
  random_source chance_;
  unsigned eagerness_ = 0;
  unsigned calls_at_this_pace_ = 0;
  std::uint64_t progress_ = 0;
  std::condition_variable changed_;
  std::vector<stream_ptr> active_;  // with work
  std::vector<stream_ptr> retired_; // gone, their clock component not yet free
  struct free_component {
    std::uint32_t component;
    std::uint64_t counted;
  };
  std::vector<free_component> free_components_;
  std::uint32_t components_ = 1;
  std::uint64_t stream_ids_ = 0;
  std::uint64_t context_ids_ = 0;
  std::vector<blocked_call> blocked_;
};

/// The one simulated device of the process; never destroyed.
simulation& the_simulation();

/// Whether the process was forked from one that had initialised the driver, which then serves it no more.
bool in_forked_child() noexcept;

} // namespace simulated
