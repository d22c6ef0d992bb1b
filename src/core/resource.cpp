// Reports a free on a stream that cannot be identified.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
module gpumem:resource.impl;
import :resource;
import :misuse;

namespace gpumem::detail {

void report_bad_stream(void* pointer, std::size_t bytes) noexcept {
  report_misuse({misuse::kind::bad_stream, pointer, bytes, 0, 0, "gpumem resource"});
}

} // namespace gpumem::detail
