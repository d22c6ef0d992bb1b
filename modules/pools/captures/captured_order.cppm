// The order of work in captured graphs: which uses of memory come before the next work of a stream.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <map>
#include <set>
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
/// the graphs are launched in this order.
///
/// The library expects that a stream's next work stays ordered after the stream's earlier work. So a program must not
/// replace the dependencies of a capturing stream (cudaStreamUpdateCaptureDependencies with the flag that sets them).
/// Keeps pointers to timelines, which the caller retains. One thread at a time.
export class captured_order {
public:
  /// The end of a use after which no work of another stream is known to come. It counts as newer than all others, so
  /// that it stays when ranges coalesce.
  static constexpr epoch no_end = std::numeric_limits<epoch>::max();

  /// The nodes before the next work of a capturing stream.
  class position {
  private:
    friend class captured_order;
    std::uint64_t capture_ = 0;
    epoch newest_end_ = no_end;
    std::unordered_map<CUgraphNode, bool> reached_; // true: complete before the next work; false: only begun
  };

  /// Ends a use on the stream, after all work that it has been given so far. Returns the number of the end, which is
  /// not below those of the stream's earlier ends. Returns no_end if the stream does not capture, or has no captured
  /// work yet: work before a capture has no order with the graph. Throws std::bad_alloc.
  epoch end_use(stream_key const& key);

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
    std::vector<CUgraphNode> nodes;
  };

  position* enter(stream_timeline const& timeline, std::uint64_t capture);

  std::map<stream_timeline const*, position> streams_;
  std::set<std::uint64_t> open_; // captures that were seen, and are not known to have ended
  std::unordered_map<epoch, end_of_use> ends_;
  epoch newest_end_ = 0;
  std::size_t limit_ = least_limit;
};

} // namespace gpumem::detail
