// A trace file, and the trace prepared for replay: blocks and streams are numbered from 0, and all checks are done
// before a pass runs.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
export module replay:plan;

namespace replay {

/// Returns the whole trace of a file, unpacked if it is gzip. Throws gpumem::extend::trace_error with the file and the
/// last line that could be read. It does so for a file that is missing, unreadable, damaged or cut short.
export std::string read_trace_file(std::string const& path);

/// Returns the rows of a trace as text in RMM's log format. Throws gpumem::extend::trace_error with `name`.
export std::string to_csv(std::string text, std::string const& name);

/// Returns "gpt_train" for "traces/gpt_train.csv.gz", "gpt_train.log" and "gpt_train.pickle".
export std::string trace_name(std::string const& path);

/// One call of a pass. A block number is a slot of an array; the slot is reused after the block's free.
export struct operation {
  std::uint64_t bytes = 0;
  std::uint32_t block = 0;
  std::uint32_t stream : 31 = 0;
  std::uint32_t allocates : 1 = 0;

  friend bool operator==(operation const&, operation const&) = default;
};

export struct plan {
  std::vector<operation> operations;
  std::vector<std::uint64_t> microseconds; ///< of each operation, since the first row; never decreasing
  std::vector<std::uint32_t> threads;      ///< of each operation: the number of its thread, from 0
  std::vector<std::uint32_t> lines;        ///< of each operation: the number of its row, as in a trace_error
  std::vector<operation> live_at_end;      ///< frees of the blocks that the trace leaves live, each on its own stream
  std::uint32_t blocks = 0;                ///< slots that a pass needs: the most blocks live at once
  std::uint32_t streams = 0;               ///< streams of the trace; stream 0 counts if it occurs
  std::uint64_t allocations = 0;           ///< number of allocations among the operations
  std::uint64_t frees_elsewhere = 0;       ///< frees on another stream than the allocation of the block
  std::uint64_t peak_live_bytes = 0;       ///< the most requested bytes live at once
  std::uint64_t recorded_failures = 0;     ///< rows `allocate failure`, which are not replayed
  std::uint64_t recorded_nulls = 0;        ///< allocations and frees of `(nil)` or 0 bytes, which are not replayed
};

/// Reads and checks a trace. Throws gpumem::extend::trace_error with `name` and the line for a malformed row and for
/// rows that contradict each other. These are frees of an unknown or freed pointer or with another size, and
/// allocations at a live pointer.
export plan make_plan(std::string text, std::string const& name);

/// Returns the plan of the first `count` operations.
export plan first_operations(plan const& whole, std::size_t count);

/// Throws gpumem::extend::trace_error with `name` if all rows have the same time.
export void require_times(plan const& of, std::string const& name);

} // namespace replay
