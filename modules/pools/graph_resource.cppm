// graph_resource: memory for captured graphs.
// SPDX-License-Identifier: Apache-2.0
module;
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>
export module gpumem:graph_resource;
import :cuda;
import :graph_memory;
import :pool_reports;
import :pool_resource;
import :pool_upstream;
import :resource;
import :shared_state;
import :std;
import :stream;

namespace gpumem {

namespace detail {
// Identifies the stream, and declares a use of the block on it. Throws what `identify` throws.
void record_graph_use(graph_memory& state, void* pointer, stream_ref stream);
} // namespace detail

/// Graph memory: memory that CUDA graphs use at each launch. This resource gives it out on capturing streams and on all
/// others. A pool also gives out graph memory, on capturing streams while a capture_scope is open. The memory comes
/// from the upstream in chunks. The upstream is normally a pool. That pool's limit then bounds the memory, and the pool
/// counts each chunk as one live block.
///
/// Reuse: a freed block immediately serves later requests of the stream that freed it, in this capture and in later
/// ones. As for each free, the caller orders that stream after all uses of the block, except those that `record_use`
/// declares. Another stream of the capture gets the memory if the dependencies of the graph's nodes order its next work
/// after the free and all declared uses. In a later capture the memory serves each stream, once the end of the first
/// capture is known. That does not hold if both graphs have the same handle, since they may be parts of one graph.
///
/// In three cases a freed block serves only the stream that freed it. In the first, the free was outside the capture of
/// the allocation. In the second, the free was on another thread than the newest request of the capture. In the third,
/// the host had no memory to note the order. No call records an event or waits on a stream. A request that finds no
/// memory ends as `exhausted`.
///
/// The host: if the host can access the memory, a request outside a capture waits on the host for its stream. So the
/// host may touch the block at once. No other call waits on the host.
///
/// Captures: a request may read the dependencies of the captured nodes. So another thread must not add work to the same
/// capture meanwhile, and no thread may replace the dependencies of a capturing stream. A free, `record_use` and
/// `try_deallocate` read the dependencies only on the thread that has made the newest request of the capture. So
/// another thread may free blocks at any time, as a garbage collector does.
///
/// Parts of graphs: use one graph memory for each body of a conditional node and for each child graph. The order of
/// their captures does not show the order in which they run. Where one graph is captured in parts, work of a stream in
/// a later part must depend on the stream's work in the earlier ones.
///
/// Launches: graphs that share one graph memory must never run at the same time, because their blocks share addresses.
/// A launch may overwrite what other graphs of the memory and earlier launches have left there, also in blocks that are
/// not freed. If no graph, stream or host reads such data after that launch, the graphs may be launched in any order.
/// Otherwise they are launched in the order of their captures, and the data is read before the first is launched again.
///
/// Ownership: an object is a handle; copies are the same memory and compare equal. No memory goes back to the upstream,
/// not even by `trim`, until the last handle is gone and the last block is freed. Then all memory goes back
/// immediately; the caller guarantees that all launches are complete and that none follows. So a program must keep a
/// handle as long as its graphs. Any thread.
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

  /// Declares that all uses of the block on this stream are enqueued. The block's free need not be ordered after them,
  /// but reuse is. After three kinds of uses the freed memory serves no request any more, unless the stream of the use
  /// frees the block. The first is a use outside the capture of the allocation. The second is a use declared on another
  /// thread than the newest request of the capture. The third is a use on a fifth stream. Throws cuda_error,
  /// std::invalid_argument, std::bad_alloc.
  void record_use(void* pointer, stream_ref stream) { detail::record_graph_use(*state_, pointer, stream); }

  /// Returns the block, live or free, that holds the address; nullopt if it is not in this memory.
  std::optional<block_info> find(void const* pointer) const { return state_->find(pointer); }

  /// Returns the requested bytes of the live block that starts at the address; nullopt if there is none.
  std::optional<std::size_t> bytes_of(void const* pointer) const noexcept {
    auto const found = find_owned(pointer);
    return found ? std::optional{found->bytes} : std::nullopt;
  }
  // For the C library: returns the requested bytes of the live block at the address, and the stream for which it was
  // allocated.
  std::optional<detail::owned_block> find_owned(void const* pointer) const noexcept {
    return has_state() && pointer ? state_->find_owned(pointer) : std::nullopt;
  }
  /// Frees a block in the order of the stream for which it was allocated. Returns the requested bytes; nullopt if no
  /// live block starts at the address.
  std::optional<std::size_t> try_deallocate(void* pointer) noexcept {
    return has_state() && pointer ? state_->try_deallocate(pointer) : std::nullopt;
  }
  /// Makes the peaks of the statistics count from now on.
  void reset_peaks() { state_->reset_peaks(); }
  /// Returns all memory, live and free, as ranges in the order of their addresses. Throws std::bad_alloc.
  std::vector<memory_range> memory_map() const { return state_->memory_map(); }

  /// Makes exactly the live ranges of an earlier memory_map() live again, at their addresses. Frees all other blocks.
  /// For programs that go back to an earlier state of their captures. The caller guarantees that the launches so far
  /// come before those of later captures. Throws std::invalid_argument for ranges that are not of this memory
  /// or overlap, std::bad_alloc; after an exception nothing has changed.
  void restore(std::span<memory_range const> live) { state_->restore(live); }

  /// Returns the upstream. A copy of the result is another handle to it.
  Upstream const& upstream() const {
    return static_cast<detail::held_upstream<Upstream> const&>(state_->upstream()).value;
  }
  // Returns what holds for the memory: the upstream says which processors can access it.
  static extend::memory_traits traits_of(detail::graph_memory& state) noexcept {
    return state.upstream().traits_of_pool();
  }

  friend bool operator==(graph_resource const& a, graph_resource const& b) noexcept { return a.state_ == b.state_; }

private:
  friend base;
  bool has_state() const noexcept { return state_.get() != nullptr; }
  detail::graph_memory& state() const noexcept { return *state_.get(); }
  state_ptr<detail::graph_memory> state_;
};

} // namespace gpumem
