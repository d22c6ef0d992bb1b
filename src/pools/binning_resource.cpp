// Finds the bin of a request and of a block, and sums up the bins.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>
module gpumem:binning_resource.impl;
import :binning_resource;
import :cuda;
import :device;
import :error;
import :holder;
import :memory_watcher;
import :misuse;
import :pointer_set;
import :process;
import :services;
import :shared_state;
import :stream;
import :sync;
import :waiter;

namespace gpumem::detail {
namespace {

bool is_gpumem(services_handle const& services) noexcept { return services.table->try_allocate_behind != nullptr; }

// Returns whether the resource can ever serve a request for `bytes`. A resource of another library does not tell its
// limit, so it is asked for a block of `bytes`, which is freed again.
bool can_serve(services_handle const& services, std::size_t bytes) {
  if (is_gpumem(services)) {
    auto const now = statistics_from(services).value_or(statistics{});
    return (!now.limit || bytes <= now.limit) && (!now.largest_block || bytes <= now.largest_block);
  }
  auto const host = stream_key::host();
  auto const block = services.table->try_allocate_keyed(services.state, &host, bytes, 256);
  if (block) services.table->deallocate_keyed(services.state, &host, *block, bytes, 256);
  return block.has_value();
}

// Returns the number of blocks that a grant gives to the request. A part of 0 bytes gets none.
std::size_t blocks_of(waiter& item) noexcept {
  std::size_t count = 0;
  for (std::size_t i = 0; i < item.parts(); ++i) count += item.part(i).bytes > 0;
  return count;
}

} // namespace

expected<void*, failure> bin::try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
  auto const result = calls_.try_allocate(key, bytes, alignment);
  if (!result) return result;
  count_bytes(key, static_cast<std::ptrdiff_t>(bytes));
  if (late_.load(std::memory_order_acquire) && !given_.insert(*result)) {
    deallocate(key, *result, bytes, alignment);
    return unexpected<failure>{no_host_memory(bytes)};
  }
  owner_->add_live();
  return result;
}

void bin::on_grant(waiter const& item, request_part const& part) noexcept {
  count_bytes(key_of(item, part), static_cast<std::ptrdiff_t>(part.bytes));
  given_.insert_prepared(part.pointer);
  owner_->add_live();
}

void bin::on_refusal(waiter& item) noexcept {
  if (item.clear_passed(*this)) given_.cancel(blocks_of(item));
}

// Lets the request wait in the bin. A grant must not allocate host memory, so the first call makes room in `given_`,
// the set of blocks that the bin has given out. A request that asks again has that room already.
bool bin::admit(waiter& item) noexcept {
  if (!item.add_hook(*this)) return false;
  if (!item.has_passed(*this)) {
    if (!given_.prepare(blocks_of(item))) return false;
    item.mark_passed(*this);
  }
  return services().table->admit(services().state, &item);
}

bool bin::cancel(waiter& item) noexcept {
  if (!services().table->cancel_waiter(services().state, &item)) return false;
  given_.cancel(blocks_of(item));
  return true;
}

binning_state::binning_state(std::unique_ptr<bin> upstream) : device_{device_of(upstream->services())} {
  upstream->set_owner(*this, 0);
  upstream->set_early();
  tables_.push_back(std::make_unique<bin_table const>(bin_table{upstream.get()}));
  bins_.push_back(std::move(upstream));
  table_.store(tables_.back().get(), std::memory_order_seq_cst);
}

// Every block of a bin's sizes came from that bin if the bin was added before the first request. deallocate() then
// knows this without a record, so such a bin does not record its blocks. The order of the accesses to `table_` and
// `used_` makes sure of one of two things: the first request sees the bin, or this function sees the request.
void binning_state::add(std::unique_ptr<bin> added) {
  throw_if_child();
  if (added->size == 0 || added->size > PTRDIFF_MAX)
    throw std::invalid_argument{"gpumem: the size of a bin must be 1 to PTRDIFF_MAX bytes"};
  if (!has_access_of(traits_of_services(added->services()), traits()))
    throw std::invalid_argument{"gpumem: the host or devices can access the memory of the upstream of a "
                                "binning_resource, but not that of the bin"};
  if (!can_serve(added->services(), added->size))
    throw std::invalid_argument{"gpumem: the resource of a bin refuses blocks of the bin's size"};
  sync::lock const lock{mutex_};
  auto next = table();
  auto const place = std::ranges::lower_bound(next, added->size, {}, &bin::size);
  if ((*place)->size == added->size)
    throw std::invalid_argument{"gpumem: the binning_resource has a bin of this size already"};
  next.insert(place, added.get());
  added->set_owner(*this, bins_.size());
  auto made = std::make_unique<bin_table const>(std::move(next));
  bins_.reserve(bins_.size() + 1);
  tables_.push_back(std::move(made));
  bins_.push_back(std::move(added));
  table_.store(tables_.back().get(), std::memory_order_seq_cst);
  if (!used_.load(std::memory_order_seq_cst)) bins_.back()->set_early();
}

