// All that surrounds the passes over one resource: its threads, their streams, and what they keep between
// operations.
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

/// A trace, ready to run.
export struct loaded_trace {
  std::string name;
  std::string file;
  plan operations;
};

/// One trace over one resource, and how. What it points to must outlive it.
export struct run_config {
  loaded_trace const* trace = nullptr;
  std::string_view resource;
  options const* chosen = nullptr;
  chosen_device const* where = nullptr;
  progress* shown = nullptr;
};

/// What one pass cost.
export struct pass_cost {
  double nanoseconds = 0; ///< from the first start to the last end, host time
  std::uint64_t driver_calls = 0;
};

/// Lives longer than the resources that are used on its streams. One thread, the first member of its team.
export class replay_session {
public:
  /// Throws cuda_error.
  explicit replay_session(run_config const& what);

  /// What one member works with.
  struct member {
    unsigned number = 0;
    std::span<gpumem::stream_ref const> streams;
    pass_state& state;
  };

  /// Runs `body` in all threads at once; `step` is what progress shows. Rethrows what a member threw; throws
  /// std::runtime_error for a failure that is no lack of memory.
  pass_cost run(std::string_view step, std::function<void(member)> const& body);

  std::span<stream_set const> sets() const noexcept { return sets_; }
  /// Visits the members one after the other, from the calling thread.
  void each_member(std::function<void(member)> const& visit);
  /// Waits for all streams; throws cuda_error.
  void synchronize() const;
  /// Allocations not met since the last call.
  std::uint64_t take_failures();

private:
  void check_fatal() const;

  run_config what_;
  gpumem::device_guard here_; // for the owner's thread, as programs have it
  std::vector<stream_set> sets_;
  std::vector<pass_state> states_;
  thread_team team_;
};

} // namespace replay
