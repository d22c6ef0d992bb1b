// The calls of a pool of pages, and chunks where the driver has no addresses for pages.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cuda.h>
#include <optional>
module gpumem:page_backend_calls.impl;
import :page_backend;
import :backend_parts;
import :block;
import :chunk_list;
import :device;
import :driver;
import :error;
import :growth_policy;
import :page_store;
import :pool_backend;
import :pool_shard;
import :pool_upstream;
import :range_search;
import :shard_list;
import :sync;
import :virtual_pages;

namespace gpumem::detail {
namespace {

// Returns why a request failed for which the driver had no addresses, and the device no chunk either. An upstream that
// refuses a chunk does not say whether it lacks memory or addresses.
failure first_cause(failure const& pages, failure const& chunk) noexcept {
  return chunk.code == CUDA_ERROR_OUT_OF_MEMORY ? pages : chunk;
}

} // namespace

// Where the pool grows is unknown, so the request needs bytes for an alignment beyond that of pages too.
bool page_backend::could_hold(std::size_t bytes, std::size_t alignment) const noexcept {
  auto const most = capacity();
  auto const skipped = std::max(alignment, smallest_page) - smallest_page;
  auto const addresses = parts_.upstream.pages()->options().address_space;
  return bytes <= most && skipped <= most - bytes && (addresses == 0 || bytes + skipped <= addresses);
}

attempt<placement> page_backend::grow(allocation_request const& request, bool exact) {
  auto fresh = request.loan ? lend(request, exact) : grow_pages(request, exact);
  if (!fresh.has_failed()) return fresh;
  auto why = fresh.error();
  if (takes_chunks_after(why)) {
    auto chunk = pool_backend::grow(request, exact);
    if (!chunk.has_failed()) return chunk;
    why = first_cause(why, chunk.error());
  }
  bool const no_addresses = !request.loan && why.reason == outcome::too_large;
  return unexpected<failure>{failure{no_addresses ? outcome::exhausted : why.reason, why.code, request.requested}};
}

bool page_backend::takes_chunks_after(failure const& failure) const noexcept {
  return is_no_addresses(failure) && parts_.upstream.chunks_serve_as_pages();
}

expected<block*, failure> page_backend::reserve(std::size_t bytes, pool_shard& shard) {
  auto const pages = reserve_pages(bytes, shard);
  if (pages || !takes_chunks_after(pages.error())) return pages;
  auto const chunk = pool_backend::reserve(bytes, shard);
  if (chunk) return chunk;
  return unexpected<failure>{first_cause(pages.error(), chunk.error())};
}

void page_backend::close_range(address_range& range) noexcept {
  range.closed = true;
  if (!upstream_call::runs_here(parts_.shards)) drop_closed_ranges(); // otherwise a later call drops it
}

bool page_backend::pin(void const* pointer, std::size_t bytes) {
  if (auto* const pages = pages_of(pointer)) return pages->pin(pointer, bytes);
  auto* const parent = chunk_of(pointer, bytes);
  if (parent) ++parent->pins;
  return parent;
}

void page_backend::unpin(void const* pointer, std::size_t bytes) {
  if (auto* const pages = pages_of(pointer)) return pages->unpin(pointer, bytes);
  auto* const parent = parts_.chunks.find_containing(pointer);
  if (parent && parent->pins > 0) --parent->pins;
}

// Another device would use a chunk without the access that pages give, so the pool refuses if it has one.
CUresult page_backend::open_to(device peer) {
  parts_.lock.wait();
  auto& pages = *parts_.upstream.pages();
  if (pages.is_open_to(peer)) return CUDA_SUCCESS;
  pool_backend::release(0);
  parts_.lock.wait();
  if (has_chunks()) {
    throw_cuda_error(CUDA_ERROR_NOT_SUPPORTED, "gpumem: open_to(): the pool has chunks beside its pages, since the "
                                               "process has no addresses left; no other device can access chunks");
  }
  for (auto const& shard : parts_.shards.all()) {
    for (auto const& each : shard->addresses) {
      if (auto const result = each->pages.open_mapped_to(peer); result != CUDA_SUCCESS) return result;
    }
  }
  return pages.open_to(peer);
}

expected<exported_page, failure> page_backend::export_page(void const* pointer) {
  if (auto* const pages = pages_of(pointer)) return pages->export_page(pointer);
  return pool_backend::export_page(pointer);
}

} // namespace gpumem::detail
