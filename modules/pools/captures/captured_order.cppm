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

/// The ends of uses on capturing streams, and the order between them that the dependencies of the graph's nodes give.
/// An end is the set of nodes on which the stream's next work would depend. It comes before other work if all of its
/// nodes do. Ends of a capture that has ended come before all work of a capture that is first seen afterwards, since
/// the graphs are launched in this order. Captures whose graphs have the same handle are not ordered: they may be
/// parts of one graph.
///
/// The driver's list of a stream's last nodes is valid only until the next call on the stream. So only the thread that
/// has made the newest request of the capture reads it, since that thread is the one that works on the capture.
///
/// The library expects that a stream's next work stays ordered after the stream's earlier work. So a program must not
/// replace the dependencies of a capturing stream (cudaStreamUpdateCaptureDependencies with the flag that sets them).
/// Keeps pointers to timelines, which the caller retains. One thread at a time.
export class captured_order {
public:
  /// The end of a use after which no work is known to come. It counts as newer than all others, so that it stays when
  /// ranges coalesce.
  static constexpr epoch no_end = std::numeric_limits<epoch>::max();
  /// The end of a use after which only work of the same stream is known to come.
  static constexpr epoch own_end = no_end - 1;

  /// The nodes before the next work of a capturing stream.
  class position {
  private:
    friend class captured_order;
    std::uint64_t capture_ = 0;
    CUgraph graph_ = nullptr;
    std::uint64_t era_ = 0;
    std::optional<unsigned> thread_; // that has made the stream's newest request
    epoch newest_end_ = no_end;
    std::unordered_map<CUgraphNode, bool> reached_; // true: complete before the next work; false: only begun
  };

  /// Notes a request of the stream by the calling thread. Returns the id of the stream's capture, 0 if it takes part in
  /// none. Throws std::bad_alloc.
  std::uint64_t note_request(stream_key const& key);
  /// Whether the calling thread has made the newest request of this capture, which is not known to have ended.
  bool is_worked_on_here(std::uint64_t capture) const noexcept;

  /// Ends a use of a block on the stream, after all work that it has been given so far. Returns the number of the end,
  /// which is not below those of the stream's earlier ends.
  ///
  /// Returns own_end unless the stream takes part in the capture in which the block was allocated: the graph has no
  /// order with earlier work on the block. If another thread works on the capture or on the stream, returns own_end and
  /// asks the driver nothing. Returns it also if the stream has no captured work yet, or if its next work need not
  /// await the completion of its last. Throws std::bad_alloc.
  epoch end_use(stream_key const& key, std::uint64_t allocated_in);

  /// Returns the position of the stream; null if it does not capture. The next call of this object may end it. Visits
  /// each node of a graph at most once for each stream that asks. Throws std::bad_alloc.
  position const* look_at(stream_key const& key);
  /// Returns whether the end comes before the next work of the stream at that position.
  bool is_before(epoch end, position const& next) const noexcept;

  /// Whether there are twice as many ends as were in use at the last call of keep_only(), and more than 64.
  inline bool is_full() const noexcept { return ends_.size() >= limit_; }
  /// Drops all ends but these. Throws std::bad_alloc.
  void keep_only(std::span<epoch const> used);
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
  void close(std::uint64_t capture) noexcept;
  void close_ended();

  std::map<stream_timeline*, position> streams_;
  // Captures that were seen and are not known to have ended, with the thread that has made the newest request.
  std::map<std::uint64_t, std::optional<unsigned>> open_;
  std::uint64_t era_ = 0; // counts how often no capture was open any more
  std::unordered_map<epoch, end_of_use> ends_;
  epoch newest_end_ = 0;
  std::size_t limit_ = least_limit;
};

} // namespace gpumem::detail
