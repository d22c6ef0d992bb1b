// The chunks of a graph memory, from which captured graphs get blocks that stay valid for all launches.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:graph_chunks;
import :block;
import :error;
import :pool_upstream;
import :range_allocator;
import :std;

namespace gpumem::detail {

/// The chunks that a graph memory has from its upstream. All functions that are not static need the lock of the graph
/// memory.
export class graph_chunks {
public:
  /// Allocates a chunk that has room for a block of this size and alignment. The chunk begins 256 bytes after the start
  /// of the upstream's block, so that no block in the chunk has the address of the upstream's block. Called without a
  /// lock, because the upstream may be slow.
  static expected<chunk, failure> draw(pool_upstream& upstream, std::size_t bytes, std::size_t alignment) noexcept;
  /// Gives a chunk back to the upstream. Called without a lock.
  static void give_back(pool_upstream& upstream, chunk const& drawn) noexcept;
  /// Returns the bytes that the upstream has given for a chunk.
  static std::size_t bytes_from_upstream(chunk const& drawn) noexcept;

  /// Adds a chunk, whose memory becomes a free range. Throws std::bad_alloc, and then adds nothing.
  void add(chunk const& drawn, range_allocator& ranges);
  /// Returns the block that holds the address; null if no chunk does.
  block* find_containing(void const* pointer) const noexcept;
  /// Visits every chunk.
  template <class Visit> void visit(Visit visitor) const {
    for (auto const& each : chunks_) visitor(*each);
  }

private:
  std::vector<std::unique_ptr<chunk>> chunks_;
};

} // namespace gpumem::detail
