// Sums the bytes of a request's parts.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
module gpumem:request_parts.impl;
import :request_parts;
import :stream;

namespace gpumem {

request_parts::request_parts(stream_key const& stream, std::size_t bytes, std::size_t alignment,
                             std::span<request_part> more) noexcept
    : first_{stream, bytes, alignment}, more_{more}, bytes_{bytes} {
  for (auto const& each : more)
    bytes_ += std::min(each.bytes, PTRDIFF_MAX - std::min<std::size_t>(bytes_, PTRDIFF_MAX));
}

} // namespace gpumem
