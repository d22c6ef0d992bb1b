// The module gpumem.device_heap: memory of a pool from which kernels allocate.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <gpumem/device_heap.hpp>

#include <atomic>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cuda.h>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
export module gpumem.device_heap;
import gpumem;
import gpumem.growable;

export namespace gpumem {
using gpumem::device_heap_options;
using gpumem::device_heap_statistics;
using gpumem::heap_view;
} // namespace gpumem

namespace gpumem::detail {

/// The memory of one device_heap. Any thread. The mutex is not held while pages are freed, since a free can resume a
/// coroutine that calls the heap.
export class heap_state {
public:
  heap_state(growable_buffer data, growable_buffer metadata, stream_ref stream, device_heap_options const& options);

  inline std::size_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }
  inline std::size_t reserved() const noexcept { return reserved_; }
  inline growable_buffer& data() noexcept { return data_; }
  inline growable_buffer& metadata() noexcept { return metadata_; }
  inline heap_view view() const noexcept { return {data_.data(), metadata_.data(), reserved_, bytes()}; }
  inline std::size_t metadata_bytes(std::size_t bytes) const noexcept {
    return layout_.end(bytes / heap_detail::slab_bytes);
  }

  // Counts a growth; end_growth() must follow. Throws cuda_error in a forked child.
  void begin_growth();
  // Gives pages back that growths which failed have left, unless another growth runs.
  void end_growth(stream_ref stream) noexcept;
  // Lets kernels use memory up to `bytes`, in the order of the stream. The buffers have grown.
  void publish(stream_ref stream, std::size_t bytes);
  expected<void, failure> try_grow(stream_ref stream, std::size_t bytes) noexcept;
  void reset(stream_ref stream);
  task<device_heap_statistics> statistics(stream_ref stream, completion_options options);

private:
  // Enqueues a copy of the metadata that the statistics need, into memory that the host can read. Sets `slabs` to the
  // number of slabs that it covers.
  buffer copy_metadata(stream_ref stream, std::size_t& slabs);
  void shrink(growable_buffer const& part, stream_ref stream);

  growable_buffer data_, metadata_;
  std::size_t const reserved_;
  heap_detail::layout const layout_;
  std::atomic<std::size_t> bytes_{0};
  sync::mutex mutex_;
  std::size_t growths_ GPUMEM_GUARDED_BY(mutex_) = 0; // that run
  std::optional<pool_resource<pinned_resource>> copies_ GPUMEM_GUARDED_BY(mutex_);
};

// The time of one growth.
export class heap_growth {
public:
  heap_growth(heap_state& heap, stream_ref stream) : heap_{heap}, stream_{stream} { heap_.begin_growth(); }
  heap_growth(heap_growth const&) = delete;
  heap_growth& operator=(heap_growth const&) = delete;
  ~heap_growth() { heap_.end_growth(stream_); }

private:
  heap_state& heap_;
  stream_ref stream_;
};

// The size is a multiple of the unit, unless the heap cannot have it.
inline std::size_t size_of_growth(heap_state const& heap, std::size_t bytes) noexcept {
  return bytes > heap.reserved() ? bytes : heap_detail::round_to_units(bytes);
}

template <extend::stoppable_token Token>
task<> grow_heap(heap_state& heap, stream_ref stream, std::size_t bytes, acquire_options options, Token token) {
  heap_growth const growth{heap, stream};
  if (bytes <= heap.reserved()) // otherwise the growth of the data throws
    co_await heap.metadata().grow_to(stream, heap.metadata_bytes(bytes), options, token);
  co_await heap.data().grow_to(stream, bytes, options, token);
  heap.publish(stream, bytes);
}

} // namespace gpumem::detail

