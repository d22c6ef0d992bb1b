// Calls the upstream, the resource from which a pool gets its memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
module gpumem:pool_upstream.impl;
import :pool_upstream;
import :block;
import :cache_limits;
import :chunk;
import :cuda;
import :device;
import :device_source;
import :error;
import :nvtx_heaps;
import :stream;
import :virtual_pages;

namespace gpumem::detail {

std::unique_ptr<virtual_pages> pool_upstream::make_pages() const {
  return std::make_unique<virtual_pages>(paged_->where, paged_->options);
}

std::uint64_t pool_upstream::devices() const noexcept {
  if (!paged() && !services_.table->serves_stream) return ~std::uint64_t{0};
  auto const home = device();
  auto found = home < 0 ? 0 : cache_limits::bit_of(home);
  for (auto const peer : paged() ? std::span{paged_->options.peers} : std::span<gpumem::device const>{})
    found |= cache_limits::bit_of(peer.ordinal());
  return found;
}

bool pool_upstream::show_to_tool() {
  auto const ordinal = device();
  if (!paged() && device_accessible() && ordinal >= 0) heaps_ = nvtx_heaps::make(gpumem::device{ordinal});
  return heaps_ != nullptr;
}

expected<void*, failure> pool_upstream::allocate(stream_key const& stream, std::size_t bytes) noexcept {
  // If the call may not use the stream's handle, asks for memory that any stream can use immediately. If the upstream
  // is a pool where requests wait, this request does not queue behind them.
  auto const key = (stream.has_handle() ? stream : stream_key::host()).queueing_as(queueing::none);
  auto const drawn = services_.table->try_allocate_keyed(services_.state, &key, bytes, granule);
  if (heaps_ && drawn && device_source::any_has_block(*drawn, bytes)) heaps_->add_heap(*drawn, bytes);
  return drawn;
}

void pool_upstream::deallocate(chunk const& done) noexcept {
  auto const host = stream_key::host();
  auto* const base = reinterpret_cast<void*>(done.base);
  if (heaps_) heaps_->remove_heap(base);
  services_.table->deallocate_keyed(services_.state, &host, base, done.bytes, granule);
}

expected<void*, failure> pool_upstream::allocate_exact(stream_key const& stream, std::size_t bytes,
                                                       std::size_t alignment) noexcept {
  auto const key = stream.queueing_as(queueing::none);
  return services_.table->try_allocate_keyed(services_.state, &key, bytes, alignment);
}

void pool_upstream::deallocate_exact(stream_key const& stream, void* pointer, std::size_t bytes,
                                     std::size_t alignment) noexcept {
  services_.table->deallocate_keyed(services_.state, &stream, pointer, bytes, alignment);
}

} // namespace gpumem::detail
