// simulation: the state of all simulated devices, guarded by one lock, and the execution of their work.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/lock_attributes.hpp>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "../support/guarded_mutex.hpp"
#include "capture.hpp"
#include "checker.hpp"
#include "control.h"
#include "device.hpp"
#include "driver_api.hpp"
#include "faults.hpp"
#include "handle_table.hpp"
#include "memory.hpp"
#include "memory_pool.hpp"
#include "random.hpp"
#include "report.hpp"
#include "stream.hpp"
#include "virtual_memory.hpp"

namespace simulated {

using locked = gpumem::support::scoped_lock;
using unlocked = gpumem::support::scoped_unlock;

/// The lock that guards the simulation of the process.
extern gpumem::support::guarded_mutex simulation_mutex;

/// Rules for a driver call. admit() and enter() apply them before the call runs.
enum rule : unsigned {
  plain = 0,
  before_init = 1,       // allowed before cuInit, and while an injected error makes all other calls fail
  needs_context = 2,     // fails with CUDA_ERROR_INVALID_CONTEXT (201) without a current context
  unsafe_in_capture = 4, // if a capture forbids the call: invalidates the capture and fails
  quiet = 8,             // runs no device work
};

class simulation {
public:
  simulation();

  // Set-up
  /// Begins with new options, no findings, faults, counts and captures. Pending work counts as complete, without having
  /// run. Streams, events, memory and all other objects that the program holds stay if the option `keep_objects` says
  /// so. Returns false, and does nothing, while a function of device work runs or a host call waits.
  bool reset(gpumem_simulator_options const& options, gpumem_simulator_details const& details = default_details);
  static constexpr gpumem_simulator_details default_details{0, 1, nullptr, 0};
  /// Runs all work that can run, orders the host after it, and restarts the random numbers with `seed`.
  void reseed(std::uint64_t seed) GPUMEM_REQUIRES(simulation_mutex);
  CUresult initialise();
  /// Returns how often the simulation was reset.
  [[nodiscard]] std::uint64_t resets() const noexcept { return resets_; }
  [[nodiscard]] bool initialised() const noexcept { return initialised_; }
  [[nodiscard]] gpumem_simulator_options const& options() const noexcept { return options_; }
  /// Returns whether the destroy of a driver pool is a finding until the host has waited for its frees.
  [[nodiscard]] bool strict_pool_destroy() const noexcept { return strict_pool_destroy_; }

  // Calls
  /// Counts a call of `name`. Returns success, or the error with which the call must fail.
  CUresult admit(char const* name, unsigned rules);
  /// Runs a random number of operations, all operations that can run, or none, as the option `stepping` says.
  void advance() GPUMEM_REQUIRES(simulation_mutex);

  // Device work
  /// Enqueues work on a stream. If the stream captures, adds the work to the capture.
  CUresult enqueue(stream_ptr const& stream, operation&& work);
  /// Runs one operation. Returns false if none can run now.
  bool step() GPUMEM_REQUIRES(simulation_mutex);
  /// Runs all operations that can run, and waits for operations that other threads run. Returns the number still
  /// pending.
  std::uint64_t run_until_idle() GPUMEM_REQUIRES(simulation_mutex);
  /// Runs device work until `done()` returns true. Fails with a finding if no operation can run and no other host
  /// thread can change that, or nothing has changed for the time `stall_timeout_ms`. `call` describes the call in the
  /// finding.
  CUresult block_until(std::string const& call, std::function<bool()> const& done) GPUMEM_REQUIRES(simulation_mutex);
  /// Called when a query has found work that is not done. With the option GPUMEM_STEPPING_MANUAL, work runs only on
  /// request, so such queries can go on forever. Prints a warning, once, if queries have found work not done for the
  /// time `stall_timeout_ms`, and no work was enqueued or run meanwhile.
  void queried_in_vain();
  /// Waits for all work enqueued on a stream so far, and orders the host after it.
  CUresult wait_for(stream_ptr const& stream, char const* call) GPUMEM_REQUIRES(simulation_mutex);
  /// Waits for all work of a context. Does not order the host after the work.
  CUresult wait_for_all(context& home, char const* call) GPUMEM_REQUIRES(simulation_mutex);
  /// Returns whether all work of a stream is done. For a legacy stream, the work of all blocking streams (those without
  /// CU_STREAM_NON_BLOCKING) of its context counts too.
  [[nodiscard]] bool idle(stream const& stream) const;
  /// Returns the vector clock of a stream: the work after which its next operation is ordered. For a legacy stream,
  /// that includes the work of all blocking streams of its context.
  [[nodiscard]] vector_clock order_now(stream const& stream) const;
  [[nodiscard]] std::uint64_t pending() const;

  // Points: places in the order of a stream or of the host at which memory is touched
  /// Returns a new point of a stream, at which no device work is enqueued.
  actor point(stream_ptr const& stream, char const* action);
  /// Returns the point of the stream's newest operation.
  static actor newest_point(stream_ptr const& stream, char const* action);
  /// Returns a new point of the host.
  actor host_point(char const* action);

