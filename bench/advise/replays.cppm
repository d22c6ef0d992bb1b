// Replays in processes of their own, so that each begins with a new device and several run at once.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>
export module advise:replays;
import replay;
import :candidate;

namespace advise {

/// Returns the number of processors that this process may use.
export unsigned processors();

/// Runs each job in a child process, at most `processors()` at once, and returns their results in the order of the
/// jobs. The calling process must not have used a driver. Calls `ended` after each job. Throws std::runtime_error with
/// the text of the first job that failed.
export std::vector<figures> run_jobs(std::vector<std::function<figures()>> const& jobs,
                                     std::function<void()> const& ended);

/// Replays the trace on the simulated device over a resource of the replay tool, with a limit if that is not 0. For a
/// job: it loads the device.
export figures replay_over(replay::loaded_trace const& trace, std::string_view resource, std::uint64_t limit);

/// Fills the figures of all candidates. `limit` is that of the candidate of this name. `shown` gets a step for each
/// replay.
export void replay_all(replay::loaded_trace const& trace, std::vector<candidate>& all, std::uint64_t limit,
                       replay::progress& shown);

} // namespace advise
