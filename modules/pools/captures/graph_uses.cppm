// The uses, by capturing streams, of graph memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <memory>
#include <set>
#include <unordered_map>
export module gpumem:graph_uses;
import :block;
import :captured_order;
import :graph_chunks;
import :range_allocator;
import :std;
import :stream;
import :stream_timeline;

namespace gpumem::detail {

/// Ends the uses of blocks of a graph memory, and finds the free ranges whose uses come before the next work of a
/// stream. In the stream_uses here, `newest` is no epoch: it is the number that captured_order gives to the end of the
/// use. Guarded by the lock of the graph memory.
export class graph_uses {
public:
  /// Keeps references to the memory whose uses these are.
  graph_uses(range_allocator& ranges, graph_chunks const& chunks) noexcept : ranges_{ranges}, chunks_{chunks} {}
  graph_uses(graph_uses const&) = delete;
  graph_uses& operator=(graph_uses const&) = delete;
  ~graph_uses();

  /// Notes that the calling thread requests memory on the stream. Returns the id of the stream's capture; 0 if the
  /// stream does not capture. Keeps the stream's timeline as long as the stream lives or a live block names it. So no
  /// other stream gets that timeline meanwhile. Throws std::bad_alloc.
  std::uint64_t note_request(stream_key const& key);
  /// Notes in which capture a block was allocated; 0: in none. If the host has no memory for the note, the block counts
  /// as allocated in none.
  void note_allocation(block const& live, std::uint64_t capture) noexcept;
  /// Forgets the capture in which a block was allocated that is freed now.
  void forget(block const& freed) noexcept { allocated_in_.erase(&freed); }
  void forget_all_blocks() noexcept { allocated_in_.clear(); }
  /// Returns the capture in which a block was allocated if the calling thread works on that capture; otherwise 0.
  std::uint64_t capture_worked_on_here(block const& live) const noexcept;
  /// Returns the kept timeline of the stream with this id; null if there is none.
  stream_timeline* find_stream(std::uint64_t id) const noexcept;

  /// How a use has ended: by a call of record_use, after which other uses may come, or by the free.
  enum class ended_by : std::uint8_t { declaration, free };
  /// Ends a use of a live block on the stream.
  void end(block& used, stream_key const& key, ended_by how) noexcept;

  /// A free range that a stream may use, and the offset of the block in it; the range is null if there is none.
  struct fit {
    block* range = nullptr;
    std::size_t offset = 0;
  };
  /// Finds the smallest range that fits and whose uses come before the next work of the capturing stream. Leaves out
  /// ranges that only this stream has used. Throws std::bad_alloc.
  fit find_ordered(stream_key const& key, std::size_t bytes, std::size_t alignment);

private:
  // Names the uses of dead streams in one graph, in place of the timelines of these streams. A range that several of
  // them used keeps the newest end: the captures of all have ended, so all uses come before the same later work.
  struct dead_streams {
    CUgraph graph = nullptr;
    std::unique_ptr<stream_timeline> name;
  };

  void keep_timeline(stream_timeline& timeline);
  void drop_dead_timelines();
  void rename_dead(block& used);
  stream_timeline& name_of_dead(CUgraph graph);
  std::set<stream_timeline const*> named_timelines() const;
  std::uint64_t capture_of(block const& live) const noexcept;
  void drop_unused_ends();

  range_allocator& ranges_;
  graph_chunks const& chunks_;
  std::set<stream_timeline*> timelines_; // retained, so that no other stream gets one of them
  std::vector<dead_streams> dead_;       // never shrinks, since free lists refer to the names
  captured_order order_;
  // The captures in which live blocks were allocated. A block that was allocated outside a capture is not here.
  std::unordered_map<block const*, std::uint64_t> allocated_in_;
};

} // namespace gpumem::detail
