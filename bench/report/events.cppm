// The rows of a log as events, whatever form the file has. A log that knows no pages is replayed over a pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
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
  std::uint16_t label = 0;  ///< its number in recording::labels
  trace_action action = trace_action::allocate;
  served_by served = served_by::unknown;
};

/// Where the pages and the reasons for reuse come from.
export enum class memory_source : std::uint8_t { none, log, replay, snapshot };

/// The facts of a snapshot beside its blocks.
export struct snapshot_facts {
  struct cache {
    std::uint64_t thread = 0, allocations = 0, frees = 0;
    std::uint64_t bytes = 0; ///< cached
  };
  struct request {
    std::uint64_t bytes = 0, stream = 0, waited_ns = 0;
    std::string scope; ///< empty: none
  };
  std::string pool;
  std::uint64_t device = 0;
  bool on_device = true;                               ///< the memory belongs to a device
  std::uint64_t cached_bytes = 0, cached_blocks = 0;   ///< in thread caches
  std::uint64_t pending_bytes = 0, pending_blocks = 0; ///< freed, while work on a stream may still use them
  std::uint64_t regions = 0, pages = 0, pinned_pages = 0;
  std::uint64_t calls_meanwhile = 0; ///< of other threads, while the snapshot was taken
  std::vector<cache> caches;
  std::vector<request> waiting;
};

export using event_visitor = std::function<void(event const&)>;

/// A file as events. Each reader of a file format makes one.
export struct recording {
  std::string name;
  std::string file;
  std::vector<event> events;
  /// Calls the visitor for each event, reading the file again; null: `events` has them.
  std::function<void(event_visitor const&)> read_again;
  std::size_t rows = 0;                ///< the number of events that read_again() visits
  std::vector<std::uint64_t> streams;  ///< the handle of each number
  std::vector<std::uint64_t> threads;  ///< empty: unknown
  std::vector<std::string> labels{""}; ///< the text of each number; the first one: no label
  memory_source memory = memory_source::none;
  bool timed = true;        ///< false: all events make up one moment
  std::size_t initial = 0;  ///< the first events, which describe what was there before
  bool regions_join = true; ///< false: a free range ends where a row `map` begins or ends
  std::optional<snapshot_facts> snapshot;
};

/// Calls the visitor for each event.
export void each_event(recording const& of, event_visitor const& visit);

/// Ends the process with status 2 and a message if a log is cut while it is read: a mapped file then has no bytes
/// there. Only a program's main function calls this, since it handles SIGBUS for the whole process.
export void end_if_a_log_is_cut();

/// Reads a log in RMM's format or in gpumem's binary form, a snapshot of gpumem in JSON, or a pickle of PyTorch's
/// snapshot, plain or gzip. A pickle gives one recording for each device with memory.
///
/// A log without rows of memory is replayed over a pool on the simulated device, and its blocks get the addresses of
/// the replay, from 0. A binary log that cannot be replayed, since it begins when blocks are live, has no memory.
/// The rows of a log that has memory stay in the file, which is mapped unless it is packed.
///
/// Throws gpumem::extend::trace_error with the file and the line, std::runtime_error with the file and the place if a
/// snapshot is malformed or the replay fails, and cuda_error.
export std::vector<recording> read_recordings(std::string const& file);

} // namespace report
