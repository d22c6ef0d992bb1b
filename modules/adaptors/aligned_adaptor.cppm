// aligned_adaptor: aligns blocks to more than their callers ask for.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <unordered_map>
export module gpumem:aligned_adaptor;
import :adaptor_base;
import :cuda;
import :error;
import :std;
import :stream;
import :sync;
import :waiter;

namespace gpumem {

/// Options of an aligned_adaptor.
export struct aligned_options {
  std::size_t alignment = 256; ///< bytes, a power of two: blocks are aligned at least so
  std::size_t threshold = 0;   ///< smaller requests keep the alignment for which their callers ask
};

namespace detail {

// Aligns blocks of an upstream that aligns to 256 bytes only, as resources of other libraries do: requests more bytes
// and returns an aligned pointer inside. Any thread.
class inner_alignment {
public:
  static constexpr std::size_t natural = 256;

  // Returns the bytes to request for a block of `bytes`.
  static std::size_t padded(std::size_t bytes, std::size_t alignment) noexcept {
    return alignment > natural ? bytes + (alignment - natural) : bytes;
  }
  // Returns the aligned pointer in a block that begins at `base`; null if the host has no memory to record it.
  void* align(void* base, std::size_t alignment) noexcept;
  // Returns the pointer that the upstream gave, and forgets the block.
  void* base_of(void* pointer) noexcept;

private:
  sync::mutex mutex_;
  std::unordered_map<void*, void*> bases_ __attribute__((guarded_by(mutex_))); // by aligned pointer, where they differ
};

// Throws std::invalid_argument.
aligned_options checked_alignment(aligned_options const& options);

template <class Upstream> class aligning_state final : public adaptor_state<aligning_state<Upstream>, Upstream> {
  using base = adaptor_state<aligning_state, Upstream>;

public:
  aligning_state(Upstream upstream, aligned_options const& options)
      : base{std::move(upstream)}, options_{checked_alignment(options)} {}

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
    auto const wanted = alignment_of(bytes, alignment);
    if (this->access().is_gpumem()) return base::try_allocate(key, bytes, wanted);
    if (wanted - 1 > PTRDIFF_MAX - bytes) return refusal(bytes, outcome::too_large);
    auto const padded = inner_alignment::padded(bytes, wanted);
    auto const given = base::try_allocate(key, padded, inner_alignment::natural);
    if (!given || wanted <= inner_alignment::natural) return given;
    if (auto* const aligned = inside_.align(*given, wanted)) return aligned;
    base::deallocate(key, *given, padded, inner_alignment::natural);
    return refusal(bytes, outcome::exhausted);
  }

  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept {
    auto const wanted = alignment_of(bytes, alignment);
    if (this->access().is_gpumem()) return base::deallocate(key, pointer, bytes, wanted);
    auto* const given = wanted > inner_alignment::natural ? inside_.base_of(pointer) : pointer;
    base::deallocate(key, given, inner_alignment::padded(bytes, wanted), inner_alignment::natural);
  }

  // Sets the alignment of a request that waits before the upstream sees it.
  bool admit(waiter& item) noexcept
    requires requires(base& b) { b.admit(item); }
  {
    for (std::size_t i = 0; i < item.parts() && !item.asks_for_turn(); ++i) {
      auto& one = item.part(i);
      one.alignment = alignment_of(one.bytes, one.alignment);
    }
    return base::admit(item);
  }

  aligned_options const& options() const noexcept { return options_; }

private:
  friend class adaptor_state<aligning_state, Upstream>;
  void on_granted(stream_key const&, void*, std::size_t) noexcept {}
  void on_free(stream_key const&, void*, std::size_t) noexcept {}
  void on_failure(stream_key const&, std::size_t) noexcept {}

  std::size_t alignment_of(std::size_t bytes, std::size_t asked) const noexcept {
    return bytes < options_.threshold ? asked : std::max(asked, options_.alignment);
  }
  static expected<void*, failure> refusal(std::size_t bytes, outcome why) noexcept {
    return unexpected<failure>{failure{why, 0, bytes}};
  }

  aligned_options const options_;
  inner_alignment inside_;
};

} // namespace detail

/// Aligns each block of at least `threshold` bytes to `alignment` bytes, or to more if its caller asks for more. The
/// upstream aligns the block if it is gpumem's. A resource of another library may align to 256 bytes only: for more,
/// the adaptor requests up to `alignment` - 256 bytes more and returns a pointer inside that block. A handle; see
/// adaptor_base. Any thread.
export template <mr::resource Upstream>
class aligned_adaptor : public adaptor_base<aligned_adaptor<Upstream>, detail::aligning_state<Upstream>, Upstream> {
  using base = adaptor_base<aligned_adaptor, detail::aligning_state<Upstream>, Upstream>;

public:
  /// Throws std::invalid_argument if the alignment is no power of two or more than PTRDIFF_MAX, and std::bad_alloc.
  explicit aligned_adaptor(Upstream upstream, aligned_options options = {})
      : base{new detail::aligning_state<Upstream>{std::move(upstream), options}} {}

  std::size_t alignment() const noexcept { return this->shared().options().alignment; }
  std::size_t threshold() const noexcept { return this->shared().options().threshold; }
};

} // namespace gpumem
