// Mistakes that must not compile. compile_refusals.sh compiles the file with each value of PART: 0 compiles, in 1 the
// first error is the one that its comment says, and 2 has all errors that its comments say.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/simulator.hpp>

import gpumem;

using size = decltype(sizeof(0));

// Resources, but for one part of the concept.
struct without_allocate {
  void deallocate(gpumem::stream_ref, void*, size, size);
  void* allocate_sync(size, size);
  void deallocate_sync(void*, size, size);
  bool operator==(without_allocate const&) const = default;
};
struct without_deallocate_sync {
  void* allocate(gpumem::stream_ref, size, size);
  void deallocate(gpumem::stream_ref, void*, size, size);
  void* allocate_sync(size, size);
  bool operator==(without_deallocate_sync const&) const = default;
};
struct without_equality {
  void* allocate(gpumem::stream_ref, size, size);
  void deallocate(gpumem::stream_ref, void*, size, size);
  void* allocate_sync(size, size);
  void deallocate_sync(void*, size, size);
};
struct whole : without_equality {
  bool operator==(whole const&) const;
};

using pool = gpumem::pool_resource<gpumem::cuda_resource>;

#if PART == 0
static_assert(gpumem::mr::resource<whole>);
static_assert(!gpumem::mr::has_allocate<without_allocate>);
#elif PART == 1
// error: the upstream is no resource: it lacks the function void* allocate(
auto deduced(without_allocate upstream) { return gpumem::statistics_adaptor{upstream}; }
#else
// error: the upstream is no resource: it lacks the function void deallocate_sync(
auto limited(without_deallocate_sync upstream) { return gpumem::limiting_adaptor{upstream, {.limit = 100}}; }
// error: the upstream is no resource: it lacks operator==
auto pooled(without_equality upstream) { return gpumem::pool_resource{upstream}; }
// error: the upstream is no resource: it lacks the function void* allocate(
auto second(pool first, without_allocate second) { return gpumem::fallback_adaptor{first, second}; }
// error: no matching constructor for initialization of 'gpumem::logging_adaptor<pool>'
auto logged(pool upstream) { return gpumem::logging_adaptor<pool>(upstream, 1); }
// error: no member named 'live' in
auto silent(gpumem::any_pool from) { return gpumem::statistics_of(from).live; }
// error: simulator::checked has `acquire` only over a resource of gpumem that is not erased
void wait_erased(gpumem::simulator::checked<gpumem::any_pool> from, gpumem::stream_ref stream) {
  from.acquire(stream, 1);
}

// error: 7 ignoring return value
void drop(pool from, gpumem::stream_ref stream, gpumem::task<> (*work)()) {
  from.allocate(stream, 1);
  from.allocate_sync(1);
  from.try_allocate(stream, 1);
  from.acquire(stream, 1);
  from.acquire(stream, 1).wait();
  work();
}
gpumem::task<> drop_awaited(pool from, gpumem::stream_ref stream) { co_await from.acquire(stream, 1); }
#endif
