// The public calls in which a forked child could hang.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/make_pool.hpp>
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <exception>
#include <iterator>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include <cuda.h>

import gpumem;
#include "objects.hpp"

namespace forked {
namespace {

using namespace std::chrono_literals;
using gpumem::outcome;
using gpumem::stream_ref;
using pool = gpumem::pool_resource<gpumem::cuda_resource>;
constexpr std::size_t bytes = own_objects::bytes;

// Returns whether `run` throws the error for a forked child.
template <class Function> bool refused(Function run) {
  try {
    run();
  } catch (gpumem::cuda_error const& e) {
    return static_cast<CUresult>(e.status()) == CUDA_ERROR_DEINITIALIZED;
  } catch (std::exception const&) {}
  return false;
}

template <class Result> bool lost(Result const& result) {
  return !result && result.error().reason == outcome::device_lost;
}

bool zero(gpumem::statistics const& f) { return f.reserved == 0 && f.live == 0 && f.allocations == 0; }
bool zero(gpumem::allocation_counts const& s) { return s == gpumem::allocation_counts{}; }

// In the parent it allocates and frees. In the child the allocation fails, and freeing the parent's block does nothing.
template <class Resource> bool gives_nothing(Resource& resource, stream_ref stream, void* of_parent) {
  auto const got = resource.try_allocate(stream, bytes);
  resource.deallocate(stream, got ? *got : of_parent, bytes);
  return lost(got);
}

gpumem::allocation some(own_objects& o) {
  auto got = o.all.pages.acquire(o.a, bytes).try_now();
  return got ? std::move(*got) : std::move(o.block);
}

gpumem::task<> hop(gpumem::stream_ref stream) { co_await gpumem::completion(stream); }

constexpr call base_calls[] = {
    {"driver",
     [](own_objects&) {
       int count = 0;
       return gpumem::driver_api::driver().device_get_count(&count) == CUDA_ERROR_DEINITIALIZED;
     }},
    {"driver_available", [](own_objects&) { return !gpumem::driver_api::driver_available(); }},
    {"driver_alive", [](own_objects&) { return !gpumem::driver_api::driver_alive(); }},
    {"device", [](own_objects& o) { return gpumem::device{0} == o.all.device && !o.all.device.lost(); }},
    {"device, unused", [](own_objects&) { return refused([] { gpumem::device{7}; }); }},
    {"device::count", [](own_objects&) { return refused([] { gpumem::device::count(); }); }},
    {"device::current", [](own_objects&) { return refused([] { gpumem::device::current(); }); }},
    {"device::memory", [](own_objects& o) { return refused([&] { o.all.device.memory(); }); }},
    {"device_guard", [](own_objects& o) { return refused([&] { (void)gpumem::device_guard{o.all.device}; }); }},
    {"stream", [](own_objects& o) { return refused([&] { gpumem::stream{o.all.device}; }); }},
    {"stream::adopt", [](own_objects& o) { return refused([&] { (void)gpumem::stream::adopt(o.foreign); }); }},
    {"stream::synchronize", [](own_objects& o) { return refused([&] { o.a.synchronize(); }); }},
    {"stream::wait", [](own_objects& o) { return refused([&] { o.b.wait(o.happened); }); }},
    {"stream::begin_capture",
     [](own_objects& o) {
       return refused([&] {
         o.b.begin_capture();
         gpumem::driver_api::driver().graph_destroy(o.b.end_capture());
       });
     }},
    {"identify", [](own_objects& o) { return refused([&] { gpumem::extend::identify(stream_ref{o.foreign}); }); }},
    {"identify, default",
     [](own_objects&) { return refused([] { gpumem::extend::identify(stream_ref{CUstream{}}); }); }},
    {"stream_key::wait_on_host",
     [](own_objects& o) { return o.a.key().identity().wait_on_host() == CUDA_ERROR_DEINITIALIZED; }},
    {"event", [](own_objects& o) { return refused([&] { gpumem::event{o.all.device}; }); }},
    {"event::record", [](own_objects& o) { return refused([&] { o.happened.record(o.a); }); }},
    {"event::make_wait", [](own_objects& o) { return refused([&] { o.happened.make_wait(o.b); }); }},
    {"event::is_done", [](own_objects& o) { return refused([&] { o.happened.is_done(); }); }},
    {"event::synchronize", [](own_objects& o) { return refused([&] { o.happened.synchronize(); }); }},
};

constexpr call wait_calls[] = {
    {"completion", [](own_objects& o) { return refused([&] { gpumem::completion(o.a).wait(); }); }},
    {"completion of an event", [](own_objects& o) { return refused([&] { gpumem::completion(o.happened).wait(); }); }},
    {"sync_wait", [](own_objects& o) { return refused([&] { gpumem::sync_wait(hop(o.a)); }); }},
    {"completion_rounds", [](own_objects& o) { return gpumem::detail::completion_rounds(o.all.device) == 0; }},
    {"default_executor", [](own_objects&) { return refused([] { gpumem::default_executor(); }); }},
    {"start_timer", [](own_objects&) { return refused([] { late{}; }); }},
    {"cancel_timer", [](own_objects& o) { return gpumem::detail::cancel_timer(o.timer), true; }},
    {"thread_executor", [](own_objects&) { return refused([] { gpumem::thread_executor{}; }); }},
    {"thread_pool_executor", [](own_objects&) { return refused([] { gpumem::thread_pool_executor{1}; }); }},
    {"executor_adaptor",
     [](own_objects&) {
       return refused([] { gpumem::executor_adaptor{[](gpumem::extend::executor_job) noexcept {}}; });
     }},
    {"thread_executor::post", [](own_objects& o) { return o.all.thread.post(*new leaf), true; }},
    {"thread_pool_executor::post", [](own_objects& o) { return o.all.threads.post(*new leaf), true; }},
    {"inline_executor::post", [](own_objects& o) { return o.all.here.post(*new leaf), o.all.here.flush(), true; }},
    {"executor::retract",
     [](own_objects& o) {
       leaf never;
       return !o.all.thread.try_cancel(never) && !o.all.threads.try_cancel(never) && !o.all.here.try_cancel(never);
     }},
};

constexpr call pool_calls[] = {
    {"pool over pages", [](own_objects& o) { return refused([&] { pool{o.all.device}; }); }},
    {"pool over chunks", [](own_objects& o) { return refused([&] { pool{o.all.cuda}; }); }},
    {"hardened pool",
     [](own_objects& o) { return refused([&] { pool{o.all.cuda, {.hardened = {.enabled = true}}}; }); }},
    {"pool over an adaptor", [](own_objects& o) { return refused([&] { gpumem::pool_resource{o.all.counted}; }); }},
    {"make_pool", [](own_objects&) { return refused([] { (void)gpumem::make_pool(0); }); }},
    {"try_allocate", [](own_objects& o) { return gives_nothing(o.all.pages, o.a, o.page); }},
    {"try_allocate, foreign", [](own_objects& o) { return gives_nothing(o.all.pages, stream_ref{o.foreign}, o.page); }},
    {"try_allocate, default",
     [](own_objects& o) { return gives_nothing(o.all.pages, stream_ref{CUstream{}}, o.page); }},
    {"try_allocate, chunks", [](own_objects& o) { return gives_nothing(o.all.chunks, o.a, o.chunk); }},
    {"try_allocate, hardened", [](own_objects& o) { return gives_nothing(o.all.hardened, o.a, o.hard); }},
    {"allocate",
     [](own_objects& o) {
       return refused([&] { o.all.pages.deallocate(o.a, o.all.pages.allocate(o.a, 4 << 20), 4 << 20); });
     }},
    {"deallocate without size",
     [](own_objects& o) {
       auto const got = o.all.pages.try_allocate(o.b, bytes);
       o.all.pages.deallocate(o.b, got ? *got : o.page);
       return !got;
     }},
    {"allocate_sync",
     [](own_objects& o) {
       return refused([&] { o.all.chunks.deallocate_sync(o.all.chunks.allocate_sync(bytes), bytes); });
     }},
    {"deallocate_sync",
     [](own_objects& o) {
       auto const got = o.all.chunks.try_allocate(o.a, bytes);
       o.all.chunks.deallocate_sync(got ? *got : o.chunk, bytes);
       return !got;
     }},
    {"record_use",
     [](own_objects& o) {
       o.all.pages.record_use(o.page, o.b);
       o.all.hardened.record_use(o.hard, o.b);
       return true;
     }},
    {"statistics", [](own_objects& o) { return zero(o.all.pages.statistics()) && zero(o.all.hardened.statistics()); }},
    {"find", [](own_objects& o) { return !o.all.pages.find(o.page) && !o.all.hardened.find(o.hard); }},
    {"history", [](own_objects& o) { return o.all.hardened.history(o.hard).empty(); }},
    {"reserve",
     [](own_objects& o) { return refused([&] { o.all.pages.reserve(o.all.pages.statistics().reserved + 1); }); }},
    {"set_limit", [](own_objects& o) { return o.all.pages.set_limit(0), true; }},
    {"synchronize", [](own_objects& o) { return !o.all.pages.synchronize(1ms) && !o.all.hardened.synchronize(1ms); }},
    {"trim", [](own_objects& o) { return o.all.pages.trim() == 0 && o.all.hardened.trim() == 0; }},
    {"pin",
     [](own_objects& o) {
       bool const pinned = o.all.pages.pin(o.page, bytes);
       o.all.pages.unpin(o.page, bytes);
       return !pinned;
     }},
    {"export_page",
     [](own_objects& o) {
       return refused([&] {
         ::close(o.all.pages.export_page(o.page).descriptor);
         o.all.pages.unpin(o.page, bytes);
       });
     }},
    {"handles", [](own_objects& o) { return pool{o.all.pages} == o.all.pages; }},
    {"acquire", [](own_objects& o) { return refused([&] { (void)o.all.pages.acquire(o.a, bytes).wait(); }); }},
    {"acquire, with a deadline",
     [](own_objects& o) {
       return refused([&] { (void)gpumem::sync_wait(o.all.pages.acquire(o.a, bytes, {.deadline = {}})); });
     }},
    {"acquire, until",
     [](own_objects& o) { return lost(o.all.pages.acquire(o.a, bytes).wait_until(gpumem::detail::sync::now())); }},
    {"erased",
     [](own_objects& o) {
       return gpumem::trim(o.all.erased) == 0 && zero(*gpumem::statistics_of(o.all.erased)) &&
              refused([&] { o.all.erased.deallocate(o.a, o.all.erased.allocate(o.a, bytes, 256), bytes, 256); });
     }},
    {"allocation::use_on", [](own_objects& o) { return refused([&] { auto const use = o.block.use_on(o.b); }); }},
    {"allocation::set_stream", [](own_objects& o) { return refused([&] { some(o).set_stream(o.b); }); }},
    {"allocation::reset", [](own_objects& o) { return some(o).reset(), true; }},
    {"allocation::reset, stream", [](own_objects& o) { return some(o).reset(stream_ref{o.foreign}), true; }},
    {"allocation::release",
     [](own_objects& o) {
       auto* const p = some(o).release();
       o.all.pages.deallocate(o.a, p, bytes);
       return true;
     }},
};

constexpr call source_calls[] = {
    {"cuda_resource",
     [](own_objects& o) {
       return gives_nothing(o.all.cuda, o.a, o.page) && zero(o.all.cuda.statistics()) &&
              refused([&] { gpumem::cuda_resource{o.all.device}; });
     }},
    {"managed_resource",
     [](own_objects& o) {
       return gives_nothing(o.all.managed, o.a, o.page) && zero(o.all.managed.statistics()) &&
              refused([&] { gpumem::managed_resource{o.all.device}; });
     }},
    {"pinned_resource",
     [](own_objects& o) {
       return gives_nothing(o.all.pinned, o.a, o.page) && zero(o.all.pinned.statistics()) &&
              refused([&] { gpumem::pinned_resource{o.all.device}; });
     }},
    {"host_resource",
     [](own_objects& o) {
       return gives_nothing(o.all.host, o.a, o.page) && zero(o.all.host.statistics()) &&
              refused([] { gpumem::host_resource{}; });
     }},
    {"async_resource",
     [](own_objects& o) {
       return gives_nothing(o.all.async, o.a, o.page) && zero(o.all.async.statistics()) && o.all.async.trim() == 0 &&
              refused([&] { gpumem::async_resource{o.all.device}; });
     }},
    {"async_resource_view",
     [](own_objects& o) {
       return gives_nothing(o.all.view, o.a, o.page) && zero(o.all.view.statistics()) && o.all.view.trim() == 0 &&
              refused([&] { gpumem::async_resource_view{o.all.device}; }) &&
              refused([&] { gpumem::async_resource_view{o.all.view.handle(), o.all.device}; });
     }},
    {"async_resource::usage",
     [](own_objects& o) {
       return refused([&] { o.all.async.usage(); }) && refused([&] { o.all.async.reset_peaks(); }) &&
              refused([&] { o.all.async.release_threshold(); }) && refused([&] { o.all.async.allows(o.all.device); });
     }},
    {"virtual_pages",
     [](own_objects& o) {
       return refused([&] { gpumem::extend::virtual_pages{o.all.device, {.address_space = 2 << 20}}; });
     }},
    {"statistics_adaptor",
     [](own_objects& o) {
       bool const none = gives_nothing(o.all.counted, o.a, o.page);
       auto const pushed = o.all.counted.push_counters();
       return none && zero(o.all.counted.counters()) && zero(pushed) && zero(o.all.counted.pop_counters()) &&
              zero(o.all.counted.statistics());
     }},
    {"logging_adaptor",
     [](own_objects& o) {
       return gives_nothing(o.all.logged, o.a, o.page) && !o.all.logged.flush() && refused([&] {
                std::ostringstream text;
                gpumem::logging_adaptor{o.all.pages, gpumem::extend::log_sink{text}};
              });
     }},
    {"tracking_adaptor",
     [](own_objects& o) {
       return gives_nothing(o.all.tracked, o.a, o.page) && o.all.tracked.outstanding().empty() &&
              refused([&] { gpumem::tracking_adaptor{o.all.pages}; });
     }},
    {"thread_safe_adaptor",
     [](own_objects& o) {
       bool const none = gives_nothing(o.all.locked, o.a, o.page);
       bool const known = o.all.locked.find(o.page).has_value();
       o.all.locked.record_use(o.page, o.b);
       return none && !known;
     }},
    {"fallback_adaptor",
     [](own_objects& o) {
       bool const none = gives_nothing(o.all.fallback, o.a, o.page);
       o.all.fallback.record_use(o.page, o.b);
       return none && zero(o.all.fallback.statistics());
     }},
    {"adaptor, found and freed",
     [](own_objects& o) {
       auto const got = o.all.counted.try_allocate(o.a, bytes);
       bool const known = o.all.counted.find(o.page).has_value();
       o.all.counted.record_use(got ? *got : o.page, o.b);
       o.all.counted.deallocate(o.a, got ? *got : o.page);
       return !got && !known;
     }},
};

constexpr call container_calls[] = {
    {"buffer", [](own_objects& o) { return refused([&] { gpumem::buffer{o.a, o.all.pages, bytes}; }); }},
    {"buffer::resize", [](own_objects& o) { return refused([&] { o.buffer.resize(o.buffer.capacity() + bytes); }); }},
    {"buffer::fill", [](own_objects& o) { return refused([&] { o.buffer.fill(std::byte{1}); }); }},
    {"buffer::read",
     [](own_objects& o) {
       std::array<char, 8> into;
       return refused([&] { o.buffer.read(into.data(), into.size()); });
     }},
    {"buffer::write",
     [](own_objects& o) {
       std::array<char, 8> const from{};
       return refused([&] { o.buffer.write(from.data(), from.size()); });
     }},
    {"buffer::use_on", [](own_objects& o) { return refused([&] { auto const use = o.buffer.use_on(o.b); }); }},
    {"buffer::set_stream", [](own_objects& o) { return refused([&] { o.buffer.set_stream(o.a); }); }},
    {"buffer::synchronize", [](own_objects& o) { return refused([&] { o.buffer.synchronize(); }); }},
    {"buffer::copy_of", [](own_objects& o) { return refused([&] { gpumem::buffer::copy_of(o.b, o.buffer); }); }},
    {"uninitialized_vector",
     [](own_objects& o) {
       return refused([&] { o.vector.set_element(1, 2); }) && refused([&] { o.vector.element(1); }) &&
              refused([&] { gpumem::uninitialized_vector<int>{o.a, 10}; });
     }},
    {"scalar",
     [](own_objects& o) { return refused([&] { o.scalar.value(); }) && refused([&] { gpumem::scalar<int>{o.a}; }); }},
    {"polymorphic_allocator",
     [](own_objects& o) {
       gpumem::polymorphic_allocator<int> const from{o.all.pages};
       gpumem::stream_allocator<int> ints{o.a, from};
       return refused([&] { ints.deallocate(ints.allocate(3), 3); });
     }},
    {"stream_pool",
     [](own_objects& o) {
       o.all.streams.next();
       return refused([&] { gpumem::stream_pool{o.all.device, 1}; }) && refused([&] { o.all.streams.synchronize(); });
     }},
    {"current_resource", [](own_objects& o) { return refused([&] { gpumem::current_resource(o.all.device); }); }},
    {"set_current_resource",
     [](own_objects& o) {
       return refused([&] { gpumem::set_current_resource(o.all.device, gpumem::any_pool{o.all.pages}); });
     }},
    {"reset_current_resource",
     [](own_objects& o) { return refused([&] { gpumem::reset_current_resource(o.all.device); }); }},
    {"scoped_current_resource",
     [](own_objects& o) {
       return refused([&] { (void)gpumem::scoped_current_resource{o.all.device, gpumem::any_pool{o.all.pages}}; });
     }},
    {"percent_of_free_device_memory",
     [](own_objects& o) { return refused([&] { gpumem::percent_of_free_device_memory(10, o.all.device); }); }},
    {"simulator",
     [](own_objects&) {
       try {
         gpumem::simulator::run_until_idle();
       } catch (gpumem::simulator::error const&) { return !gpumem::simulator::loaded(); }
       return false;
     }},
};

template <std::size_t... Counts> auto joined(call const (&... lists)[Counts]) {
  std::array<call, (Counts + ...)> all;
  auto at = all.begin();
  ((at = std::copy(std::begin(lists), std::end(lists), at)), ...);
  return all;
}

} // namespace

std::span<call const> calls() {
  static auto const all = joined(base_calls, wait_calls, pool_calls, source_calls, container_calls);
  return all;
}

void destroy(own_objects* own) {
  auto* const all = &own->all;
  delete own;
  delete all;
}

} // namespace forked
