// Lines that must not compile. The comment behind the condition of each line is a part of the compiler's first message,
// which compile_refusals.sh looks for. Line 0 compiles.
// SPDX-License-Identifier: Apache-2.0
import gpumem;

using size = decltype(sizeof(0));

// A resource, but for one part of the concept each.
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

#if LINE == 0
static_assert(gpumem::mr::resource<whole>);
auto use(whole upstream) { return gpumem::statistics_adaptor{upstream}; }
#elif LINE == 1  // the upstream is no resource: it lacks the function void* allocate(
auto use(without_allocate upstream) { return gpumem::statistics_adaptor{upstream}; }
#elif LINE == 2  // the upstream is no resource: it lacks the function void deallocate_sync(
auto use(without_deallocate_sync upstream) { return gpumem::limiting_adaptor{upstream, {.limit = 100}}; }
#elif LINE == 3  // the upstream is no resource: it lacks operator==
auto use(without_equality upstream) { return gpumem::pool_resource{upstream}; }
#elif LINE == 4  // the upstream is no resource: it lacks the function void* allocate(
auto use(pool first, without_allocate second) { return gpumem::fallback_adaptor{first, second}; }
#elif LINE == 5  // the upstream is no resource: it lacks the function void* allocate(
auto use() { return gpumem::logging_adaptor{3, "log.csv"}; }
#elif LINE == 6  // no matching constructor|no viable constructor
auto use(pool upstream) { return gpumem::logging_adaptor(upstream, 1); }
#elif LINE == 7  // ignoring return value
void use(pool from, gpumem::stream_ref stream) { from.allocate(stream, 1); }
#elif LINE == 8  // ignoring return value
void use(pool from) { from.allocate_sync(1); }
#elif LINE == 9  // ignoring return value
void use(pool from, gpumem::stream_ref stream) { from.try_allocate(stream, 1); }
#elif LINE == 10 // ignoring return value
void use(pool from, gpumem::stream_ref stream) { from.acquire(stream, 1); }
#elif LINE == 11 // ignoring return value
void use(pool from, gpumem::stream_ref stream) { from.acquire(stream, 1).wait(); }
#elif LINE == 12 // ignoring return value
gpumem::task<> use(pool from, gpumem::stream_ref stream) { co_await from.acquire(stream, 1); }
#elif LINE == 13 // ignoring return value
void use(gpumem::task<> (*work)()) { work(); }
#elif LINE == 14 // no member named 'live' in
auto use(gpumem::any_pool from) { return gpumem::statistics_of(from).live; }
#endif
