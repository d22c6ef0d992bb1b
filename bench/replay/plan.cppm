// A trace made ready to replay: dense numbers for blocks and streams, all checks done, so that a pass only
// runs.
// SPDX-License-Identifier: Apache-2.0
module;

#include <cstdint>
#include <string>
#include <vector>

export module replay:plan;

namespace replay {

/// One call of a pass. A block number is a slot of an array, reused once its block was freed.
export struct operation {
  std::uint64_t bytes = 0;
  std::uint32_t block = 0;
  std::uint32_t stream : 31 = 0;
  std::uint32_t allocates : 1 = 0;

  friend bool operator==(operation const&, operation const&) = default;
};

export struct plan {
  std::vector<operation> operations;
  std::vector<std::uint64_t> microseconds; ///< of each operation, since the first was recorded; they never fall
  std::vector<operation> live_at_end;      ///< frees of the blocks that the trace leaves live, on their own streams
  std::uint32_t blocks = 0;                ///< slots that a pass needs: most blocks live at once
  std::uint32_t streams = 0;               ///< streams of the trace, 0 being one if it occurs
  std::uint64_t allocations = 0;           ///< among the operations
  std::uint64_t peak_live_bytes = 0;       ///< most requested bytes live at once
  std::uint64_t recorded_failures = 0;     ///< rows `allocate failure`; there is nothing to replay in them
  std::uint64_t recorded_nulls = 0;        ///< allocations and frees of nothing, `(nil)` and 0 bytes; not replayed
};

/// Reads and checks a trace. Throws gpumem::extend::trace_error, with `name` and the line, for a malformed row and
/// for rows that contradict each other: a free of an unknown or of a freed pointer or of another size, an
/// allocation at a live pointer.
export plan make_plan(std::string text, std::string const& name);

/// Throws gpumem::extend::trace_error, with `name`, if the plan has no times: if all was recorded at one moment.
export void require_times(plan const& of, std::string const& name);

} // namespace replay
