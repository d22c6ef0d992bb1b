// Calls the upstream of a pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <base/tuning.hpp>
#include <cstddef>
#include <cstdint>
#include <cuda.h>
#include <memory>
#include <optional>
module gpumem:pool_upstream.impl;
import :pool_upstream;
import :block;
import :cache_limits;
import :cuda;
import :cuda_resource;
import :device;
import :error;
import :page_store;
import :pool_shard;
import :services;
import :stream;
import :virtual_pages;

namespace gpumem::detail {
namespace {

// The first address range of a shard has this part of the most addresses. A further range has this many times the
// addresses of the one before.
inline constexpr std::size_t first_fraction = 32, address_growth = 8;

} // namespace

// The type of the upstream may be erased, so the pool asks the value.
void pool_upstream::attach(services_handle services) noexcept {
  calls_.attach(services);
  traits_ = traits_of_services(services);
  home_ = services.table->try_allocate_behind ? -1 : services.table->device(services.state);
}

// A resource of another library may allocate and free on the current device. The library thread frees too.
held_device pool_upstream::make_home_current() const noexcept {
  return held_device{home_ < 0 ? std::nullopt : std::optional{gpumem::device{home_}}};
}

std::unique_ptr<address_range> pool_upstream::reserve_addresses(pool_shard& owner, std::size_t last, std::size_t limit,
                                                                std::size_t least) const {
  if (auto const set = pages_->options().address_space; set != 0)
    return std::make_unique<address_range>(owner, pages_, set, set);
  auto const largest = pages_->most_addresses();
  auto const usual = largest / first_fraction;
  bool const limited = limit != 0 && limit < usual / tuning::addresses_per_byte;
  auto const first = limited ? limit * tuning::addresses_per_byte : usual;
  auto most = last == 0 ? first : std::min(last, largest / address_growth) * address_growth;
  while (most < largest && most / tuning::addresses_per_byte < least)
    most = std::min(most, largest / address_growth) * address_growth;
  most = std::max(most, least);
  return std::make_unique<address_range>(owner, pages_, most, least != 0 ? least : most);
}

bool pool_upstream::chunks_serve_as_pages() const noexcept {
  return !needs_pages(pages_->options()) && pages_->rights().size() == 1;
}

std::uint64_t pool_upstream::devices() const noexcept {
  if (!paged() && !calls_.get().table->serves_stream) return ~std::uint64_t{0};
  auto const home = device();
  auto found = home < 0 ? 0 : cache_limits::bit_of(home);
  if (paged()) {
    for (auto const& right : pages_->rights()) found |= cache_limits::bit_of(right.location.id);
  }
  return found;
}

bool pool_upstream::orders_by(stream_key const& key) const noexcept {
  return traits_.stream_ordered && !traits_.host_accessible && !key.identity().is_host();
}

// Returns the key of a request for the stream. Memory that the host can touch is requested for the host: in the order
// of the stream, earlier work could still use it. If the upstream is a pool where requests wait, the request does not
// queue behind them.
stream_key pool_upstream::key_for(stream_key const& stream) const noexcept {
  bool const by_host = traits_.stream_ordered && traits_.host_accessible;
  auto const key = by_host ? stream_key::host().with_waiting(stream.context().may_wait()) : stream;
  return key.queueing_as(queueing::none).for_no_unit();
}

expected<void*, failure> pool_upstream::allocate(stream_key const& stream, std::size_t bytes) noexcept {
  auto const current = make_home_current();
  // If the call may not use the stream's handle, asks for memory that any stream can use immediately.
  bool const usable = stream.identity().has_handle() || stream.identity().is_host();
  auto const key = key_for(usable ? stream : stream_key::host().with_waiting(stream.context().may_wait()));
  auto const drawn = calls_.try_allocate(key, bytes, granule);
  if (drawn) watchers().each([&](auto& each) { each.on_mapped(*drawn, bytes); });
  return drawn;
}

void pool_upstream::deallocate(chunk const& chunk) noexcept {
  auto const current = make_home_current();
  auto const host = stream_key::host();
  auto* const base = reinterpret_cast<void*>(chunk.base);
  watchers().each([&](auto& each) { each.on_unmapping(base, chunk.bytes); });
  calls_.deallocate(host, base, chunk.bytes, granule);
}

expected<void*, failure> pool_upstream::allocate_exact(stream_key const& stream, std::size_t bytes,
                                                       std::size_t alignment) noexcept {
  auto const current = make_home_current();
  return calls_.try_allocate(key_for(stream), bytes, alignment);
}

void pool_upstream::deallocate_exact(stream_key const& stream, void* pointer, std::size_t bytes,
                                     std::size_t alignment) noexcept {
  auto const current = make_home_current();
  calls_.deallocate(stream.for_no_unit(), pointer, bytes, alignment);
}

} // namespace gpumem::detail
