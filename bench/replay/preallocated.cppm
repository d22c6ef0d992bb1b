// The reference for `--work`: the same kernels on memory that was allocated beforehand.
// SPDX-License-Identifier: Apache-2.0
module;

#include <cstdint>
#include <span>
#include <vector>

export module replay:preallocated;

import gpumem;
import :plan;
import :replay_session;
import :gpu_stopwatch;
import :work;

namespace replay {

/// Launches the kernel after every N-th allocation of a pass, even if the allocation failed, so that every pass over a
/// plan does the same work.
export class work_timer {
public:
  work_timer(work_kernel const& kernel, unsigned every, std::span<gpumem::stream_ref const> streams)
      : kernel_{kernel}, rhythm_{every}, streams_{streams} {}

  inline void before(operation const&) noexcept {}
  inline void after(operation const& next, void* block) {
    if (rhythm_.due(next)) kernel_.launch(streams_[next.stream], block, next.bytes);
  }

private:
  work_kernel const& kernel_;
  kernel_interval rhythm_;
  std::span<gpumem::stream_ref const> streams_;
};

/// Returns the number of kernels of one pass of one thread.
export std::uint64_t launches_of(plan const& operations, unsigned every);

/// Returns the device milliseconds of each of `repeat` passes that only launch kernels, after a warm-up pass. Throws
/// cuda_error.
export std::vector<double> time_preallocated(run_config const& what, replay_session& on, work_kernel const& kernel,
                                             gpu_stopwatch& line);

} // namespace replay
