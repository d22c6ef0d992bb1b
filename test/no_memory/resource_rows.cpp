// Rows of the resources and adaptors.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;

#include "parts.hpp"

namespace no_memory {
namespace {

gpumem::cuda_resource cuda() { return gpumem::cuda_resource{with().card}; }
gpumem::any_pool erased() { return gpumem::any_pool{with().pool}; }
auto by_callbacks() {
  return gpumem::callback_resource{
      with().card, [](auto stream, auto bytes, auto alignment) { return cuda().allocate(stream, bytes, alignment); },
      [](auto stream, void* block, auto bytes, auto alignment) { cuda().deallocate(stream, block, bytes, alignment); }};
}

void use_binning() {
  gpumem::binning_resource bins{with().pool, {10, 14, 16}};
  bins.add_fixed_bin(128 * KiB);
  bins.add_bin(1 * MiB, gpumem::pool_resource{cuda()});
  serve_fully(bins);
}

// A pool that other objects are made for: callbacks, scopes, graph memory, reports.
void use_pool() {
  gpumem::pool_resource pool{with().card, {.limit = 64 * MiB, .name = "a pool"}};
  gpumem::pressure_callback const called =
      pool.on_pressure(gpumem::default_executor(), [](std::size_t) { return std::size_t{0}; });
  serve_fully(pool);
  pool.reserve(8 * MiB);
  pool.describe_memory();
  void* const block = pool.allocate(with().own, MiB, 256);
  pool.record_use(block, with().other);
  pool.record_use(block, gpumem::stream_ref{with().raw});
  pool.deallocate(with().own, block);
}

void use_graph_memory() {
  gpumem::pool_resource<gpumem::cuda_resource> pool{with().card};
  gpumem::graph_resource memory{pool};
  CUgraph graph = nullptr;
  {
    gpumem::capture_scope const scope = pool.capture(memory, with().other);
    with().other.begin_capture();
    struct ended {
      CUgraph& graph;
      ~ended() {
        try {
          graph = with().other.end_capture();
        } catch (...) {}
      }
    } const end{graph};
    void* const block = pool.allocate(with().other, MiB, 256);
    pool.deallocate(with().other, block, MiB, 256);
  }
  if (graph != nullptr) gpumem::driver_api::driver().graph_destroy(graph);
}

void use_scope() {
  gpumem::scope work{with().pool, "work", gpumem::scope_options{}};
  serve_fully(work);
  gpumem::waiting_mark const mark = work.waiting_elsewhere();
}

void use_with_retry() {
  auto const body = []() -> gpumem::task<> { co_return; };
  gpumem::sync_wait(gpumem::with_retry(gpumem::scope{with().pool}, body, [] {}));
}

void use_tracking() {
  gpumem::tracking_adaptor tracked{with().pool, gpumem::tracking_options{.stack_depth = 4}};
  gpumem::tracking_label const label{"row"};
  gpumem::allocation const held = tracked.acquire(with().own, 1000).wait();
  std::vector<gpumem::tracked_block> const live = tracked.outstanding();
  serve_fully(tracked);
}

} // namespace

std::vector<row> resource_rows() {
  return {
      {"cuda_resource", [] { serve_fully(cuda()); }},
      {"async_resource async_options",
       [] { serve_fully(gpumem::async_resource{with().card, gpumem::async_options{}}); }, true},
      {"async_resource_view", [] { serve_fully(gpumem::async_resource_view{with().card}); }},
      {"async_managed_resource", [] { serve_fully(gpumem::async_managed_resource{with().card}); }},
      {"async_managed_resource_view", [] { serve_fully(gpumem::async_managed_resource_view{with().card}); }},
      {"async_pinned_resource", [] { serve_fully(gpumem::async_pinned_resource{with().card}); }},
      {"async_pinned_resource_view", [] { serve_fully(gpumem::async_pinned_resource_view{with().card}); }},
      {"managed_resource", [] { serve_fully(gpumem::managed_resource{with().card}); }},
      {"pinned_resource", [] { serve_fully(gpumem::pinned_resource{with().card}); }},
      {"host_resource", [] { serve_fully(gpumem::host_resource{}); }},
      {"system_resource system_options", [] { serve_fully(gpumem::system_resource{with().card, {.headroom = MiB}}); }},
      {"callback_resource callback_allocate callback_deallocate", [] { serve_fully(by_callbacks()); }},
      {"pool_resource pool_options pressure_callback", use_pool},
      {"pool_resource hardening_options",
       [] { serve_fully(gpumem::pool_resource{cuda(), {.hardened = {.enabled = true}}}); }},
      {"pool_resource", [] { serve_fully(gpumem::pool_resource{erased()}); }},
      {"pool_resource", [] { serve_fully(gpumem::pool_resource{gpumem::pinned_resource{with().card}}); }},
      {"pool_ref", [] { serve(gpumem::pool_ref{with().pool}); }},
      {"any_pool", [] { serve_fully(erased()); }},
      {"fixed_size_resource fixed_size_options",
       [] { serve_fully(gpumem::fixed_size_resource{cuda(), {4 * MiB, 4}}); }},
      {"arena_resource arena_options", [] { serve_fully(gpumem::arena_resource{cuda(), {.arena_size = 8 * MiB}}); }},
      {"binning_resource binning_options", use_binning},
      {"monotonic_resource monotonic_options",
       [] { serve_fully(gpumem::monotonic_resource{cuda(), {.region_size = 8 * MiB}}); }, true},
      {"graph_resource capture_scope", use_graph_memory},
  };
}

std::vector<row> adaptor_rows() {
  return {
      {"statistics_adaptor counter allocation_counts",
       [] {
         gpumem::statistics_adaptor counted{with().pool};
         counted.push_counters();
         serve_fully(counted);
         counted.pop_counters();
       }},
      {"logging_adaptor extend::log_sink logging_options",
       [] { serve_fully(gpumem::logging_adaptor{with().pool, gpumem::extend::log_sink{"/dev/null"}}); }},
      {"logging_adaptor log_format extend::served_by",
       [] {
         serve_fully(gpumem::logging_adaptor{
             with().pool, gpumem::extend::log_sink{"/dev/null"}, {.format = gpumem::log_format::binary}});
       }},
      {"limiting_adaptor limiting_options",
       [] { serve_fully(gpumem::limiting_adaptor{with().pool, {.limit = 64 * MiB}}); }},
      {"failing_adaptor failing_options failing_counts",
       [] {
         gpumem::failing_adaptor failing{with().pool, gpumem::failing_options{}};
         serve_fully(failing);
         failing.counts();
       }},
      {"prefetch_adaptor prefetch_options",
       [] { serve_fully(gpumem::prefetch_adaptor{gpumem::managed_resource{with().card}}); }},
      {"aligned_adaptor aligned_options",
       [] { serve_fully(gpumem::aligned_adaptor{with().pool, {.alignment = 4 * KiB, .threshold = KiB}}); }},
      {"fallback_adaptor",
       [] { serve_fully(gpumem::fallback_adaptor{with().pool, gpumem::managed_resource{with().card}}); }},
      {"failure_callback_adaptor failure_callback_options allocation_failure",
       [] { serve_fully(gpumem::failure_callback_adaptor{with().pool, {.callback = [](auto) { return false; }}}); }},
      {"thread_safe_adaptor", [] { serve_fully(gpumem::thread_safe_adaptor{with().pool}); }},
      {"tracking_adaptor tracking_options tracking_label tracked_block", use_tracking},
      {"scope scope_options waiting_mark", use_scope},
      {"with_retry", use_with_retry},
  };
}

} // namespace no_memory
