// prefetch_adaptor: enqueues prefetches and counts them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <cstddef>
#include <optional>
#include <stdexcept>
module gpumem:prefetch_adaptor.impl;
import :prefetch_adaptor;
import :cuda;
import :device;
import :prefetch;
import :stream;

namespace gpumem::detail {
namespace {

memory_location target(prefetch_options const& options, std::optional<device> upstream) {
  if (options.location) return *options.location;
  if (upstream) return *upstream;
  throw std::invalid_argument{"gpumem: prefetch_options: `location` is not set, and the upstream belongs to no device"};
}

device device_for_stream(memory_location location, std::optional<device> upstream) {
  if (upstream) return *upstream;
  return location.is_host() ? device::current() : device{location.ordinal()};
}

} // namespace

prefetcher::prefetcher(prefetch_options const& options, std::optional<device> upstream)
    : location_{target(options, upstream)}, stream_{device_for_stream(location_, upstream)} {}

void prefetcher::move(stream_key const& key, void const* pointer, std::size_t bytes) noexcept {
  auto const result = enqueue_prefetch(key.identity().is_host() ? stream_.key() : key, pointer, bytes, location_);
  (result == CUDA_SUCCESS ? moved_ : refused_).fetch_add(1, std::memory_order_relaxed);
}

} // namespace gpumem::detail
