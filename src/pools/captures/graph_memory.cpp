// Allocates, frees and grows the memory of captured graphs, and finds the memory of a block.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/statistics.hpp>
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>
module gpumem:graph_memory.impl;
import :graph_memory;
import :block;
import :cuda;
import :device;
import :driver;
import :error;
import :free_lists;
import :intrusive_list;
import :misuse;
import :pool_reports;
import :pool_upstream;
import :process;
import :range_allocator;
import :shared_state;
import :stream;
import :stream_timeline;
import :sync;

namespace gpumem::detail {
namespace {

inline constexpr std::size_t small_chunk = std::size_t{2} << 20; // bytes
inline constexpr std::size_t largest_small = small_chunk / 2;    // larger requests get a chunk of their size
// The first granule of each chunk is never given out. A chunk is a live block of the upstream, so no block here begins
// where a block of the upstream begins. So the address tells a free whether the block is the upstream's or is graph
// memory.
inline constexpr std::size_t header = granule;

} // namespace

// Gets memory with the key of the host, so that any stream can use it at each launch of the graph.
expected<chunk, failure> graph_chunks::draw(pool_upstream& upstream, std::size_t bytes,
                                            std::size_t alignment) noexcept {
  auto const slack = alignment > granule ? alignment : 0;
  if (bytes > PTRDIFF_MAX - slack - 2 * granule) return unexpected<failure>{failure{outcome::too_large, 0, bytes}};
  auto const exact = header + ((bytes + granule - 1) & ~(granule - 1)) + slack;
  relaxed_capture const relaxed; // allows driver calls that are unsafe in a capture
  auto size = exact <= largest_small ? small_chunk : exact;
  auto const key = stream_key::host().as_chunk();
  auto drawn = upstream.allocate(key, size);
  if (!drawn && size != exact) drawn = upstream.allocate(key, size = exact);
  if (!drawn) return unexpected<failure>{drawn.error()};
  chunk made;
  made.base = reinterpret_cast<std::uintptr_t>(*drawn) + header;
  made.bytes = size - header;
  return made;
}

void graph_chunks::give_back(pool_upstream& upstream, chunk const& new_chunk) noexcept {
  relaxed_capture const mode; // allows driver calls while another thread captures
  chunk whole;
  whole.base = new_chunk.base - header;
  whole.bytes = bytes_from_upstream(new_chunk);
  upstream.deallocate(whole);
}

std::size_t graph_chunks::bytes_from_upstream(chunk const& chunk) noexcept { return chunk.bytes + header; }

void graph_chunks::add(chunk const& new_chunk, range_allocator& ranges) {
  chunks_.reserve(chunks_.size() + 1);
  auto made = std::make_unique<chunk>(new_chunk);
  ranges.add(*made, {});
  chunks_.push_back(std::move(made));
}

block* graph_chunks::find_containing(void const* pointer) const noexcept {
  auto const address = reinterpret_cast<std::uintptr_t>(pointer);
  for (auto const& each : chunks_) {
    if (address >= each->base && address < each->end()) return each->find_containing(pointer);
  }
  return nullptr;
}

namespace {

inline constexpr std::size_t records_per_split = 2; // most records and free lists for which a split asks

std::optional<device> device_of_upstream(pool_upstream const& upstream) {
  auto const ordinal = upstream.device();
  if (ordinal < 0) return std::nullopt;
  return device{ordinal};
}

} // namespace

graph_memory::graph_memory(std::unique_ptr<pool_upstream> upstream)
    : shared_state{false}, upstream_{std::move(upstream)}, device_{device_of_upstream(*upstream_)},
      uses_{ranges_, chunks_} {}

// The caller guarantees that no launch of a graph is pending. Leaves the pool's list of graph memories first: until
// then other threads may look for a block here.
graph_memory::~graph_memory() {
  if (listed_in_) listed_in_->remove(*this);
  if (driver_alive()) {
    chunks_.visit([&](chunk const& each) { graph_chunks::give_back(*upstream_, each); });
  }
}

expected<void*, failure> graph_memory::try_allocate(stream_key const& key, std::size_t bytes,
                                                    std::size_t alignment) noexcept {
  if (!serves_stream(key)) return unexpected<failure>{failure_of(broken_rule::unopened_device, bytes)};
  expected<void*, failure> result{unexpect, no_host_memory(bytes)};
  try {
    sync::lock const lock{mutex_};
    result = take(key, bytes, alignment);
  } catch (std::bad_alloc const&) { // the host is out of memory
    return result;
  }
  if (!*result) result = grow(key, bytes, alignment);
  if (result) {
    add_live();
    // The host may touch the block at once, but work of the stream may still use it. In a capture it touches none.
    if (upstream_->host_accessible() && !key.identity().capturing()) static_cast<void>(key.identity().wait_on_host());
  } else {
    sync::lock const lock{mutex_};
    counts_.failures += !key.context().goes_on_after(result.error().reason);
  }
  return result;
}

// Takes a block for the request; returns null if no range fits. Prefers ranges that this stream has freed, then ranges
// whose uses the graph orders before the stream's next work, then ranges without any use.
void* graph_memory::take(stream_key const& key, std::size_t bytes, std::size_t alignment) {
  auto const rounded = (bytes + granule - 1) & ~(granule - 1);
  auto& timeline = key.identity().timeline();
  alignment = std::max(alignment, granule);
  auto const capture = uses_.note_request(key);
  auto const* const own_list = ranges_.lists().find(timeline);
  graph_uses::fit fit;
  if (own_list) fit.range = own_list->bins().find(rounded, alignment, fit.offset);
  bool const same_stream = fit.range;
  if (!fit.range && capture != 0) fit = uses_.find_ordered(key, rounded, alignment);
  bool const ordered = fit.range && !same_stream;
  if (!fit.range) fit.range = ranges_.lists().ready().bins().find(rounded, alignment, fit.offset);
  if (!fit.range) return nullptr;
  auto& block = ranges_.split_off(*fit.range, fit.offset, rounded);
  block.requested = bytes;
  block.stream = &timeline;
  uses_.note_allocation(block, capture);
  counts_.reuse_same_stream += same_stream;
  counts_.reuse_ordered += ordered;
  ++counts_.allocations;
  counts_.live += bytes;
  counts_.peak_live = std::max(counts_.peak_live, counts_.live);
  counts_.allocated += rounded;
  return block.pointer();
}

// One thread at a time calls the upstream. A thread that has waited for another one first searches the memory that the
// other thread has added.
expected<void*, failure> graph_memory::grow(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
  auto const refuse = [bytes](outcome reason, int code = 0) {
    return expected<void*, failure>{unexpect, failure{reason, code, bytes}};
  };
  auto const take_now = [&] {
    sync::lock const lock{mutex_};
    return take(key, bytes, alignment);
  };
  sync::lock const growth_lock{growth_mutex_};
  try {
    if (auto* const taken = take_now()) return taken;
    auto const drawn = graph_chunks::draw(*upstream_, bytes, alignment);
    if (!drawn) return refuse(drawn.error().reason, drawn.error().code);
    if (!add(*drawn)) {
      graph_chunks::give_back(*upstream_, *drawn);
      return unexpected<failure>{no_host_memory(bytes)};
    }
    if (auto* const taken = take_now()) return taken;
  } catch (std::bad_alloc const&) { return unexpected<failure>{no_host_memory(bytes)}; } // an added chunk stays
  return refuse(outcome::exhausted);
}

// Adds the chunk `chunk`. Returns false, and changes nothing, if the host is out of memory.
bool graph_memory::add(chunk const& chunk) noexcept try {
  sync::lock const lock{mutex_};
  chunks_.add(chunk, ranges_);
  ++counts_.upstream_allocations;
  auto const bytes = graph_chunks::bytes_from_upstream(chunk);
  counts_.reserved += bytes;
  counts_.peak_reserved = counts_.reserved;
  counts_.reserved_in_all += bytes;
  return true;
} catch (std::bad_alloc const&) { return false; }

std::size_t graph_memory::trim(std::size_t) noexcept { return 0; }

void graph_memory::free_or_report(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
  late_misuse wrong;
  switch (free(key, pointer, bytes, wrong)) {
  case free_outcome::done: return drop_live(); // may destroy this object
  case free_outcome::refused: return;
  case free_outcome::foreign:
    wrong.set({misuse::kind::foreign_pointer, pointer, bytes.value_or(0), 0, key.identity().id(), resource_name()});
  }
}

graph_memory::free_outcome graph_memory::free(stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                                              late_misuse& wrong) noexcept {
  sync::lock const lock{mutex_};
  auto* const block = ranges_.find_live(pointer);
  if (!block || (bytes && *bytes != block->requested)) return explain(key, pointer, bytes, wrong);
  if (!serves_stream(key)) {
    wrong.set({misuse::kind::unopened_device, pointer, bytes.value_or(0), 0, key.identity().id(), resource_name()});
    return free_outcome::refused;
  }
  ++counts_.frees;
  counts_.live -= block->requested;
  counts_.allocated -= block->bytes;
  uses_.end(*block, key, graph_uses::ended_by::free);
  uses_.forget(*block);
  ranges_.free(*block, range_allocator::coalescing::same_streams);
  return free_outcome::done;
}

graph_memory::free_outcome graph_memory::explain(stream_key const& key, void const* pointer,
                                                 std::optional<std::size_t> bytes, late_misuse& wrong) const noexcept {
  auto const* const in = chunks_.find_containing(pointer);
  if (!in) return free_outcome::foreign;
  std::size_t const requested = in->requested;
  auto what = misuse::kind::double_free;
  if (in->is_live()) what = in->pointer() == pointer ? misuse::kind::wrong_size : misuse::kind::foreign_pointer;
  wrong.set({what, pointer, bytes.value_or(0), in->is_live() ? requested : 0, key.identity().id(), resource_name()});
  return free_outcome::refused;
}

std::optional<block_info> graph_memory::find(void const* pointer) noexcept {
  if (forked()) return std::nullopt;
  sync::lock const lock{mutex_};
  auto const* const in = chunks_.find_containing(pointer);
  if (!in) return std::nullopt;
  if (!in->is_live()) return block_info{in->pointer(), 0, in->bytes, 0, false};
  return block_info{in->pointer(), in->requested, in->bytes, in->stream->id(), true};
}

std::optional<owned_block> graph_memory::find_owned(void const* pointer) noexcept {
  if (forked()) return std::nullopt;
  sync::lock const lock{mutex_};
  auto const* const found = ranges_.find_live(pointer);
  if (!found || !found->is_live()) return std::nullopt;
  return owned_block{found->requested, found->stream, uses_.capture_worked_on_here(*found)};
}

std::optional<std::size_t> graph_memory::try_deallocate(void* pointer) noexcept {
  auto const found = find_owned(pointer);
  if (!found) return std::nullopt;
  deallocate(stream_key::of(*found->stream, found->stream->handle()), pointer);
  return found->bytes;
}

void graph_memory::reset_peaks() noexcept {
  if (forked()) return;
  sync::lock const lock{mutex_};
  counts_.peak_live = counts_.live;
  counts_.peak_reserved = counts_.reserved;
}

std::vector<memory_range> graph_memory::memory_map() {
  std::vector<memory_range> map;
  if (forked()) return map;
  sync::lock const lock{mutex_};
  chunks_.visit([&](chunk const& each) {
    auto const first = map.size();
    each.visit([&](block const& one) { map.push_back(range_of(one)); });
    end_region(std::span{map}.subspan(first));
  });
  std::ranges::sort(map, {}, &memory_range::base);
  return map;
}

// Checks all ranges and reserves the host's memory for their blocks before it changes anything.
void graph_memory::restore(std::span<memory_range const> live) {
  std::uint64_t blocks_before = 0, after = 0; // live blocks
  {
    sync::lock const lock{mutex_};
    auto const planned = plan_restore(live);
    blocks_before = counts_.allocations - counts_.frees;
    free_everything();
    for (auto const& one : planned) make_live(one);
    after = planned.size();
  }
  for (; blocks_before < after; ++blocks_before) add_live();
  for (; blocks_before > after; --blocks_before) drop_live(); // cannot destroy this object: the caller has a handle
}

std::vector<graph_memory::restored_block> graph_memory::plan_restore(std::span<memory_range const> live) {
  std::vector<restored_block> planned;
  for (auto const& one : live) {
    if (!one.live) continue;
    auto const* const in = chunks_.find_containing(one.base);
    auto const begin = reinterpret_cast<std::uintptr_t>(one.base);
    bool const whole = in && (begin - in->parent->base) % granule == 0 && one.bytes > 0 && one.bytes % granule == 0;
    if (!whole || one.bytes > in->parent->end() - begin || one.requested > one.bytes)
      throw std::invalid_argument{"gpumem: a block to restore is not in the graph memory"};
    auto* const stream = uses_.find_stream(one.stream);
    if (!stream) throw std::invalid_argument{"gpumem: a block to restore is of a stream unknown to the graph memory"};
    planned.push_back({begin, one.bytes, one.requested, stream});
  }
  std::ranges::sort(planned, {}, &restored_block::base);
  auto const overlap = [](restored_block const& a, restored_block const& b) { return b.base - a.base < a.bytes; };
  if (std::ranges::adjacent_find(planned, overlap) != planned.end())
    throw std::invalid_argument{"gpumem: a block to restore overlaps another one"};
  ranges_.reserve_metadata(records_per_split * (planned.size() + 1), records_per_split);
  return planned;
}

// Makes each chunk one free range. The range needs no uses that order its reuse: the caller guarantees that the
// captures so far are launched before later captures. Allocates no host memory: a range without uses goes to a free
// list that exists.
void graph_memory::free_everything() noexcept {
  uses_.forget_all_blocks();
  chunks_.visit([&](chunk const& chunk) {
    mutex_.assert_held();
    for (auto* at = chunk.first; at; at = at->upper) {
      if (at->is_live()) {
        ++counts_.frees;
        counts_.live -= at->requested;
        counts_.allocated -= at->bytes;
        at->uses.clear();
        at = &ranges_.free(*at, range_allocator::coalescing::same_streams);
      } else if (!at->uses.empty()) {
        at = &ranges_.free_ranges().mark_complete(*at);
      }
    }
  });
}

void graph_memory::make_live(restored_block const& restored) noexcept {
  auto& in = *chunks_.find_containing(reinterpret_cast<void const*>(restored.base));
  auto& made = ranges_.split_off(in, restored.base - in.base, restored.bytes);
  made.requested = restored.requested;
  made.stream = restored.stream;
  ++counts_.allocations;
  counts_.live += restored.requested;
  counts_.peak_live = std::max(counts_.peak_live, counts_.live);
  counts_.allocated += restored.bytes;
}

bool graph_memory::declare_use(stream_key const& key, void const* pointer, late_misuse& wrong) noexcept {
  sync::lock const lock{mutex_};
  auto* const used = chunks_.find_containing(pointer);
  if (!used) return false;
  if (used->is_live() && used->pointer() == pointer) {
    uses_.end(*used, key, graph_uses::ended_by::declaration);
  } else {
    explain(key, pointer, std::nullopt, wrong);
    wrong.set_recorded();
  }
  return true;
}

void graph_memory::record_use(stream_key const& key, void* pointer) noexcept {
  late_misuse wrong;
  if (declare_use(key, pointer, wrong)) return;
  wrong.set({misuse::kind::foreign_pointer, pointer, 0, 0, key.identity().id(), resource_name()});
}

statistics graph_memory::read_statistics() noexcept {
  if (forked()) return {};
  sync::lock const lock{mutex_};
  auto now = counts_;
  now.free = ranges_.free_bytes();
  now.largest_free = ranges_.lists().largest();
  now.coalesces = ranges_.free_ranges().coalesces();
  ranges_.lists().visit([&](free_list const& each) { now.free_ranges += each.size(); });
  return now;
}

void graph_memory_list::add(graph_memory& memory) noexcept {
  sync::lock const lock{mutex_};
  if (memory.listed_in_) return;
  memory.listed_in_ = this;
  items_.push_back(memory);
  any_.store(true, std::memory_order_relaxed);
}

void graph_memory_list::remove(graph_memory& memory) noexcept {
  sync::lock const lock{mutex_};
  items_.remove(memory);
  any_.store(!items_.empty(), std::memory_order_relaxed);
}

// Until drop_live() the freed block keeps its graph memory alive, so drop_live() needs no lock.
bool graph_memory_list::free(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
  late_misuse wrong;
  graph_memory* owner = nullptr;
  {
    sync::lock const lock{mutex_};
    for (auto* each = items_.first(); each && !owner; each = each->links_.next) {
      auto const result = each->free(key, pointer, bytes, wrong);
      if (result == graph_memory::free_outcome::refused) return true;
      if (result == graph_memory::free_outcome::done) owner = each;
    }
  }
  if (!owner) return false;
  owner->drop_live();
  return true;
}

std::optional<block_info> graph_memory_list::find(void const* pointer) noexcept {
  sync::lock const lock{mutex_};
  for (auto* each = items_.first(); each; each = each->links_.next) {
    if (auto found = each->find(pointer)) return found;
  }
  return std::nullopt;
}

std::optional<owned_block> graph_memory_list::find_owned(void const* pointer) noexcept {
  sync::lock const lock{mutex_};
  for (auto* each = items_.first(); each; each = each->links_.next) {
    if (auto const found = each->find_owned(pointer)) return found;
  }
  return std::nullopt;
}

bool graph_memory_list::record_use(stream_key const& key, void const* pointer) noexcept {
  late_misuse wrong;
  sync::lock const lock{mutex_};
  for (auto* each = items_.first(); each; each = each->links_.next) {
    if (each->declare_use(key, pointer, wrong)) return true;
  }
  return false;
}

} // namespace gpumem::detail
