// The base of resources that get their memory from another resource.
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
/// The resource_base with the accessibility properties of the upstream, no more and no less.
export template <class Self, class State, class Upstream>
using forwarding_base = accessible_base<Self, State, mr::has_property<Upstream, mr::device_accessible>,
                                        mr::has_property<Upstream, mr::host_accessible>>::type;

/// Returns whether memory of the upstream comes in stream order; true also without a member `stream_ordered`.
export template <class Upstream> consteval bool is_stream_ordered() {
  if constexpr (requires {
                  { Upstream::stream_ordered } -> std::convertible_to<bool>;
                }) {
    return Upstream::stream_ordered;
  } else {
    return true;
  }
}

} // namespace gpumem::detail
