// Tells whether a type of resources allocates in stream order.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream_ordered;
import :std;

namespace gpumem::detail {

/// Returns whether the resource allocates in stream order: its constant `stream_ordered`, or true if it has none.
export template <class Resource> consteval bool is_stream_ordered() {
  if constexpr (requires {
                  { Resource::stream_ordered } -> std::convertible_to<bool>;
                }) {
    return Resource::stream_ordered;
  } else {
    return true;
  }
}

} // namespace gpumem::detail