export namespace gpumem {

/// Memory of a pool from which kernels allocate, by the functions of view(). It reserves addresses for the most that it
/// can ever have, and borrows pages of the pool, which count in the pool's limit and statistics. It grows between
/// launches and beside kernels, at the same addresses. Kernels use it in all streams and graphs of the pool's device.
///
/// Stream order: the constructor, a growth and reset() take effect in the order of the stream that is passed. Work of
/// other streams is ordered after them by the caller. No call waits on the host for a stream. Growth and statistics on
/// a stream that captures a graph fail with outcome::capture_unsupported; a captured reset() is part of the graph.
///
/// Ownership: move-only. The destructor frees the memory in the order of the stream that was passed last, which must
/// live until then; all work on other streams must be ordered before. The heap keeps the pool's memory alive, and must
/// live until its growths and statistics have ended. Any thread; no call may run during a move or the destructor.
class device_heap {
public:
  /// Makes an empty heap, which has no memory. Its functions throw std::invalid_argument, as after a move from it.
  device_heap() noexcept = default;
  /// Reserves addresses, and grows to `options.bytes` without a wait. `pool`: over pages. Throws std::invalid_argument
  /// for wrong options and a pool without pages, cuda_error, std::bad_alloc, and what the growth of a growable_buffer
  /// throws.
  template <class Pool>
    requires std::same_as<typename Pool::state_type, detail::pool_state>
  device_heap(Pool const& pool, stream_ref stream, device_heap_options const& options) {
    auto const made = heap_detail::checked(options);
    auto const layout = heap_detail::make_layout(made.reserve);
    growable_buffer data{pool, stream, {.reserve = made.reserve, .initial = made.bytes, .name = made.name}};
    growable_buffer metadata{pool,
                             stream,
                             {.reserve = layout.end(made.reserve / heap_detail::slab_bytes),
                              .initial = layout.end(made.bytes / heap_detail::slab_bytes),
                              .name = made.name + " metadata"}};
    state_ = std::make_unique<detail::heap_state>(std::move(data), std::move(metadata), stream, made);
  }

  /// Returns the heap for kernels, to which it is passed by value. It stays valid when the heap grows, is reset, or is
  /// moved. Throws std::invalid_argument if the heap is empty.
  heap_view view() const { return live().view(); }
  /// Returns the size in bytes, a multiple of 2 MiB.
  std::size_t bytes() const noexcept { return state_ ? state_->bytes() : 0; }
  /// Returns the reserved addresses, in bytes: the most that the heap can ever have.
  std::size_t reserved_addresses() const noexcept { return state_ ? state_->reserved() : 0; }
  /// Returns whether the heap has a pool: false if it was made empty, and after a move from it.
  explicit operator bool() const noexcept { return state_ != nullptr; }

  /// Returns a task that makes the size at least `bytes`, rounded up to 2 MiB. It begins when it is awaited. If the
  /// pool lacks memory, it waits in the pool's line as an acquire_awaitable does. Kernels may run meanwhile. After a
  /// failure the heap is as it was, but for a failure of the driver in the last step. Throws what `grow_to` of a
  /// growable_buffer throws. Outside a coroutine use sync_wait.
  template <extend::stoppable_token Token = extend::never_stop_token>
  task<> grow_to(stream_ref stream, std::size_t bytes, acquire_options const& options = {}, Token token = {}) {
    return detail::grow_heap(live(), stream, detail::size_of_growth(live(), bytes), options, std::move(token));
  }
  /// Makes the size at least `bytes` now, or returns the failure; then the heap is as it was.
  expected<void, failure> try_grow_to(stream_ref stream, std::size_t bytes) noexcept {
    if (state_) return state_->try_grow(stream, bytes);
    return unexpected<failure>{{outcome::invalid_argument, static_cast<int>(broken_rule::moved_from), bytes}};
  }

  /// Frees all blocks, and sets the counts of the statistics to 0. The caller orders the stream after all kernels that
  /// use the heap, and those that use it later after the stream. A reset in a graph frees the blocks at each launch.
  /// Capture it again after a growth: otherwise kernels cannot use the memory of the growth after such a launch. Throws
  /// std::invalid_argument and cuda_error; after a failure call it again.
  void reset(stream_ref stream) { live().reset(stream); }

  /// Returns a task that tells what kernels have allocated, in the order of the stream. It begins when it is awaited:
  /// it then copies the states of the slabs to the host, and completes once the copy is complete. The numbers of
  /// blocks are exact if no kernel of another stream uses the heap meanwhile. Throws what completion() throws, and
  /// std::bad_alloc. Outside a coroutine use sync_wait.
  task<device_heap_statistics> statistics(stream_ref stream, completion_options const& options = {}) {
    return live().statistics(stream, options);
  }

private:
  [[noreturn]] static void throw_empty();
  detail::heap_state& live() const {
    if (!state_) [[unlikely]]
      throw_empty();
    return *state_;
  }

  std::unique_ptr<detail::heap_state> state_;
};

} // namespace gpumem