bin& binning_state::bin_for(std::size_t bytes) noexcept {
  return **std::ranges::lower_bound(table(), bytes, {}, &bin::size);
}

// Returns the bin that serves all parts of a request; null if they belong to several bins.
bin* binning_state::bin_for(waiter& item) noexcept {
  for (auto* const each : table()) {
    if (item.has_passed(*each)) return each;
  }
  if (item.asks_for_turn()) return &upstream();
  auto& first = bin_for(item.part(0).bytes);
  for (std::size_t i = 1; i < item.parts(); ++i) {
    if (&bin_for(item.part(i).bytes) != &first) return nullptr;
  }
  return &first;
}

expected<void*, failure> binning_state::try_allocate(stream_key const& key, std::size_t bytes,
                                                     std::size_t alignment) noexcept {
  note_request();
  return bin_for(bytes).try_allocate(key, bytes, alignment);
}

// The block came from the smallest bin that holds its size, among the bins that existed when the block was allocated.
void binning_state::deallocate(stream_key const& key, void* pointer, std::size_t bytes,
                               std::size_t alignment) noexcept {
  auto const& all = table();
  auto at = std::ranges::lower_bound(all, bytes, {}, &bin::size);
  pointer_set::record record;
  while (!(*at)->forget(pointer, record)) ++at; // ends at the upstream at the latest
  auto const refused = refused_calls;
  (*at)->deallocate(key, pointer, bytes, alignment);
  if (refused_calls == refused) return drop_live(); // may destroy the state
  (*at)->put_back(std::move(record));
}

bool binning_state::admit(waiter& item) noexcept {
  note_request();
  auto* const bin = bin_for(item);
  if (bin && bin->services().table->admit) return bin->admit(item);
  item.complete(item.allocate_parts(
      [this, &item](request_part const& one) -> expected<void*, failure> {
        auto const key = key_of(item, one).queueing_as(queueing::none);
        if (auto const checked = checked_request(key, where(), one.bytes, one.alignment); !checked) return checked;
        return bin_for(one.bytes).try_allocate(key, one.bytes, one.alignment);
      },
      [this, &item](request_part const& one) {
        deallocate(key_of(item, one), one.pointer, one.bytes, one.alignment);
      }));
  return false;
}

bool binning_state::cancel_waiter(waiter& item) noexcept {
  if (forked()) return false;
  for (auto* const each : table()) {
    if (item.has_passed(*each)) return each->cancel(item);
  }
  return false;
}

bool binning_state::is_too_large(waiter& item) noexcept {
  auto* const in = bin_for(item);
  if (!in || !in->services().table->is_too_large) return false;
  return in->services().table->is_too_large(in->services().state, &item);
}

// A holder counts its bytes in each bin, so that each bin's resource knows whose memory it is.
void binning_state::on_holder_event(holder& unit, holder_event event) noexcept {
  auto const& bins = table();
  auto const tell = [&](bin const& each) {
    auto const& services = each.services();
    if (services.table->on_holder_event) services.table->on_holder_event(services.state, &unit, event);
  };
  if (event != holder_event::begins) {
    for (auto* const each : bins) tell(*each);
    return;
  }
  unit.begin_branches(static_cast<shared_state*>(this), bins.size(), [&](std::size_t index) {
    tell(**std::ranges::find(bins, index, [](bin const* each) { return each->index(); }));
  });
}

bool binning_state::serves_stream(stream_key const& key) const noexcept {
  return std::ranges::any_of(table(), [&](bin const* each) { return detail::serves_stream(each->services(), key); });
}

