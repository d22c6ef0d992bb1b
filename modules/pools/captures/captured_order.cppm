// The order of work in captured graphs: which uses of memory come before the next work of a stream.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <map>
#include <unordered_map>
export module gpumem:captured_order;
import :cuda;
import :std;
import :stream;
import :stream_timeline;

namespace gpumem::detail {

/// The order between uses of memory in captured graphs, as the dependencies of the graphs' nodes give it. A use on a
/// capturing stream ends at a set of nodes: those on which the stream's next work would depend. The use comes before
/// other work if the graph orders all these nodes before that work. Each such set, the end of a use, has a number.
/// Blocks store it where they otherwise store an epoch.
///
/// When no capture is open any more, all uses so far come before the work of later captures, because the graphs are
/// launched in this order. This does not hold if the graphs of two captures have the same handle, because the two
/// captures may be parts of one graph.
///
/// The driver returns the last nodes of a stream in a list that is valid only until the next call on the stream. So
/// only the thread that works on the capture may read the list. The library takes that to be the thread that has made
/// the capture's newest request for memory.
///
/// A stream's next work must stay ordered after its earlier work. So the program must not replace the dependencies of a
/// capturing stream (cudaStreamUpdateCaptureDependencies with the flag that sets them). Keeps pointers to timelines;
/// the caller keeps the timelines alive. One thread at a time.
export class captured_order {
public:
  /// The end of a use after which no work is known to come, so that the memory serves no stream. It is the largest
  /// number: when ranges are joined, each stream keeps the end with the larger number.
  static constexpr epoch no_end = std::numeric_limits<epoch>::max();
  /// The end of a use after which only work of the same stream is known to come.
  static constexpr epoch own_end = no_end - 1;

  /// The nodes that come before the next work of a capturing stream.
  class position {
  private:
    friend class captured_order;
    std::uint64_t capture_ = 0;
    CUgraph graph_ = nullptr;
    std::uint64_t era_ = 0;
    std::optional<unsigned> thread_; // the thread that has made the stream's newest request
    epoch newest_end_ = no_end;
    std::unordered_map<CUgraphNode, bool> reached_; // true: complete before the next work; false: only begun
  };

  /// Notes that the calling thread requests memory on the stream. Returns the id of the stream's capture; 0 if the
  /// stream does not capture. Throws std::bad_alloc.
  std::uint64_t note_request(stream_key const& key);
  /// Notes that the stream is dead, so that the capture in which it was seen last has ended.
  void leave(stream_timeline& dead) noexcept;
  /// Returns whether the calling thread has made the newest request of this capture, and the capture is not known to
  /// have ended.
  bool is_worked_on_here(std::uint64_t capture) const noexcept;

  /// Ends a use of a block on the stream, after all work that the stream has now. `allocated_in`: the capture in which
  /// the block was allocated. Returns the number of the end, which is not below those of the stream's earlier ends.
  ///
  /// Returns own_end if the graph gives no order for the use. That is so if the stream does not take part in the
  /// capture `allocated_in`, or has no captured work yet. It is also so if the stream's next work need not await the
  /// completion of its last work. If another thread has made the newest request of the capture or of the stream,
  /// returns own_end without a driver call. Throws std::bad_alloc.
  epoch end_use(stream_key const& key, std::uint64_t allocated_in);

  /// Returns the position of the stream; null if the stream does not capture. The position is valid until the next call
  /// of this object. All calls for a stream together visit each node of a graph at most once. Throws std::bad_alloc.
  position const* look_at(stream_key const& key);
  /// Returns whether the use with this end comes before the next work of the stream at that position.
  bool is_before(epoch end, position const& next) const noexcept;

  /// Returns whether a capture may be open in which the use with this end was captured, or that began before it ended.
  bool is_recent(epoch end) const noexcept;
  /// Returns the graph in which the use with this end was captured; null if that is not known. The program may have
  /// destroyed the graph.
  CUgraph graph_of(epoch end) const noexcept;

  /// Returns whether there are at least 64 ends, and twice as many as after the last call of keep_only().
  inline bool is_full() const noexcept { return ends_.size() >= limit_; }
  /// Drops all ends but those in `epochs`. Throws std::bad_alloc.
  void keep_only(std::span<epoch const> epochs);
  inline std::size_t size() const noexcept { return ends_.size(); }

private:
  static constexpr std::size_t least_limit = 64;
  struct end_of_use {
    std::uint64_t capture;
    CUgraph graph;
    std::uint64_t era;
    std::vector<CUgraphNode> nodes;
  };

  position* enter(stream_timeline& timeline, std::uint64_t capture, CUgraph graph);
  void end_capture(std::uint64_t capture) noexcept;
  void end_left_captures();

  std::map<stream_timeline*, position> streams_;
  // The captures that are not known to have ended, by id, with the thread that has made the newest request of each.
  std::map<std::uint64_t, std::optional<unsigned>> open_;
  std::uint64_t era_ = 0; // counts how often a capture has ended and left none open
  std::unordered_map<epoch, end_of_use> ends_;
  epoch newest_end_ = 0;
  std::size_t limit_ = least_limit;
};

} // namespace gpumem::detail
