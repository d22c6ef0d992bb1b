// The resources among which the adviser chooses, and the rule by which it does.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>
export module advise:candidate;
import replay;

namespace advise {

/// The counts of one replay of the trace over a resource.
export struct figures {
  bool completed = false;
  std::uint64_t reserved = 0; ///< bytes, at the peak
  std::uint64_t driver_calls = 0;
  std::uint64_t memory_calls = 0; ///< driver calls that get, map, or return memory
  std::uint64_t moved = 0;        ///< pages that moved
  std::uint64_t waits = 0;        ///< requests that waited for memory
  std::uint64_t failed = 0;       ///< the failed request as its place in the plan, if the replay did not complete
};

/// A resource with the lines that make it. An empty line means that there is none.
export struct candidate {
  std::string_view resource; ///< its name in the table of the replay tool; `limit`: the pool with waiting requests
  std::string title = {};
  std::string cpp = {};     ///< a declaration in C++
  std::string options = {}; ///< for gpumem_make_pool
  std::string torch = {};   ///< for PyTorch
  std::string note = {};    ///< how the figures came about; empty: by a replay
  figures counted = {};
};

/// More blocks live at once make the simulated driver's pool too slow to replay it.
export inline constexpr std::uint32_t most_driver_blocks = 10'000;

/// Returns the resources that are replayed over this trace, the simplest first. The driver's pool is left out if more
/// than `most_driver_blocks` are live at once. Blocks of one size are left out if they would take more than twice the
/// peak of the live bytes. The pool with a limit is there if `memory` is not 0.
export std::vector<candidate> candidates_for(replay::plan const& of, std::uint64_t memory);

/// Returns the figures of cuMemAlloc, whose bytes follow from the trace. `some` are those of a replay of the first
/// `calls` calls, from which the number of driver calls follows.
export figures scaled_driver(replay::plan const& of, figures const& some, std::uint64_t calls);

/// Fills the figures of the pool with its default effort. Its moves take a bounded share of the time, so a replay at
/// full pace cannot count them. If the recorded time pays for the moves that effort 1 makes, the pool does as with
/// effort 1, and otherwise at least as well as with effort 0.
export void fill_default_pool(std::vector<candidate>& all, replay::plan const& of);

/// Why a candidate is not the answer.
export enum class verdict {
  chosen,
  incomplete,  ///< a request failed
  too_large,   ///< reserves more than the memory that there is
  many_calls,  ///< makes more than twice the fewest memory calls, more than one for two calls of the program, and more
               ///< than 100
  much_memory, ///< reserves more than 1.02 times the least
  less_simple, ///< the answer stands before it
};

/// The answer. `fewest_calls` is of those that complete, `least` of those that do not make too many calls.
export struct choice {
  std::optional<std::size_t> place; ///< of the candidate; nullopt: none completes the trace
  std::vector<verdict> verdicts;    ///< of each candidate
  std::uint64_t fewest_calls = 0;
  std::uint64_t least = 0;
};
/// `calls` is the number of calls in the trace. `memory` 0 means no bound.
export choice choose(std::span<candidate const> all, std::uint64_t calls, std::uint64_t memory);

} // namespace advise
