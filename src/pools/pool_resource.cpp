// The handle of a pool and its state: construction, calls, statistics, and look-up of a block by its address.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cuda.h>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>
module gpumem:pool_resource.impl;
import :pool_resource;
import :async_resource;
import :backoff;
import :block;
import :block_calls;
import :cuda;
import :cuda_resource;
import :device;
import :driver;
import :driver_pool;
import :error;
import :executor;
import :graph_memory;
import :hardening;
import :holder;
import :labels;
import :memory_walk;
import :memory_watcher;
import :misuse;
import :page_store;
import :pass_through;
import :pool_captures;
import :pool_engine;
import :pool_monitor;
import :pool_options;
import :pool_reports;
import :pool_upstream;
import :pressure_calls;
import :process;
import :range_search;
import :request_queue;
import :resource;
import :services;
import :shard_list;
import :stream;
import :stream_timeline;
import :sync;
import :virtual_pages;
import :waiter;

namespace gpumem::detail {

namespace {

// Returns whether the pool uses pages. With a limit of less than one page, a pool over pages could allocate nothing.
bool draws_pages(gpumem::device device, pool_options const& options, virtual_pages_options const& pages) {
  bool const special = needs_pages(pages);
  if ((!options.pages || options.chunk_size) && special)
    throw std::invalid_argument{"gpumem: a pool without pages has no options of pages"};
  bool const too_small = options.limit && options.limit < smallest_page && !special;
  return options.pages && options.chunk_size == 0 && !too_small && virtual_pages::supported(device);
}

// Checks the device here, because a pool without an initial size would otherwise fail only at its first allocation.
pool_engine* make_engine(std::unique_ptr<pool_upstream> upstream, pool_options options) {
  throw_if_child();
  if (auto const ordinal = upstream->device(); ordinal >= 0) device{ordinal}.require();
  return new pool_engine{std::move(upstream), std::move(options)};
}

bool is_special(pool_options const& options) noexcept { return options.hardened.enabled || options.pass_through; }

// Returns the options of a pool that may pass its requests to the upstream. If the pool does so, it reserves no initial
// size and is not hardened.
pool_options for_pass_through(pool_options options, bool paged) {
  throw_if_child();
  options.pass_through = passes_through(options.pass_through) && !paged;
  if (!options.pass_through) return options;
  options.initial_size = 0;
  options.hardened = {};
  return options;
}

// The upstream of a pool over device memory, if the pool passes each request on and so uses no pages. The blocks come
// from a CUDA memory pool, because tools can follow its stream order.
class stream_ordered_upstream final : public held_upstream<cuda_resource> {
public:
  stream_ordered_upstream(cuda_resource upstream, gpumem::device device)
      : held_upstream{std::move(upstream)}, blocks_{device, {.release_threshold = 0}} {
    attach(services_of(blocks_));
  }

private:
  async_resource blocks_;
};

bool has_driver_pools(gpumem::device device) {
  int supported = 0;
  check(driver().device_get_attribute(&supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, device.ordinal()),
        "cuDeviceGetAttribute");
  return supported != 0;
}

std::unique_ptr<block_calls> make_calls(pool_engine& engine, void (*ended)(void* state) noexcept, void* state) {
  if (engine.options().pass_through) return std::make_unique<pass_through>(engine, ended, state);
  if (engine.options().hardened.enabled) return std::make_unique<hardening>(engine, ended, state);
  return nullptr;
}

// Calls `make`. If it throws, closes the engine, which the pool's destructor would do.
template <class Make> auto make_or_close(pool_engine& engine, Make make) {
  try {
    return make();
  } catch (...) {
    engine.close();
    throw;
  }
}

} // namespace

std::unique_ptr<pool_upstream> held_pages(gpumem::device device, pool_options const& options,
                                          virtual_pages_options pages) {
  cuda_resource const chunks{device};
  if (passes_through(options.pass_through) && !needs_pages(pages) && has_driver_pools(device))
    return std::make_unique<stream_ordered_upstream>(chunks, device);
  if (!draws_pages(device, options, pages)) return std::make_unique<held_upstream<cuda_resource>>(chunks);
  // Reserves the addresses that the options name for a moment, so that a bad number throws here. The pool reserves them
  // only when it first grows, and an allocation cannot throw.
  if (pages.address_space != 0) static_cast<void>(virtual_pages{device, pages});
  return std::make_unique<held_upstream<cuda_resource>>(chunks, device, std::move(pages));
}

pool_state::pool_state(std::unique_ptr<pool_upstream> upstream, pool_options options)
    : special_{is_special(options = for_pass_through(std::move(options), upstream->paged()))},
      engine_{make_engine(std::move(upstream), std::move(options))}, plain_calls_{*engine_, &pool_state::end, this},
      special_calls_{make_or_close(*engine_, [this] { return make_calls(*engine_, &pool_state::end, this); })},
      calls_{special_calls_ ? *special_calls_ : plain_calls_} {
  make_or_close(*engine_, [this] {
    auto const* const name = engine_->options().name.c_str();
    auto const live = [](void* state) { return static_cast<pool_state*>(state)->find_live(); };
    auto const numbers = [](void* state) { return static_cast<pool_state*>(state)->read_numbers(); };
    if (reports_leaks()) leaks_ = std::make_unique<leak_report>(name, live, this);
    if (is_published()) monitored_ = std::make_unique<monitored_pool>(name, numbers, this);
  });
}

void pool_state::end(void* state) noexcept {
  auto& ended = *static_cast<pool_state*>(state);
  if (ended.engine_->drop_last_handle()) ended.dispose();
}

// Does nothing in a forked child: the memory that the state would give back belongs to the parent.
void pool_state::drop_handle() noexcept {
  if (forked() || handles().fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  calls_.drop_last_handle();
}

void pool_state::free_slow(stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                           cached_free const& cached) noexcept {
  // A block of a graph memory lies inside a live block of this pool, but never begins where that block begins. So for
  // such a pointer the search for a live block of this pool found nothing.
  auto& graphs = captures_.memories();
  if (!cached.freed.that && graphs.any() && graphs.free(key, pointer, bytes)) return; // this pool may be gone
  if (engine_->free_slow(key, pointer, bytes, cached) == free_result::last) dispose();
}

void pool_state::dispose() noexcept {
  leaks_.reset();
  monitored_.reset();
  engine_->close();
  delete this;
}

expected<void*, failure> pool_state::allocate_uncommon(stream_key const& key, std::size_t bytes,
                                                       std::size_t alignment) noexcept {
  if (special_handles_.load(std::memory_order_relaxed) != 0) return allocate_special(key, bytes, alignment);
  report_misuse(
      {misuse::kind::use_after_close, nullptr, bytes, 0, key.identity().id(), engine_->options().name.c_str()});
  return unexpected<failure>{failure{outcome::closed, 0, bytes}};
}

// Returns whether a request is for more than the option `largest_block`, rounded up to a size class as in the engine.
bool pool_state::exceeds_largest_block(std::size_t bytes) const noexcept {
  auto const largest = engine_->options().largest_block;
  return largest && bytes > size_class::of(largest).bytes;
}

expected<void*, failure> pool_state::allocate_special(stream_key const& key, std::size_t bytes,
                                                      std::size_t alignment) noexcept {
  if (!engine_->serves(key)) return unexpected<failure>{failure_of(broken_rule::unopened_device, bytes)};
  return calls_.try_allocate(key, bytes, alignment);
}

expected<void*, failure> pool_state::allocate_in_capture(stream_key const& key, std::size_t bytes,
                                                         std::size_t alignment) noexcept {
  auto const memory = captures_.find(key, bytes);
  if (!memory) return unexpected<failure>{memory.error()};
  auto const refuse = [bytes](outcome reason) { return expected<void*, failure>{unexpect, failure{reason, 0, bytes}}; };
  if (engine_->refuses()) return refuse(outcome::closed);
  if (exceeds_largest_block(bytes)) return refuse(outcome::too_large);
  last_served = extend::served_by::unknown;
  return (*memory)->try_allocate(key, bytes, alignment);
}

void pool_state::free_special(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
  if (!engine_->serves(key)) return engine_->report_unopened(key, pointer, bytes);
  if (captures_.memories().any() && captures_.memories().free(key, pointer, bytes)) return;
  calls_.deallocate(key, pointer, bytes);
}

bool pool_state::admit(waiter& item) noexcept {
  if (!waiter_list::holds(item) && has_block_beyond_largest(item)) {
    engine_->requests().refuse_as_too_large(item);
    return false;
  }
  return admit_with(item, [&] {
    return item.allocate_parts(
        [this](request_part const& one) { return try_part(one); },
        [this](request_part const& one) { calls_.return_part(one.stream, one.pointer, one.bytes); });
  });
}

// Ends a request that asks for more than the device has. Returns whether it did.
bool pool_state::refuses_beyond_device(waiter& item) noexcept {
  if (waiter_list::holds(item) || !is_beyond_device(item)) return false;
  engine_->requests().refuse_as_too_large(item);
  return true;
}

// Returns null if a request that has a turn may try now, otherwise the failure.
expected<void*, failure> pool_state::may_try(waiter& item) noexcept {
  if (item.asks_for_turn()) calls_.flush(); // its turn needs the quarantined memory
  if (item.asks_for_turn() || item.has_parts()) return engine_->requests().may_go_on(item);
  return nullptr;
}

expected<void*, failure> pool_state::try_part(request_part const& part) noexcept {
  auto const key = part.stream.queueing_as(queueing::admitted);
  if (auto const checked = checked_request(key, where(), part.bytes, part.alignment); !checked) return checked;
  if (special_) return allocate_special(key, part.bytes, part.alignment);
  return engine_->try_allocate(key, part.bytes, part.alignment);
}

bool pool_state::is_too_large(waiter& item) noexcept {
  return !forked() &&
         (has_block_beyond_largest(item) || is_beyond_device(item) || engine_->requests().is_too_large(item));
}

// Returns whether a block of the request exceeds the largest block of the pool.
bool pool_state::has_block_beyond_largest(waiter const& item) const noexcept {
  for (std::size_t i = 0; i < item.parts(); ++i) {
    if (exceeds_largest_block(item.part(i).bytes)) return true;
  }
  return false;
}

// Returns whether the request exceeds the device's memory. If the pool has a limit, returns false without a driver
// call, since the limit is checked elsewhere. Managed memory, which the host can touch, may be larger than the device's
// memory.
bool pool_state::is_beyond_device(waiter const& item) noexcept try {
  auto const& upstream = engine_->upstream();
  bool const of_device = where() && upstream.device_accessible() && !upstream.host_accessible();
  if (engine_->options().limit != 0 || !of_device || item.asks_for_turn()) return false;
  return item.bytes() > where()->memory().total;
} catch (...) {
  return false; // the attempt to allocate reports the error
}

bool pool_state::cancel_waiter(waiter& item) noexcept {
  if (forked()) return false;
  bool last = false;
  bool const withdrawn = engine_->requests().cancel(item, last);
  if (last) dispose();
  return withdrawn;
}

void pool_state::on_holder_event(holder& unit, holder_event event) noexcept {
  if (!forked()) engine_->passes().on_holder_event(unit, event);
}

void pool_state::refuse_requests() noexcept {
  if (!forked()) engine_->refuse_requests();
}

bool pool_state::synchronize(std::chrono::nanoseconds longest) {
  if (!driver_alive()) return false;
  auto const deadline = deadline_after(longest);
  bool const looked_at = calls_.synchronize(longest);
  return engine_->synchronize(std::max<sync::duration>(deadline - sync::now(), {})) && looked_at;
}

bool pool_state::watch_memory(memory_watcher& watcher, bool begin) { return calls_.watch_memory(watcher, begin); }

std::size_t pool_state::trim(std::size_t keep) {
  if (!driver_alive()) return 0;
  calls_.flush();
  return engine_->trim(keep);
}

expected<std::size_t, failure> pool_state::reserve(std::size_t bytes) {
  throw_if_child();
  return calls_.reserve(bytes);
}

void pool_state::set_limit(std::size_t bytes) {
  if (!forked()) engine_->set_limit(bytes);
}

bool pool_state::pin(void const* pointer, std::size_t bytes) { return !forked() && engine_->pin(pointer, bytes); }

void pool_state::unpin(void const* pointer, std::size_t bytes) {
  if (!forked()) engine_->unpin(pointer, bytes);
}

void pool_state::open_to(class device peer) {
  if (!forked()) engine_->open_to(peer);
}

expected<exported_page, failure> pool_state::export_page(void const* pointer) {
  if (forked()) return unexpected<failure>{failure{outcome::device_lost, CUDA_ERROR_DEINITIALIZED, 0}};
  return engine_->export_page(pointer);
}

void pool_state::record_use(stream_key const& key, void* pointer) {
  if (!engine_->serves(key)) throw rule_error{broken_rule::unopened_device, "record_use"};
  if (captures_.memories().any() && captures_.memories().record_use(key, pointer)) return;
  calls_.record_use(key, pointer);
}

void pool_deallocate(pool_state& state, stream_ref stream, void* pointer) noexcept {
  deallocate_unsized(state, stream, pointer);
}

void pool_record_use(pool_state& state, void* pointer, stream_ref stream) {
  if (!pointer || !may_free()) return;
  auto const where = state.where();
  state.record_use(where ? identify(stream, *where) : identify(stream), pointer);
}

} // namespace gpumem::detail

namespace gpumem {

pressure_callback::pressure_callback(detail::pool_state& pool, executor& executor,
                                     detail::pressure_call::function free_some)
    : pool_{&pool},
      call_{std::make_shared<detail::pressure_call>(pool.engine().passes(), executor, std::move(free_some))} {
  detail::throw_if_child();
  pool.engine().passes().add_pressure_call(*call_);
}

pressure_callback::~pressure_callback() {
  if (!call_ || detail::forked()) return;
  (*pool_)->engine().passes().remove_pressure_call(*call_);
  call_->end();
}

} // namespace gpumem

namespace gpumem::detail {
namespace {

// Returns a key of the stream for which a block was allocated. The stream still lives, so a free can use its handle. On
// a mortal stream the free records an event, because perhaps no later call gets the handle.
inline stream_key key_of_owner(stream_timeline& timeline) noexcept {
  auto const key = stream_key::of(timeline, timeline.handle());
  if (timeline.owns_handle()) [[likely]]
    return key;
  return timeline.is_mortal() ? stream_key::at_end_of(timeline, timeline.handle()) : key.by_identity();
}

} // namespace

statistics pool_state::read_statistics() {
  if (forked()) return {};
  return calls_.read_statistics();
}

monitored_numbers pool_state::read_numbers() {
  auto const device = where();
  return {read_statistics(), engine_->read_counters().page_moves, device ? device->ordinal() : -1};
}

std::string pool_state::describe_waiting() {
  return forked() ? std::string{} : engine_->requests().describe(engine_->passes(), read_statistics().live);
}

std::string pool_state::describe_memory() { return forked() ? std::string{} : engine_->describe_memory(); }

void pool_state::reset_peaks() {
  if (!forked()) calls_.reset_peaks();
}

std::optional<owned_block> pool_state::find_owned(void const* pointer) {
  if (captures_.memories().any()) [[unlikely]] {
    if (auto const in_graph = captures_.memories().find_owned(pointer)) return in_graph;
  }
  return special_ ? calls_.find_owned(pointer) : engine_->find_owned(pointer);
}

std::optional<std::size_t> pool_state::try_deallocate(void* pointer) noexcept {
  if (!pointer || !may_free()) return std::nullopt;
  auto const lookup = engine_->find_in_own_shard(pointer);
  if (lookup.that && lookup.that->is_live() && !special_) [[likely]] {
    std::size_t const bytes = lookup.that->requested;
    auto const key = key_of_owner(*lookup.that->stream);
    auto const cached = engine_->try_cache(key, lookup, bytes);
    if (!cached.done()) free_slow(key, pointer, bytes, cached);
    return bytes;
  }
  auto const found = find_owned(pointer);
  if (!found) return std::nullopt;
  free(key_of_owner(*found->stream), pointer, found->bytes);
  return found->bytes;
}

std::optional<block_info> pool_state::find(void const* pointer) {
  if (forked()) return std::nullopt;
  if (auto const in_graph = captures_.memories().find(pointer)) return in_graph;
  return calls_.find(pointer);
}

std::vector<block_event> pool_state::history(void const* pointer) {
  return forked() ? std::vector<block_event>{} : calls_.history(pointer);
}

live_blocks pool_state::find_live() { return calls_.find_live(); }

std::vector<memory_range> pool_state::memory_map() {
  return forked() ? std::vector<memory_range>{} : calls_.memory_map();
}

bool pool_state::set_label(void const* pointer, std::uint32_t label) noexcept {
  return !forked() && calls_.set_label(pointer, label);
}

void pool_state::append_holders(std::size_t bytes, std::string& text) {
  if (forked()) return;
  engine_->append_holders(calls_.copy_memory().blocks, bytes, text);
}

memory_copy pool_state::copy_memory() { return forked() ? memory_copy{} : calls_.copy_memory(); }

bool pool_state::add_outside(std::size_t bytes) {
  if (!driver_alive() || forked()) return false;
  if (engine_->add_outside(bytes)) return true;
  return calls_.flush() && engine_->add_outside(bytes); // quarantined blocks may lie in memory that can go back
}

void pool_state::remove_outside(std::size_t bytes) {
  if (!forked()) engine_->remove_outside(bytes);
}

} // namespace gpumem::detail
