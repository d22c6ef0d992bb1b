// observed_base: the base class of an adaptor that tells an observer object of each allocation and free. The adaptor
// simulator::checked derives from it.
// SPDX-License-Identifier: Apache-2.0
module;
#include <type_traits>
#include <utility>
export module gpumem:observed_base;
import :adaptor_base;
import :cuda;
import :std;
import :stream;
import :timeline_registry;

namespace gpumem::detail {

// `Observer` has two functions that do not throw, granted() and freed(), with the same four parameters: the stream's
// handle; a bool, which is true if the host and not a stream allocates or frees; the pointer; and the bytes. granted()
// is called after the upstream has allocated, freed() before it frees.
template <class Upstream, class Observer>
class observed_state final : public adaptor_state<observed_state<Upstream, Observer>, Upstream> {
  using base = adaptor_state<observed_state, Upstream>;

public:
  // While this object lives, each call asks the driver whether the stream captures. So a capture that was begun on a
  // raw handle is seen also where the resource would ask nothing.
  observed_state(Upstream upstream, Observer observer) : base{std::move(upstream)}, observer_{std::move(observer)} {
    timeline_registry::instance().begin_asking();
  }
  ~observed_state() { timeline_registry::instance().end_asking(); }

private:
  friend class adaptor_state<observed_state, Upstream>;
  void on_granted(stream_key const& key, void* pointer, std::size_t bytes) noexcept {
    observer_.granted(handle_of(key), key.is_host(), pointer, bytes);
  }
  void on_free(stream_key const& key, void* pointer, std::size_t bytes) noexcept {
    observer_.freed(handle_of(key), key.is_host(), pointer, bytes);
  }

  // Returns the handle of the stream that the key names. If the key has no handle, the stream may have been destroyed:
  // returns the handle that it had last.
  static CUstream handle_of(stream_key const& key) noexcept {
    return key.has_handle() ? key.handle() : key.timeline().handle();
  }

  Observer observer_;
};

/// The base class of an adaptor `Self` that tells `Observer` of each allocation and free.
export template <class Self, class Upstream, class Observer>
class observed_base : public adaptor_base<Self, observed_state<Upstream, Observer>, Upstream> {
  using base = adaptor_base<Self, observed_state<Upstream, Observer>, Upstream>;

protected:
  observed_base(Upstream upstream, Observer observer)
      : base{new observed_state<Upstream, Observer>{std::move(upstream), std::move(observer)}} {}
};

// A header cannot import this module, but it can name observed_base as the return type of this function.
// Argument-dependent lookup finds the function in a namespace of the upstream's base classes. The function is only
// declared.
export template <class Self, class Upstream, class Observer>
observed_base<Self, Upstream, Observer> observed_base_of(std::type_identity<Self>, Upstream const&, Observer const&);

} // namespace gpumem::detail
