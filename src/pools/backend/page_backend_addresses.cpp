// Reserves address ranges for the shards of a pool, and finds the range of an address.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <utility>
module gpumem:page_backend_addresses.impl;
import :page_backend;
import :backend_parts;
import :block;
import :chunk_list;
import :error;
import :growth_lock;
import :growth_policy;
import :page_store;
import :pool_shard;
import :pool_upstream;
import :shard_list;
import :source_state;
import :virtual_pages;

namespace gpumem::detail {

// Returns the shard that grows for the request: the thread's own, or the first one that has addresses if the own has
// none since the driver grants none.
pool_shard& page_backend::growing_shard(allocation_request const& request) const noexcept {
  if (!request.shard->addresses.empty()) return *request.shard;
  auto const all = parts_.shards.all();
  auto const found = std::ranges::find_if(all, [](auto const& each) {
    assert_all_shards_held();
    return !each->addresses.empty() && !each->lends;
  });
  return found == all.end() ? *request.shard : **found;
}

// Returns whether the shard is to get a further address range before it grows.
bool page_backend::wants_addresses(pool_shard const& in) const {
  if (in.addresses.empty()) return true;
  return !short_of_addresses_ && growth_policy::is_short_of_addresses(in, parts_.upstream.pages()->most_addresses());
}

// Reserves a further address range of at least `least` bytes for the shard, which is unlocked meanwhile. With 0, does
// not reserve less than the pool wants: a refusal leaves the addresses to shards that need them. Returns null if it
// did.
std::optional<failure> page_backend::add_addresses(pool_shard& into, std::size_t least) {
  auto const last = into.addresses.empty() ? 0 : into.addresses.back()->pages.address_space();
  std::optional<failure> why;
  auto& pages = *parts_.upstream.pages();
  if (last != 0 && pages.options().address_space != 0) return no_addresses(outcome::too_large, 0);
  auto const limit = parts_.chunks.limit();
  parts_.lock.begin();
  try {
    auto const unit = parts_.growth.unit();
    if (least > pages.most_addresses()) throw_cuda_error(CUDA_ERROR_OUT_OF_MEMORY, "gpumem: too many addresses");
    into.addresses.reserve(into.addresses.size() + 1);
    std::unique_ptr<address_range> made;
    {
      upstream_call const during{parts_.shards};
      made = parts_.upstream.reserve_addresses(into, last, limit, (least + unit - 1) / unit * unit);
    }
    if (made->pages.address_space() <= last) short_of_addresses_ = true;
    into.add(std::move(made));
  } catch (cuda_error const& e) {
    why = refusal_of(static_cast<CUresult>(e.status()), least);
    if (why->reason == outcome::exhausted) {
      why = no_addresses(outcome::exhausted, least);
      short_of_addresses_ = true;
    }
  } catch (std::bad_alloc const&) { why = no_host_memory(least); }
  parts_.lock.end();
  if (why) parts_.note_failure(*why);
  return why;
}

virtual_pages* page_backend::pages_of(void const* pointer) {
  parts_.lock.wait();
  auto const* const parent = parts_.chunks.find_containing(pointer);
  return parent && parent->addresses ? &parent->addresses->pages : nullptr;
}

expected<block*, failure> page_backend::reserve(std::size_t bytes, pool_shard& into) {
  auto const fits = [bytes](address_range const& in) {
    return bytes <= in.pages.address_space() - in.pages.mapped_end();
  };
  auto found = std::ranges::find_if(into.addresses, [&](auto const& each) { return fits(*each); });
  if (found == into.addresses.end()) {
    if (auto const why = add_addresses(into, bytes)) return unexpected<failure>{*why};
    found = std::prev(into.addresses.end());
  }
  return map({found->get(), std::nullopt, bytes, bytes}, {});
}

} // namespace gpumem::detail
