// The pool with a limit: a replay in which requests wait, and the smallest limit under which a trace completes.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <functional>
#include <optional>
export module advise:limits;
import replay;
import :candidate;

namespace advise {

/// Limits are multiples of this: pages take no part of it.
export inline constexpr std::uint64_t limit_step = std::uint64_t{2} << 20;

/// Replays the trace on the simulated device over the pool with this limit. A request that finds no memory waits, and
/// with it the later calls of its thread. The other threads go on in the order of the trace. A free waits for the
/// allocation of its block. After each free the threads that wait try again, the longest wait first. The replay fails
/// if all threads wait. For a job: it loads the device.
export figures replay_with_waits(replay::loaded_trace const& trace, std::uint64_t limit);

/// The end of a search for a limit.
export struct least_limit {
  std::uint64_t bytes = 0;             ///< with this limit the trace completes
  std::optional<std::uint64_t> failed; ///< the request that fails with one step less, as its place in the plan
};

/// Returns the smallest multiple of `limit_step` under which the pool with effort 1 completes the trace, while no
/// request waits. A pool near its limit grows in other ways, so a larger limit may fail: the search tries one limit
/// after the other, from what is live upwards. If more than 2 GiB are live, it first goes in steps of a thousandth of
/// that, and then by `limit_step` through the last of these. Returns nullopt if the trace does not complete without a
/// limit.
export std::optional<least_limit> find_least_limit(replay::loaded_trace const& trace, replay::progress& shown);

} // namespace advise
