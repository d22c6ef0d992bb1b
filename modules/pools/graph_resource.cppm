// graph_resource: memory for captured graphs.
// SPDX-License-Identifier: Apache-2.0
module;
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>
export module gpumem:graph_resource;
import :block_info;
import :cuda;
import :forwarding_base;
import :graph_memory;
import :pool_base;
import :resource;
import :shared_state;
import :std;
import :stream;

namespace gpumem {

namespace detail {
// Identifies the stream of a use. Throws what `identify` throws.
void record_graph_use(graph_memory& state, void* pointer, stream_ref stream);
} // namespace detail

/// Graph memory: memory that CUDA graphs use at each launch. It is given out inside a capture, by this resource or,
/// while a capture_scope is open, by the pool; also on streams that do not capture. It is drawn from the upstream,
/// normally a pool: the limit is the pool's, and the pool counts each chunk as one live block.
///
/// Reuse: a freed block serves later requests of the stream on which it was freed, at once, in this capture and in
/// later ones. The order between that stream and all uses is the caller's, as for each free, but for uses that
/// `record_use` declares. Another stream of the capture gets the memory if the dependencies of the graph's nodes order
/// its next work after the free and all declared uses. Such memory serves each stream of a later capture too, once the
/// end of the first capture is known and unless both graphs have the same handle. Memory that was freed outside the
/// capture in which it was allocated serves no other stream. The same holds for a free by another thread than the one
/// that has made the newest request of the capture. The host's lack of memory at a free has the same effect. Nothing
/// records an event or waits, also on the host, and requests never wait: without memory they are `exhausted`.
///
/// Captures: a request may read the dependencies of the captured nodes. So another thread must not add work to the same
/// capture meanwhile, and no thread may replace the dependencies of a capturing stream. A free, `record_use` and
/// `try_deallocate` read them only on the thread that has made the newest request of the capture. So another thread may
/// free blocks at any time, as a garbage collector does.
///
/// Parts of graphs: use one graph memory for each body of a conditional node and for each child graph. Their launches
/// have an order that their captures do not show. Where one graph is captured in parts, work of a stream in a later
/// part must depend on the stream's work in the earlier ones.
///
/// Launches: graphs that share one graph memory must be launched in the order of their captures and never at the same
/// time, because their blocks share addresses.
///
/// Ownership: a handle; copies are the same memory and compare equal. Nothing goes back to the upstream, also by
/// `trim`, until the last handle is gone and the last block is freed. Then all of it goes back at once; the caller
/// guarantees that all launches are complete and that none follows. A program keeps a handle as long as its graphs.
/// Any thread.
export template <class Upstream>
class graph_resource : public detail::forwarding_base<graph_resource<Upstream>, detail::graph_memory, Upstream> {
  using base = detail::forwarding_base<graph_resource, detail::graph_memory, Upstream>;

public:
  /// The memory may be used in the order of the stream on which it was allocated.
  static constexpr bool stream_ordered = true;

  /// Allocates nothing yet. A request of up to 1 MiB gets memory from the upstream in chunks of 2 MiB, a larger one in
  /// a chunk of its size. Throws std::invalid_argument for an upstream that was moved from, and std::bad_alloc.
  explicit graph_resource(Upstream upstream)
      : state_{new detail::graph_memory{std::make_unique<detail::held_upstream<Upstream>>(std::move(upstream))}} {}

  using base::deallocate;
  /// Frees a block whose size the caller does not know.
  void deallocate(stream_ref stream, void* pointer) noexcept {
    if (!has_state()) return detail::report_moved_from(pointer, 0);
    detail::deallocate_unsized(state(), stream, pointer);
  }

  /// Declares that all uses of the block on this stream are enqueued. Its free need not be ordered after them; reuse
  /// is. After some uses the memory serves no request any more, unless the same stream frees the block. These are uses
  /// outside the capture in which it was allocated, those that another thread declares, and one on a fifth stream.
  /// Throws cuda_error, std::invalid_argument, std::bad_alloc.
  void record_use(void* pointer, stream_ref stream) { detail::record_graph_use(*state_, pointer, stream); }

  /// Returns the block, live or free, that holds the address; nullopt if it is not in this memory.
  std::optional<block_info> find(void const* pointer) const { return state_->find(pointer); }

  /// As pool_resource::bytes_of.
  std::optional<std::size_t> bytes_of(void const* pointer) const noexcept {
    auto const found = find_owned(pointer);
    return found ? std::optional{found->bytes} : std::nullopt;
  }
  // The same for the C library, with the stream for which the block was allocated.
  std::optional<detail::owned_block> find_owned(void const* pointer) const noexcept {
    return has_state() && pointer ? state_->find_owned(pointer) : std::nullopt;
  }
  /// As pool_resource::try_deallocate.
  std::optional<std::size_t> try_deallocate(void* pointer) noexcept {
    return has_state() && pointer ? state_->try_deallocate(pointer) : std::nullopt;
  }
  /// As pool_resource::reset_peaks.
  void reset_peaks() { state_->reset_peaks(); }
  /// As pool_resource::memory_map.
  std::vector<memory_range> memory_map() const { return state_->memory_map(); }

  /// Makes exactly the live ranges of an earlier memory_map() live again, at their addresses. Frees all other blocks.
  /// For programs that go back to an earlier state of their captures. The caller guarantees that the launches so far
  /// come before those of later captures. Throws std::invalid_argument for ranges that are not of this memory,
  /// std::bad_alloc; then some of the blocks may be missing.
  void restore(std::span<memory_range const> live) { state_->restore(live); }

  /// Returns the upstream; another handle to it is a copy.
  Upstream const& upstream() const {
    return static_cast<detail::held_upstream<Upstream> const&>(state_->upstream()).value;
  }

  friend bool operator==(graph_resource const& a, graph_resource const& b) noexcept { return a.state_ == b.state_; }

private:
  friend base;
  bool has_state() const noexcept { return state_.get() != nullptr; }
  detail::graph_memory& state() const noexcept { return *state_.get(); }
  state_ptr<detail::graph_memory> state_;
};

} // namespace gpumem
