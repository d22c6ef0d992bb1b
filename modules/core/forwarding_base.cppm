// The base of resources that get their memory from another resource, their upstream.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:forwarding_base;
import :cuda;
import :resource;
import :std;

namespace gpumem::detail {

template <class Self, class State, bool Device, bool Host> struct accessible_base {
  using type = resource_base<Self, State>;
};
template <class Self, class State> struct accessible_base<Self, State, true, false> {
  using type = resource_base<Self, State, mr::device_accessible>;
};
template <class Self, class State> struct accessible_base<Self, State, false, true> {
  using type = resource_base<Self, State, mr::host_accessible>;
};
template <class Self, class State> struct accessible_base<Self, State, true, true> {
  using type = resource_base<Self, State, mr::device_accessible, mr::host_accessible>;
};

// The properties of an upstream. Each static_assert names the function that a type lacks. A constraint of a class would
// not do that: where the compiler deduces the class's arguments, its message does not say which part of the constraint
// failed.
template <class Upstream> struct checked_upstream {
  static_assert(mr::has_allocate<Upstream>, "gpumem: the upstream is no resource: it lacks the function "
                                            "void* allocate(stream_ref, std::size_t bytes, std::size_t alignment)");
  static_assert(mr::has_deallocate<Upstream>,
                "gpumem: the upstream is no resource: it lacks the function "
                "void deallocate(stream_ref, void*, std::size_t bytes, std::size_t alignment)");
  static_assert(mr::has_allocate_sync<Upstream>, "gpumem: the upstream is no resource: it lacks the function "
                                                 "void* allocate_sync(std::size_t bytes, std::size_t alignment)");
  static_assert(mr::has_deallocate_sync<Upstream>,
                "gpumem: the upstream is no resource: it lacks the function "
                "void deallocate_sync(void*, std::size_t bytes, std::size_t alignment)");
  static_assert(mr::has_equality<Upstream>, "gpumem: the upstream is no resource: it lacks operator==");
  static constexpr bool is_resource = mr::resource<Upstream>;
  static constexpr bool for_device = mr::has_property<Upstream, mr::device_accessible>;
  static constexpr bool for_host = mr::has_property<Upstream, mr::host_accessible>;
};

/// The resource_base that has the same accessibility properties as the upstream.
export template <class Self, class State, class Upstream>
using forwarding_base =
    accessible_base<Self, State, checked_upstream<Upstream>::for_device, checked_upstream<Upstream>::for_host>::type;

} // namespace gpumem::detail
