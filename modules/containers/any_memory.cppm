// any_memory: the owning, type-erased resource that containers hold.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/services.hpp>
export module gpumem:any_memory;
import :adaptor_base;
import :cuda;
import :device;
import :error;
import :resource;
import :services;
import :shared_state;
import :std;
import :stream;

namespace gpumem {

namespace extend {
/// An owning, type-erased resource with gpumem's services (functions beyond CCCL's). The type does not say whether the
/// host, a device or both can access the memory. make_any_memory() makes one. It is empty only if it was moved from.
export using any_memory = mr::any_resource<services>;
} // namespace extend

namespace detail {

// Holds a resource of another library. It is a state: an object that several handles share, here the copies of one
// any_memory. The state and its resource live until the last handle is gone and the last block is freed. While a
// function of the resource runs, the device that was current in make_any_memory() is current.
template <class R> class held_state final : public adaptor_state<held_state<R>, R> {
  using base = adaptor_state<held_state, R>;

public:
  explicit held_state(R resource) : base{std::move(resource), false} {}

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
    held_device const scope{this->where()};
    return base::try_allocate(key, bytes, alignment);
  }
  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept {
    held_device const scope{this->where()};
    base::deallocate(key, pointer, bytes, alignment);
  }
};

// A handle to a held_state. Two handles are equal if their resources are equal.
template <mr::resource R> class held_resource : public forwarding_base<held_resource<R>, held_state<R>, R> {
  using base = forwarding_base<held_resource, held_state<R>, R>;

public:
  explicit held_resource(R resource) : state_{new held_state<R>{std::move(resource)}} {}

  static memory_traits traits_of(held_state<R>& state) noexcept { return traits_of_resource(state.upstream()); }

  friend bool operator==(held_resource const& a, held_resource const& b) {
    return a.state_ == b.state_ || a.state_->upstream() == b.state_->upstream();
  }

private:
  friend base;
  bool has_state() const noexcept { return state_.get() != nullptr; }
  held_state<R>& state() const noexcept { return *state_.get(); }
  state_ptr<held_state<R>> state_;
};

// Returns whether kernels of a device can access the memory of the resource. Returns false for plain host memory, which
// work on a stream reaches only by copies of the driver and by host functions.
bool device_reaches(any_memory const& resource);

} // namespace detail

namespace extend {
/// Converts any resource to the form that containers hold. A gpumem resource, type-erased or not, gives another handle
/// to its state (the object that all its handles share). A resource of another library is moved into a new state, which
/// lives until the last of its blocks is freed. If that resource is only a reference, its target must outlive the
/// state. While later calls to that resource run, the device that is current in this call is current. Throws
/// std::invalid_argument for an empty resource, std::bad_alloc, cuda_error. Any thread.
export template <mr::resource R> any_memory make_any_memory(R resource) {
  if constexpr (requires {
                  { resource.has_value() } -> std::convertible_to<bool>;
                }) {
    if (!resource.has_value()) throw std::invalid_argument{"gpumem: the resource is empty; was it moved from?"};
  }
  if constexpr (requires {
                  { resource.services() } -> std::same_as<services_handle>;
                }) {
    return any_memory{std::move(resource)};
  } else {
    // A resource that is type-erased already is converted without a held_resource only if find_services() finds
    // services that belong to the type that it holds. An adaptor of another library may forward the services of its
    // upstream instead; calls to those would bypass the adaptor.
    if constexpr (mr::has_property<R, services> && std::convertible_to<R, any_memory> &&
                  requires { resource.type(); }) {
      if (find_services(resource).table) return any_memory{std::move(resource)};
    }
    return any_memory{detail::held_resource<R>{std::move(resource)}};
  }
}

} // namespace extend

} // namespace gpumem
