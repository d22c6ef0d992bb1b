// The rows of a log as events, whatever form the file has. A log that knows no pages is replayed over a pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <string>
#include <vector>
export module report:events;
import gpumem;
import replay;

namespace report {

export using gpumem::extend::served_by;
export using gpumem::extend::trace_action;

/// One row. In a row of a move, `pointer` is where the pages go; a row `unmap` of their old place comes before it.
export struct event {
  std::uint64_t microseconds = 0; ///< since the first row; never decreasing
  std::uint64_t pointer = 0;
  std::uint64_t bytes = 0;
  std::uint16_t stream = 0; ///< its number in recording::streams
  std::uint16_t thread = 0; ///< its number in recording::threads
  trace_action action = trace_action::allocate;
  served_by served = served_by::unknown;
};

/// Where the pages and the reasons for reuse come from.
export enum class memory_source : std::uint8_t { none, log, replay };

/// A file as events. Each reader of a file format makes one.
export struct recording {
  std::string name;
  std::string file;
  std::vector<event> events;
  std::vector<std::uint64_t> streams; ///< the handle of each number
  std::vector<std::uint64_t> threads;
  memory_source memory = memory_source::none;
};

/// Reads a log in RMM's format or in gpumem's binary form, plain or gzip. A log without rows of memory is replayed over
/// a pool on the simulated device, and its blocks get the addresses of the replay, from 0. A binary log that cannot be
/// replayed, since it begins when blocks are live, has no memory. Throws gpumem::extend::trace_error with the file and
/// the line, std::runtime_error if the replay fails, and cuda_error.
export recording read_recording(std::string const& file);

} // namespace report