// A bin over the upstream gives its memory back to the upstream. The result counts that memory only if the upstream
// gives it back too.
std::size_t binning_state::trim(std::size_t keep) {
  std::size_t returned_bytes = 0;
  for (auto* const each : table()) {
    auto const trimmed = each->services().table->trim(each->services().state, keep);
    returned_bytes += each->is_inside() ? 0 : trimmed;
  }
  return returned_bytes;
}

bool binning_state::synchronize(std::chrono::nanoseconds longest) {
  auto const deadline = sync::now() + std::clamp<std::chrono::nanoseconds>(longest, {}, std::chrono::hours{24 * 365});
  bool all = true;
  for (auto* const each : table()) all = each->synchronize(deadline - sync::now()) && all;
  return all;
}

void binning_state::reset_peaks() {
  for (auto* const each : table()) each->reset_peaks();
}

// Tells a watcher of all memory or of none: blocks of a bin that does not tell would lie outside the memory.
bool binning_state::watch_memory(memory_watcher& watcher, bool begin) {
  bool told = true;
  try {
    for (auto* const each : table()) {
      auto const& services = each->services();
      if (each->is_inside()) continue;
      auto* const watch = services.table->watch_memory;
      told = watch && watch(services.state, &watcher, begin) && told;
    }
  } catch (...) {
    if (begin) watch_memory(watcher, false);
    throw;
  }
  if (begin && !told) watch_memory(watcher, false);
  return told;
}

// Asks the upstream last, for the same reason as record_use().
bool binning_state::set_label(void const* pointer, unsigned label) noexcept {
  return std::ranges::any_of(table(), [&](bin const* each) {
    auto const& services = each->services();
    return services.table->set_label && services.table->set_label(services.state, pointer, label);
  });
}

// The bin of the request has none of its blocks free. If it also gets no chunk, the upstream's holders have the memory.
void binning_state::append_holders(std::size_t bytes, std::string& text) {
  auto const append = [&](bin const& each) {
    auto const& services = each.services();
    if (services.table->append_holders) services.table->append_holders(services.state, bytes, &text);
  };
  auto const& serving = bin_for(bytes);
  append(serving);
  if (serving.is_inside()) append(upstream());
}

statistics binning_state::read_statistics() {
  if (forked()) return {};
  auto const& outer = upstream().services();
  auto sum = statistics_from(outer).value_or(statistics{});
  sum.peak_live = 0; // the upstream's peak counts whole chunks of bins
  for (auto* const bin : table()) {
    auto const& services = bin->services();
    if (services.state == outer.state) continue; // the upstream, or a bin whose requests go to it
    auto bin_statistics = statistics_from(services).value_or(statistics{});
    if (bin->is_inside()) {
      sum.live -= std::min(sum.live, bin_statistics.reserved);
      sum.allocated -= std::min(sum.allocated, bin_statistics.reserved);
      sum.allocations -= std::min(sum.allocations, bin_statistics.upstream_allocations);
      sum.frees -= std::min(sum.frees, bin_statistics.upstream_frees);
      bin_statistics.reserved = 0;
    } else {
      sum.peak_reserved = 0; // the resources had their peaks at different times
    }
    add_statistics(sum, bin_statistics);
  }
  return sum;
}

// Asks the upstream last. It cannot tell a block of a user from a chunk of a bin, since it has allocated both.
bool binning_state::record_use(void* pointer, stream_ref stream) {
  throw_if_child();
  for (auto* const each : table()) {
    if (each->record_use(pointer, stream)) return true;
  }
  return false;
}

std::vector<std::size_t> binning_state::sizes() const {
  std::vector<std::size_t> found;
  for (auto const* const each : table()) {
    if (each->size != SIZE_MAX) found.push_back(each->size);
  }
  return found;
}

void check_exponents(binning_options const& options) {
  bool const none = options.max_exponent < options.min_exponent;
  if (options.min_exponent < 0 || options.max_exponent > 62)
    throw std::invalid_argument{"gpumem: the exponents of a binning_resource must be 0 to 62"};
  if (!none && options.blocks_per_chunk == 0)
    throw std::invalid_argument{"gpumem: the chunks of a binning_resource's bins must have a block at least"};
}

} // namespace gpumem::detail
