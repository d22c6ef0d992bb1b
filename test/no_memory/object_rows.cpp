// Rows of streams, events, executors, coroutines and containers.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;

#include "parts.hpp"

namespace no_memory {
namespace {

gpumem::stream_ref raw() { return gpumem::stream_ref{with().raw}; }

void use_stream() {
  gpumem::stream made{with().card};
  gpumem::event mark{with().card};
  mark.record(made);
  made.wait(mark);
  made.synchronize();
  gpumem::stream const adopted = gpumem::stream::adopt(with().raw);
}

void use_event() {
  gpumem::event mark{with().card};
  mark.record(raw());
  mark.make_wait(with().own);
  mark.is_done();
  mark.synchronize();
}

void use_allocation() {
  gpumem::allocation block = with().pool.acquire(with().own, 1000).wait();
  { gpumem::scoped_use const use = block.use_on(raw()); }
  block.reset(with().other);
}

void acquire_both() { auto const both = gpumem::acquire_all(with().pool, {{with().own, 1000}, {raw(), 2000}}).wait(); }

gpumem::task<int> number() { co_return 1; }
gpumem::task<> wait_on_device() { co_await gpumem::completion(raw()); }
gpumem::task<> get_block() { auto const block = co_await with().pool.acquire(with().own, 1000); }

gpumem::task<> resumed_by(gpumem::executor& where) { co_await gpumem::completion(with().own, {.resume_on = &where}); }

void use_containers() {
  gpumem::buffer bytes{with().own, 1000};
  bytes.resize(4000);
  bytes.shrink_to_fit();
}

} // namespace

std::vector<row> base_rows() {
  return {
      {"device device_memory device_guard",
       [] {
         gpumem::device const card{1};
         gpumem::device_guard const here{card};
         gpumem::device_memory const memory = card.memory();
         (void)memory;
       }},
      {"stream", use_stream},
      {"event", use_event},
      {"allocation scoped_use acquire", use_allocation},
      {"acquire_all block_request", acquire_both},
      {"extend::identify extend::stream_key extend::identified_stream extend::call_context",
       [] { gpumem::extend::identify(raw()); }},
      {"cover_frees", [] { gpumem::cover_frees(raw()); }},
      {"set_default_stream", [] { gpumem::set_default_stream(gpumem::default_stream::either); }},
      {"inline_executor executor", [] { [[maybe_unused]] gpumem::inline_executor const made; }},
      {"thread_executor",
       [] {
         gpumem::thread_executor worker;
         gpumem::sync_wait(resumed_by(worker));
       }},
      {"thread_pool_executor",
       [] {
         gpumem::thread_pool_executor workers{2};
         gpumem::sync_wait(resumed_by(workers));
       }},
      {"executor_adaptor extend::executor_job",
       [] {
         gpumem::executor_adaptor system{[](auto&& job) { job(); }};
         gpumem::sync_wait(resumed_by(system));
       }},
      {"default_executor", [] { gpumem::default_executor(); }},
      {"format_bytes parse_bytes", [] { gpumem::parse_bytes(gpumem::format_bytes(3 * MiB)); }},
      {"percent_of_free_device_memory", [] { gpumem::percent_of_free_device_memory(10); }},
      {"trim statistics_of statistics",
       [] {
         gpumem::trim(with().pool);
         gpumem::statistics_of(with().pool);
       }},
      {"out_of_memory out_of_memory_info",
       [] {
         try {
           (void)gpumem::pool_resource{with().card, {.limit = 4 * MiB}}.allocate(with().own, 8 * MiB, 256);
         } catch (gpumem::out_of_memory const& error) { error.what(); }
       }},
      {"to_string describe misuse broken_rule",
       [] {
         char text[256];
         gpumem::describe(gpumem::misuse{}, text, sizeof text);
         gpumem::to_string(gpumem::outcome::exhausted);
       }},
      {"driver_api::driver driver_api::driver_available driver_api::driver_alive driver_api::driver_calls",
       [] { gpumem::driver_api::driver_calls(); }},
      {"driver_api::check driver_api::throw_cuda_error driver_api::is_sticky cuda_error",
       [] {
         try {
           gpumem::driver_api::check(CUDA_ERROR_INVALID_VALUE, "a call");
         } catch (gpumem::cuda_error const&) {}
       }},
  };
}

std::vector<row> container_rows() {
  return {
      {"buffer", use_containers},
      {"uninitialized_vector",
       [] {
         gpumem::uninitialized_vector<int> numbers{with().own, 100};
         numbers.resize(1000);
       }},
      {"scalar", [] { gpumem::scalar<int> const one{with().own}; }},
      {"stream_allocator",
       [] {
         gpumem::stream_allocator<int> from{with().own, gpumem::polymorphic_allocator<int>{with().pool}};
         int* const block = from.allocate(100);
         from.deallocate(block, 100);
       }},
      {"polymorphic_allocator",
       [] {
         gpumem::polymorphic_allocator<int> from;
         int* const block = from.allocate(100, with().own);
         from.deallocate(block, 100, with().own);
       }},
      {"stream_pool", [] { gpumem::stream_pool const made{with().card, 4}; }},
      {"current_resource set_current_resource reset_current_resource reset_current_pool",
       [] {
         gpumem::current_resource(with().card);
         gpumem::set_current_resource(with().card, gpumem::any_pool{with().pool});
         gpumem::reset_current_resource(with().card);
       }},
      {"scoped_current_resource",
       [] { gpumem::scoped_current_resource const set{with().card, gpumem::any_pool{with().pool}}; }},
      {"prefetch",
       [] {
         gpumem::managed_resource memory{with().card};
         void* const block = memory.allocate_sync(MiB, 256);
         struct freed {
           gpumem::managed_resource& memory;
           void* block;
           ~freed() { memory.deallocate_sync(block, MiB, 256); }
         } const end{memory, block};
         gpumem::prefetch(block, MiB, with().card, with().own);
       }},
  };
}

std::vector<row> coroutine_rows() {
  return {
      {"task sync_wait", [] { gpumem::sync_wait(number()); }},
      {"when_all extend::when_all_awaitable", [] { gpumem::sync_wait(gpumem::when_all(number(), number())); }},
      {"completion completion_options extend::completion_awaitable extend::completion_operation",
       [] { gpumem::sync_wait(wait_on_device()); }},
      {"acquire extend::acquire_awaitable extend::acquire_operation acquire_options",
       [] { gpumem::sync_wait(get_block()); }},
  };
}

} // namespace no_memory
