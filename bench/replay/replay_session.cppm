// A session holds the threads of all passes over one resource, their streams, and their state between operations.
// SPDX-License-Identifier: Apache-2.0
module;

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

export module replay:replay_session;

import gpumem;
import :device;
import :options;
import :pass;
import :plan;
import :progress;
import :streams;
import :thread_team;

namespace replay {

/// A trace with its plan.
export struct loaded_trace {
  std::string name;
  std::string file;
  plan operations;
};

/// One trace over one resource, with the options. The objects that it points to must outlive it.
export struct run_config {
  loaded_trace const* trace = nullptr;
  std::string_view resource;
  options const* chosen = nullptr;
  unsigned threads = 1;
  chosen_device const* where = nullptr;
  progress* shown = nullptr;
};

/// The cost of one pass.
export struct pass_cost {
  double nanoseconds = 0; ///< from the first start to the last end, by the host's clock
  std::uint64_t driver_calls = 0;
};

/// Must outlive the resources that are used on its streams. Not thread-safe: only the thread that made it, which is the
/// first member of the team, calls it.
export class replay_session {
public:
  /// Throws cuda_error.
  explicit replay_session(run_config const& what);

  /// The streams and the state of one thread of the team.
  struct member {
    unsigned number = 0;
    std::span<gpumem::stream_ref const> streams;
    pass_state& state;
  };

  /// Runs `body` in all threads at once; progress shows `step`. Rethrows an exception of a thread. Throws
  /// std::runtime_error for a failure other than a lack of memory.
  pass_cost run(std::string_view step, std::function<void(member)> const& body);

  std::span<stream_set const> sets() const noexcept { return sets_; }
  /// Calls `visit` for each member in turn, on the calling thread.
  void each_member(std::function<void(member)> const& visit);
  /// Waits for all streams. Throws cuda_error.
  void synchronize() const;
  /// Returns the number of failed allocations since the last call.
  std::uint64_t take_failures();

private:
  void check_fatal() const;

  run_config what_;
  gpumem::device_guard here_; // makes the device current in the owner's thread, as programs do
  std::vector<stream_set> sets_;
  std::vector<pass_state> states_;
  thread_team team_;
};

} // namespace replay
