// Any resource, owned and erased, in the form that containers hold.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/services.hpp>
export module gpumem:any_memory;
import :adaptor_base;
import :cuda;
import :device;
import :error;
import :services;
import :shared_state;
import :std;
import :stream;

namespace gpumem {

namespace extend {
/// An owning, erased resource over memory of any accessibility, with gpumem's services: what `make_any_memory` makes.
/// Never empty, unless moved from.
export using any_memory = mr::any_resource<services>;
} // namespace extend

namespace detail {

// Makes a device current where a resource of somebody else's expects its own to be.
class held_device {
public:
  explicit held_device(std::optional<device> where) noexcept {
    try {
      if (where) scope_.emplace(*where);
    } catch (...) {
      // Only a lost device refuses, and the resource will be told so.
    }
  }

private:
  std::optional<device_guard> scope_;
};

// The state of a resource that is not gpumem's: the resource lives until its last handle is gone and its last block is
// freed, and its calls are made with the device current that was so when it was handed over.
template <class R> class held_state final : public adaptor_state<held_state<R>, R> {
  using base = adaptor_state<held_state, R>;

public:
  explicit held_state(R resource) : base{std::move(resource)} {}

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
    held_device const scope{this->where()};
    return base::try_allocate(key, bytes, alignment);
  }
  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept {
    held_device const scope{this->where()};
    base::deallocate(key, pointer, bytes, alignment);
  }

  void on_granted(stream_key const&, void*, std::size_t) noexcept {}
  void on_free(stream_key const&, void*, std::size_t) noexcept {}
  void on_failure(stream_key const&, std::size_t) noexcept {}
};

// A handle of it; equal where the resources are.
template <mr::resource R> class held_resource : public forwarding_base<held_resource<R>, held_state<R>, R> {
  using base = forwarding_base<held_resource, held_state<R>, R>;

public:
  explicit held_resource(R resource) : state_{new held_state<R>{std::move(resource)}} {}

  friend bool operator==(held_resource const& a, held_resource const& b) {
    return a.state_ == b.state_ || a.state_->upstream() == b.state_->upstream();
  }

private:
  friend base;
  held_state<R>& state() const noexcept { return *state_; }
  state_ptr<held_state<R>> state_;
};

// Whether work on a device can touch the memory; it cannot touch plain host memory, but for copies.
bool device_reaches(any_memory const& resource) noexcept;

} // namespace detail

namespace extend {
/// Takes any resource into the form that containers hold. Of gpumem's own, erased or not, it is another handle; what is
/// somebody else's is taken into a state that lives until the last of its blocks is freed, and is called with the
/// device current that is current now. What a reference refers to must outlive all of it. Throws std::invalid_argument
/// for an empty resource, std::bad_alloc, cuda_error. Any thread.
export template <mr::resource R> any_memory make_any_memory(R resource) {
  if constexpr (requires {
                  { resource.has_value() } -> std::convertible_to<bool>;
                }) {
    if (!resource.has_value()) throw std::invalid_argument{"gpumem: an empty resource, moved from, gives no memory"};
  }
  if constexpr (requires {
                  { resource.services() } -> std::same_as<services_handle>;
                }) {
    return any_memory{std::move(resource)};
  } else {
    // Services of another type than the one erased, which somebody's adaptor let through, would bypass that adaptor.
    if constexpr (mr::has_property<R, services> && std::convertible_to<R, any_memory> &&
                  requires { resource.type(); }) {
      if (find_services(resource).table) return any_memory{std::move(resource)};
    }
    return any_memory{detail::held_resource<R>{std::move(resource)}};
  }
}

} // namespace extend

} // namespace gpumem