  // Streams, events, contexts
  stream_ptr make_stream(context& home, stream_kind kind, unsigned flags, int priority);
  void retire(stream_ptr const& stream);
  /// Returns the stream that the handle means on this thread. If there is none, returns null and sets `error`; reports
  /// a handle whose stream was destroyed. Clears the lists that cuStreamGetCaptureInfo has returned for the stream.
  stream_ptr resolve(CUstream handle, CUresult& error);
  stream_ptr look_up(CUstream handle, CUresult& error);
  std::shared_ptr<event> resolve(CUevent handle, CUresult& error);
  stream_ptr legacy_of(context& home);
  stream_ptr per_thread_of(context& home);
  /// Destroys the per-thread streams of a host thread that has ended.
  void end_thread(std::uint64_t number);
  [[nodiscard]] context* current() const;
  void activate(context& home);
  void destroy(context& home);
  /// Returns the result of a wait that began while the context had this id: an error if the context was destroyed
  /// since.
  [[nodiscard]] static CUresult after_wait(context const& home, std::uint64_t id) noexcept {
    return home.active && home.id == id ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }

  // Capture
  void invalidate(capture& capture) const { capture.invalid = true; }
  /// Invalidates the captures that forbid a call with the rule `unsafe_in_capture` on this thread. Returns whether
  /// there were any.
  bool forbidden_by_capture();
  /// Invalidates the captures of all streams of a context, as the driver does at a call for the whole context. Returns
  /// whether there were any.
  bool breaks_captures_of(context const& home);
  /// If `stream` is a legacy stream, invalidates the captures in which blocking streams of its context take part.
  /// Returns whether there were any.
  bool legacy_breaks_capture(stream const& stream);
  /// Returns whether legacy_breaks_capture() would invalidate a capture; invalidates none.
  [[nodiscard]] bool legacy_meets_capture(stream const& stream) const;
  /// Adds work to the capture of its stream. Reports an earlier node that touches the same bytes and is not ordered
  /// before the work.
  CUresult add_to_capture(stream_ptr const& stream, operation&& work);
  /// Frees the handles of the nodes of a destroyed graph; they are reused.
  void forget_nodes(graph const& graph);
  std::vector<std::shared_ptr<capture>> captures; // captures that have not ended
  std::uint64_t captures_made = 0;

  void report_finding(finding_kind kind, std::string const& text, party later = {});

  report findings;
  memory allocations;
  physical_memory physicals;
  virtual_memory mappings;
  vector_clock host;
  checker order{findings, allocations, mappings, host};
  simulated::faults faults;
  pool_table pools;
  memory_advice advice;
  handle_table<stream> streams;
  handle_table<event> events;
  handle_table<graph> graphs;
  graph_nodes nodes;
  handle_table<graph> executables;
  handle_table<int> modules; // handles of modules, libraries, kernels and functions; kernels never run
  std::vector<std::unique_ptr<context>> primaries;
  std::unordered_map<std::string_view, std::uint64_t> calls;
  std::uint64_t host_time = 0; // simulated nanoseconds
  std::uint64_t operations_run = 0;
  std::uint64_t streams_made = 0;
  std::uint64_t events_made = 0;
  std::uint64_t implicit_waits = 0;

  bool (*on_block)(void*) = nullptr;
  void* on_block_context = nullptr;

private:
  struct blocked_call {
    std::uint64_t thread;
    std::string call;
  };

  void add_point(stream& stream, operation* work);
  stream* choose();
  void end_operation(stream& stream);
  void drop_work();
  void drop_captures();
  void clear_objects();
  /// Removes the streams of the context, the clocks of its ended streams, and its peers.
  static void forget_streams(context& home);
  void see_all_complete();
  void call_at_end_of_this_thread();
  bool alone() const;
  CUresult deadlocked(std::string const& call);
  std::string describe_waits() const;
  void take_component(stream& stream);

  gpumem_simulator_options options_{};
  bool strict_pool_destroy_ = false;
  std::optional<std::string> wrong_seed_; // GPUMEM_SIMULATOR_SEED, if it is no number
  bool initialised_ = false;
  std::uint64_t resets_ = 0;
  bool executing_ = false;
  random_source chance_;
  unsigned eagerness_ = 0;
  unsigned calls_at_this_pace_ = 0;
  std::uint64_t progress_ = 0;
  struct vain_queries {
    std::optional<std::uint64_t> progress; // `progress_` at the first of these queries
    std::chrono::steady_clock::time_point first_time;
    bool reported = false;
  } vain_;
  std::condition_variable_any changed_;
  std::vector<stream_ptr> active_;  // streams with work
  std::vector<stream_ptr> retired_; // ended streams whose component of the vector clocks cannot be reused yet
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

/// Returns the one simulation of the process, which is never destroyed.
simulation& the_simulation() GPUMEM_REQUIRES(simulation_mutex);

/// A function that each driver call runs before it takes the lock; null: none.
struct call_hook {
  std::atomic<void (*)(void*)> function = nullptr;
  std::atomic<void*> context = nullptr;
  void run() const {
    if (auto* hook = function.load(std::memory_order_acquire)) hook(context.load(std::memory_order_relaxed));
  }
};
extern call_hook on_call;

/// Returns whether this is a child process whose parent had initialised the driver before fork(). The driver then
/// refuses all calls.
bool in_forked_child() noexcept;

} // namespace simulated
