// aligned_adaptor: aligns blocks to more bytes than their callers request.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:aligned_adaptor;
import :adaptor_base;
import :cuda;
import :error;
import :std;
import :stream;
import :waiter;

namespace gpumem {

/// Options of an aligned_adaptor.
export struct aligned_options {
  std::size_t alignment = 256; ///< in bytes, a power of two: the least alignment of blocks
  std::size_t threshold = 0;   ///< in bytes; smaller requests keep the alignment that their callers ask for
};

namespace detail {

// Returns the options. Throws std::invalid_argument if the alignment exceeds PTRDIFF_MAX or is no power of two.
aligned_options checked_alignment(aligned_options const& options);

template <class Upstream> class aligning_state final : public adaptor_state<aligning_state<Upstream>, Upstream> {
  using base = adaptor_state<aligning_state, Upstream>;

public:
  aligning_state(Upstream upstream, aligned_options const& options)
      : base{std::move(upstream)}, options_{checked_alignment(options)} {}

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
    return base::try_allocate(key, bytes, alignment_of(bytes, alignment));
  }
  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept {
    base::deallocate(key, pointer, bytes, alignment_of(bytes, alignment));
  }

  // Passes a request that may wait to the upstream, after raising the alignment of each of its parts. A request for a
  // turn asks for no memory: it only waits for its turn in the upstream's queue. So its alignment stays as it is.
  bool admit(waiter& item) noexcept
    requires requires(base& b) { b.admit(item); }
  {
    raise(item);
    return base::admit(item);
  }
  bool is_too_large(waiter& item) noexcept {
    raise(item);
    return base::is_too_large(item);
  }

  aligned_options const& options() const noexcept { return options_; }

private:
  void raise(waiter& item) const noexcept {
    for (std::size_t i = 0; i < item.parts() && !item.asks_for_turn(); ++i) {
      auto& one = item.part(i);
      one.alignment = alignment_of(one.bytes, one.alignment);
    }
  }
  std::size_t alignment_of(std::size_t bytes, std::size_t requested) const noexcept {
    return bytes < options_.threshold ? requested : std::max(requested, options_.alignment);
  }
  aligned_options const options_;
};

} // namespace detail

/// Aligns each block of at least `threshold` bytes to `alignment` bytes, or to more if its caller asks for more. The
/// upstream may be of another library. Copies are handles to the same adaptor. Any thread.
export template <class Upstream>
class aligned_adaptor : public adaptor_base<aligned_adaptor<Upstream>, detail::aligning_state<Upstream>, Upstream> {
  using base = adaptor_base<aligned_adaptor, detail::aligning_state<Upstream>, Upstream>;

public:
  /// Throws std::bad_alloc, and std::invalid_argument if the alignment exceeds PTRDIFF_MAX or is no power of two.
  explicit aligned_adaptor(Upstream upstream, aligned_options options = {})
      : base{new detail::aligning_state<Upstream>{std::move(upstream), options}} {}

  /// Returns the alignment of the options, in bytes.
  std::size_t alignment() const { return this->shared().options().alignment; }
  /// Returns the threshold of the options, in bytes.
  std::size_t threshold() const { return this->shared().options().threshold; }
};

} // namespace gpumem
