// Finds aligned pointers inside larger blocks. Reports frees on unknown streams, and through moved-from handles.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
module gpumem:resource.impl;
import :resource;
import :error;
import :misuse;
import :services;

namespace gpumem::detail {

void report_bad_stream(char const* resource, void* pointer, failure const& failure) noexcept {
  auto what = misuse::kind::bad_stream;
  if (failure.reason == outcome::invalid_argument) {
    bool const moved = failure.code == static_cast<int>(broken_rule::moved_from_stream);
    what = moved ? misuse::kind::moved_from_stream : misuse::kind::other_device;
  }
  report_misuse({what, pointer, failure.requested, 0, 0, resource ? resource : "gpumem resource"});
}

void report_moved_from(void* pointer, std::size_t bytes) noexcept {
  report_misuse({misuse::kind::moved_from, pointer, bytes, 0, 0, "gpumem resource"});
}

} // namespace gpumem::detail
