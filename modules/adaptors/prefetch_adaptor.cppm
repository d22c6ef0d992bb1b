// prefetch_adaptor: prefetches each block of managed memory to a device when the block is allocated.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:prefetch_adaptor;
import :adaptor_base;
import :cuda;
import :device;
import :prefetch;
import :std;
import :stream;

namespace gpumem {

/// Options of a prefetch_adaptor.
export struct prefetch_options {
  std::optional<memory_location> location = {}; ///< where blocks are moved to; none: the device of the upstream
};

namespace detail {

// Prefetches blocks and counts the prefetches. Any thread.
class prefetcher {
public:
  // `upstream`: the device of the adaptor's upstream. Throws std::invalid_argument if that is none and the options name
  // no location. Throws cuda_error.
  prefetcher(prefetch_options const& options, std::optional<device> upstream);

  // Enqueues the prefetch on the stream of `key`; if `key` stands for the host (allocate_sync), on a stream of this
  // object.
  void move(stream_key const& key, void const* pointer, std::size_t bytes) noexcept;
  std::uint64_t prefetches() const noexcept { return moved_.load(std::memory_order_relaxed); }
  std::uint64_t refused() const noexcept { return refused_.load(std::memory_order_relaxed); }

private:
  memory_location const location_;
  stream stream_;
  std::atomic<std::uint64_t> moved_{0};
  std::atomic<std::uint64_t> refused_{0};
};

template <class Upstream> class prefetching_state final : public adaptor_state<prefetching_state<Upstream>, Upstream> {
  using base = adaptor_state<prefetching_state, Upstream>;

public:
  prefetching_state(Upstream upstream, prefetch_options const& options)
      : base{std::move(upstream)}, blocks_{options, this->where()} {}
  prefetcher const& blocks() const noexcept { return blocks_; }

private:
  friend class adaptor_state<prefetching_state, Upstream>;
  void on_granted(stream_key const& key, void* pointer, std::size_t bytes) noexcept {
    blocks_.move(key, pointer, bytes);
  }

  prefetcher blocks_;
};

} // namespace detail

/// Prefetches each block to a device or to the host after the upstream has allocated it. The prefetch is enqueued on
/// the stream of the allocation. The adaptor is for upstreams of managed memory; blocks of other memory stay where they
/// are. allocate_sync has no stream; its prefetch is enqueued on a stream of the adaptor, and nothing waits for it.
///
/// If a prefetch is refused, the allocation succeeds, and refused() counts the prefetch. Each allocation costs one
/// driver call more. On a stream that gpumem made or adopted it costs a second call, which asks whether the stream
/// captures a graph. Copies are handles to the same adaptor; see adaptor_base. Any thread.
export template <class Upstream>
class prefetch_adaptor
    : public adaptor_base<prefetch_adaptor<Upstream>, detail::prefetching_state<Upstream>, Upstream> {
  using base = adaptor_base<prefetch_adaptor, detail::prefetching_state<Upstream>, Upstream>;

public:
  /// Throws std::invalid_argument if the options name no location and the upstream belongs to no device. Throws
  /// std::bad_alloc and cuda_error.
  explicit prefetch_adaptor(Upstream upstream, prefetch_options options = {})
      : base{new detail::prefetching_state<Upstream>{std::move(upstream), options}} {}

  /// Returns how many prefetches the driver has accepted. Any thread.
  std::uint64_t prefetches() const { return this->shared().blocks().prefetches(); }
  /// Returns how many prefetches were refused by the driver, or because the stream captures a graph. Any thread.
  std::uint64_t refused() const { return this->shared().blocks().refused(); }
};

} // namespace gpumem
