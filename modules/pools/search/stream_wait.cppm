// A wait on the host for the work of streams.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream_wait;
import :std;
import :stream_timeline;
import :sync;

namespace gpumem::detail {

/// Polls for at most `longest`, until all uses of memory that was freed on the streams before the call are complete.
/// Returns false if the time has passed, on a lost device, or if no event covers some of these uses. Records missing
/// events on streams that gpumem made or adopted. The caller holds no lock.
export bool wait_for_streams(std::vector<stream_timeline*> const& timelines, sync::duration longest) noexcept;

} // namespace gpumem::detail
