// The C++ headers over the C library, built by GCC in C++17, and in C++20 with CCCL. Argument: the case.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/gpumem_torch.h>
#include <gpumem/graph_memory.hpp>
#include <gpumem/growable.hpp>
#include <gpumem/pool.hpp>

#include <chrono>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "bridge_checks.hpp"

#if defined(GPUMEM_DETAIL_WITH_MEMORY_RESOURCE) && __cplusplus >= 202002L
static_assert(cuda::mr::resource_with<gpumem::pool, cuda::mr::device_accessible>);
static_assert(!cuda::mr::resource_with<gpumem::pool, cuda::mr::host_accessible>);
// Without this list cuda::make_buffer<T>(stream, pool, …) does not compile.
static_assert(
    std::is_same<gpumem::pool::default_queries, cuda::mr::properties_list<cuda::mr::device_accessible>>::value);
#endif

namespace {

bool contains(char const* text, char const* part) { return std::strstr(text, part) != nullptr; }

void growable_block_grows_and_gives_back() {
  gpumem::pool pool{0, "limit=64MiB"};
  auto* const stream = new_stream();
  gpumem::growable_block block{pool, stream, 1024 * mib, "initial=2MiB,page=2MiB,name=cache"};
  auto* const data = block.data();
  block.grow_to(stream, 32 * mib);
  REQUIRE(block.data() == data && block.bytes() == 32 * mib && block.sizes().reserved == 1024 * mib);
  auto const mapped = block.sizes().mapped;
  block.discard(stream, 4 * mib, 8 * mib);
  REQUIRE(block.sizes().mapped == mapped - 8 * mib && block.bytes() == 32 * mib);
  block.restore(stream, 4 * mib, 8 * mib, std::chrono::nanoseconds{-1});
  block.shrink_to(stream, 2 * mib);
  gpumem::growable_block moved{std::move(block)};
  REQUIRE(!block && moved.data() == data && moved.bytes() == 2 * mib);
  REQUIRE(contains(thrown_by<std::invalid_argument>([&] { block.grow_to(stream, mib); }).what(), "the buffer is NULL"));
  REQUIRE(thrown_by<gpumem::out_of_memory>([&] { moved.grow_to(stream, 2048 * mib); }).reason() ==
          gpumem::outcome::too_large);
  moved = gpumem::growable_block{};
  REQUIRE(pool.statistics().lent == 0);
}

void captures_get_graph_memory() {
  gpumem::pool pool{0};
  auto* const stream = new_stream();
  gpumem::graph_memory memory{pool};
  REQUIRE(memory.bytes() == 0);
  void* graph = nullptr;
  {
    auto opened = memory.capture(stream);
    auto const scope = std::move(opened);
    simulated_begin_capture(stream);
    auto* const first = pool.allocate(stream, 3 * mib);
    simulated_write(stream, first, 3 * mib);
    pool.deallocate(stream, first, 3 * mib);
    auto const second = pool.acquire(stream, 3 * mib);
    REQUIRE(second.data() == first);
    REQUIRE(contains(thrown_by<std::invalid_argument>([&] { (void)memory.capture(stream); }).what(), "scope"));
    graph = simulated_captured(stream);
  }
  REQUIRE(memory.bytes() >= 3 * mib && pool.statistics().live == memory.bytes());
  auto scope = memory.capture(stream);
  scope = memory.capture(new_stream()); // closes the first one
  auto const again = memory.capture(stream);
  simulated_launch(graph, stream);
  simulated_synchronize(stream);
  simulated_destroy_graph(graph);
  auto moved = std::move(memory);
  REQUIRE(contains(thrown_by<std::invalid_argument>([&] { (void)memory.bytes(); }).what(), "the graph memory is NULL"));
  moved = gpumem::graph_memory{pool};
  REQUIRE(moved.bytes() == 0);
}

void all_options_reach_the_pool() {
  gpumem::pool_options options;
  options.initial_size = 4 * mib;
  options.limit = 64 * mib;
  options.chunk_size = 2 * mib;
  options.smallest_block = 512;
  options.largest_block = 32 * mib;
  options.shard_per_thread = true;
  options.failure_report = "/dev/null";
  options.release_threshold = 48 * mib;
  options.effort = .25;
  options.cross_stream = gpumem::reuse_policy::completed;
  options.max_overtakes = 3;
  options.stall_timeout = std::chrono::milliseconds{1500};
  options.name = "bridge";
  REQUIRE(gpumem::detail::option_text{options}.text() ==
          "initial_size=4194304,limit=67108864,chunk_size=2097152,smallest_block=512,largest_block=33554432,"
          "shard_per_thread=on,failure_report=/dev/null,release_threshold=50331648,effort=0.25,cross_stream=completed,"
          "max_overtakes=3,stall_timeout=1.5s,name=bridge");
  gpumem::pool pool{0, options};
  auto const statistics = pool.statistics();
  REQUIRE(statistics.limit == 64 * mib);
  REQUIRE(statistics.largest_block == 32 * mib);
  REQUIRE(statistics.reserved >= 4 * mib);
}

void other_options_have_their_text() {
  gpumem::pool_options options;
  REQUIRE(gpumem::detail::option_text{options}.text().empty());
  options.pages = false;
  options.pass_through = true;
  options.hardened = {true, 512, 4 * mib, 1024, 16};
  options.cross_stream = gpumem::reuse_policy::ordered;
  REQUIRE(
      gpumem::detail::option_text{options}.text() ==
      "pages=off,cross_stream=ordered,pass_through=on,hardened=on,guard=512,quarantine=4194304,poison=1024,history=16");
  options.pass_through = false;
  gpumem::pool pool{0, options};
  pool.deallocate_sync(pool.allocate_sync(1000), 1000);
  REQUIRE(pool.statistics().quarantined > 0);
}

void numbers_have_a_point_in_any_language() {
  std::setlocale(LC_ALL, "de_DE.UTF-8"); // where it is installed
  gpumem::pool_options options;
  options.effort = .5;
  REQUIRE(gpumem::detail::option_text{options}.text() == "effort=0.5");
}

void wrong_options_are_refused() {
  gpumem::pool_options options;
  options.name = " a";
  thrown_by<std::invalid_argument>([&] { gpumem::pool{0, options}; });
  options.name = "a,b";
  REQUIRE(contains(thrown_by<std::invalid_argument>([&] { gpumem::pool{0, options}; }).what(), "'a,b'"));
  REQUIRE(contains(thrown_by<std::invalid_argument>([] { gpumem::pool{0, "size=1"}; }).what(), "'size' is unknown"));
  thrown_by<std::invalid_argument>([] { gpumem::pool{7}; });
  thrown_by<std::invalid_argument>([] { (void)gpumem::pool::share(nullptr); });
}

void blocks_are_allocated_and_freed() {
  gpumem::pool pool{0};
  REQUIRE(pool.device() == 0);
  auto* const stream = new_stream();
  auto* const block = pool.allocate(stream, 1000);
  auto const found = pool.find(static_cast<char*>(block) + 999);
  REQUIRE(found && found->live && found->base == block && found->bytes == 1000 && found->allocated >= 1000);
  REQUIRE(!pool.find(&pool));
  REQUIRE(pool.statistics().live == 1000);
  pool.set_label(block, "weights");
  pool.write_snapshot("/dev/null", "format=pickle");
  thrown_by<std::invalid_argument>([&] { pool.set_label(&pool, "foreign"); });
  thrown_by<std::invalid_argument>([&] { pool.write_snapshot("/no/such/folder/file"); });
  pool.deallocate(stream, block, 1000);
  auto* const again = pool.allocate(stream, 1000, 4096);
  REQUIRE(reinterpret_cast<std::uintptr_t>(again) % 4096 == 0);
  pool.deallocate(stream, again);
  REQUIRE(pool.allocate(stream, 0) == nullptr);
  pool.deallocate(stream, nullptr, 0);
  auto const statistics = pool.statistics();
  REQUIRE(statistics.live == 0 && statistics.allocations == 2 && statistics.frees == 2);
  thrown_by<std::invalid_argument>([&] { (void)pool.allocate(stream, 1, 3); });
}

void exceptions_have_the_figures() {
  gpumem::pool pool{0, "limit=8MiB"};
  auto* const stream = new_stream();
  auto* const block = pool.allocate(stream, 6 * mib);
  auto const e = thrown_by<gpumem::out_of_memory>([&] { (void)pool.allocate(stream, 6 * mib); });
  REQUIRE(e.reason() == gpumem::outcome::exhausted);
  REQUIRE(e.info().requested == 6 * mib && e.info().live == 6 * mib && e.info().limit == 8 * mib);
  REQUIRE(e.info().device == 0 && e.info().device_total == std::size_t{8} << 30);
  REQUIRE(std::string{e.what()} == gpumem_last_error());
  auto const large = thrown_by<gpumem::out_of_memory>([&] { (void)pool.allocate(stream, 9 * mib); });
  REQUIRE(large.reason() == gpumem::outcome::too_large);
  thrown_by<std::bad_alloc>([&] { (void)pool.allocate_sync(9 * mib); });
  pool.deallocate(stream, block, 6 * mib);
}

void exceptions_name_addresses_that_are_lacking() {
  simulated_reset_without_addresses(2);
  gpumem::pool pool{0, "name=bridge"};
  gpumem::detail::require(gpumem_open_to(pool.handle(), 1)); // no other device can use a chunk
  auto const e = thrown_by<gpumem::out_of_memory>([&] { (void)pool.allocate(new_stream(), mib); });
  REQUIRE(e.reason() == gpumem::outcome::exhausted && e.info().no_addresses);
  REQUIRE(contains(e.what(), "gpumem: out of addresses (exhausted) in 'bridge': requested 1.0 MiB, "));
}

void requests_can_fail_without_an_exception() {
  gpumem::pool pool{0, "limit=8MiB"};
  auto* const stream = new_stream();
  auto const got = pool.try_allocate(stream, 6 * mib);
  REQUIRE(got && *got && got.error().reason == gpumem::outcome::granted);
  auto const refused = pool.try_allocate(stream, 6 * mib);
  REQUIRE(!refused && !refused.has_value() && !*refused);
  REQUIRE(refused.error() == (gpumem::failure{gpumem::outcome::exhausted, 0, 6 * mib}));
  REQUIRE(pool.try_allocate(stream, 1, 3).error().reason == gpumem::outcome::invalid_argument);
  REQUIRE(pool.try_allocate(stream, 0));
  pool.deallocate(stream, *got, 6 * mib);
}

void the_drivers_error_is_kept() {
  gpumem::pool pool{0, "cuda"};
  auto* const stream = new_stream();
  simulated_begin_capture(stream);
  auto const refused = thrown_by<gpumem::acquire_error>([&] { (void)pool.allocate(stream, 100); });
  REQUIRE(refused.reason() == gpumem::outcome::capture_unsupported && refused.why().requested == 100);
  simulated_end_capture(stream);
}

void copies_share_the_pool() {
  auto* const stream = new_stream();
  gpumem::pool first{0};
  auto second = first;
  REQUIRE(first == second && !(first != second));
  REQUIRE(first != gpumem::pool{0});
  second.deallocate(stream, first.allocate(stream, 100), 100);
  auto const third = gpumem::pool::share(first.handle());
  first = gpumem::pool{0};
  REQUIRE(third == second && third.statistics().frees == 1 && first.statistics().frees == 0);
  gpumem::pool moved = std::move(second);
  REQUIRE(second.handle() == nullptr && moved == third);
  REQUIRE(contains(thrown_by<std::invalid_argument>([&] { (void)second.allocate(stream, 1); }).what(), "NULL"));
  second.deallocate(stream, nullptr, 0);
  REQUIRE(second.try_allocate(stream, 1).error().reason == gpumem::outcome::invalid_argument);
}

void wrong_frees_are_printed_and_do_nothing() {
  gpumem::pool pool{0};
  auto* const stream = new_stream();
  auto* const block = pool.allocate(stream, 100);
  pool.deallocate(stream, block, 99);
  pool.deallocate(stream, &pool, 100);
  REQUIRE(pool.statistics().live == 100);
  pool.deallocate(stream, block, 100);
  pool.deallocate(stream, block, 100);
  REQUIRE(pool.statistics().live == 0 && pool.statistics().frees == 1);
}

void blocks_free_themselves() {
  auto* const stream = new_stream();
  gpumem::pool_block block;
  REQUIRE(!block && block.bytes() == 0);
  {
    gpumem::pool pool{0};
    block = gpumem::pool_block{pool, stream, 100};
    gpumem::pool_block other = pool.acquire(stream, 200);
    REQUIRE(other.stream() == stream && other.bytes() == 200);
    gpumem::pool_block moved{std::move(other)};
    REQUIRE(!other && moved && pool.statistics().live == 300);
    moved = std::move(block);
    REQUIRE(pool.statistics().live == 100);
    block = std::move(moved);
    auto* const kept = pool.acquire(stream, 50).release();
    REQUIRE(pool.statistics().live == 150);
    pool.deallocate(stream, kept, 50);
    pool.acquire(stream, 10).reset(new_stream());
    gpumem::pool_block const aligned{pool, stream, 10, 4096};
    REQUIRE(reinterpret_cast<std::uintptr_t>(aligned.data()) % 4096 == 0);
  }
  REQUIRE(block && block.bytes() == 100); // and keeps the pool alive
  block.reset();
  REQUIRE(!block && block.data() == nullptr);
}

void requests_wait_for_memory() {
  gpumem::pool pool{0, "limit=8MiB"};
  auto* const stream = new_stream();
  auto* const block = pool.allocate(stream, 6 * mib);
  auto const late = thrown_by<gpumem::acquire_error>(
      [&] { (void)pool.allocate_within(std::chrono::milliseconds{1}, stream, 6 * mib); });
  REQUIRE(late.reason() == gpumem::outcome::deadline && late.why().requested == 6 * mib);
  std::thread freeing{[&] {
    while (pool.statistics().waiting == 0) std::this_thread::yield();
    pool.deallocate(stream, block, 6 * mib);
  }};
  auto const granted = pool.acquire(stream, 6 * mib);
  freeing.join();
  REQUIRE(granted.data() == block);
  thrown_by<gpumem::out_of_memory>([&] { (void)pool.acquire(stream, 9 * mib); });
  thrown_by<gpumem::acquire_error>([&] { (void)pool.acquire(stream, 6 * mib, std::chrono::nanoseconds{-1}); });
}

void the_pool_can_be_steered() {
  gpumem::pool pool{0};
  pool.reserve(16 * mib);
  REQUIRE(pool.statistics().reserved >= 16 * mib);
  REQUIRE(pool.synchronize() && pool.synchronize(std::chrono::nanoseconds{1}));
  REQUIRE(pool.trim(8 * mib) > 0);
  REQUIRE(pool.trim() > 0 && pool.statistics().reserved == 0);
  pool.set_limit(4 * mib);
  REQUIRE(pool.statistics().limit == 4 * mib);
  thrown_by<gpumem::out_of_memory>([&] { pool.reserve(8 * mib); });
  auto* const stream = new_stream();
  auto* const other = new_stream();
  auto* const block = pool.allocate(stream, 100);
  simulated_write(other, block, 100);
  pool.record_use(block, other);
  pool.deallocate(stream, block, 100);
  thrown_by<std::invalid_argument>([&] { pool.record_use(&pool, other); });
}

void stacks_are_made_from_text() {
  gpumem::pool pool{0, std::string{"limiting(pool(managed),limit=8MiB)"}};
  auto* const stream = new_stream();
  auto const block = pool.acquire(stream, 6 * mib);
  REQUIRE(!pool.try_allocate(stream, 6 * mib));
  thrown_by<gpumem::acquire_error>([&] { (void)pool.acquire(stream, 6 * mib, std::chrono::milliseconds{1}); });
  thrown_by<std::invalid_argument>([&] { pool.reserve(mib); });
  thrown_by<std::invalid_argument>([&] { pool.set_limit(mib); });
  REQUIRE(pool.synchronize());
}

// The last free on each stream leaves no event.
void release_on_leaves_nothing() {
  for (std::string const text :
       {"", "pages=off", "limit=1GiB", "pool(async)", "arena(cuda,arena_size=16MiB)", "shard_per_thread=on",
        "binning(pool(cuda),min_exponent=16,max_exponent=20)", "pages=off,chunk_size=64MiB"}) {
    for (bool const by_object : {false, true}) {
      auto const before = simulated_device_bytes();
      gpumem_pool* made = nullptr;
      REQUIRE(gpumem_make_pool(0, text.c_str(), &made) == GPUMEM_GRANTED);
      void* const streams[] = {new_stream(), new_stream()};
      for (std::size_t i = 0; i < 400; ++i) {
        void* block = nullptr;
        auto const bytes = i * 7919 % (3 * mib) + 1;
        REQUIRE(gpumem_allocate(made, streams[i % 2], bytes, 256, &block) == GPUMEM_GRANTED);
        simulated_write(streams[i % 2], block, 1);
        REQUIRE(gpumem_free_sized(made, streams[i % 2], block, bytes) == GPUMEM_GRANTED);
      }
      if (by_object) {
        auto pool = gpumem::pool::share(made);
        gpumem_release(made);
        pool.release_on(static_cast<CUstream_st*>(streams[0]), static_cast<CUstream_st*>(streams[1]));
      } else {
        REQUIRE(gpumem_release_on(made, streams, 2) == GPUMEM_GRANTED);
      }
      auto const end = std::chrono::steady_clock::now() + std::chrono::seconds{10};
      while (simulated_device_bytes() != before && std::chrono::steady_clock::now() < end) simulated_run();
      REQUIRE(simulated_device_bytes() == before);
    }
  }
}

void null_is_one_default_stream_for_all_threads() {
  gpumem::pool pool{0};
  auto* const mine = pool.allocate(nullptr, 100);
  void* theirs = nullptr;
  std::thread{[&] {
    simulated_make_current(0);
    theirs = pool.allocate(nullptr, 100);
  }}.join();
  REQUIRE(pool.find(mine)->stream == pool.find(theirs)->stream);
  pool.deallocate(nullptr, mine, 100);
  pool.deallocate(nullptr, theirs, 100);
}

void pytorch_and_the_program_share_a_pool() {
  gpumem::pool pool{0, "name=ours"};
  gpumem_pool* torch = nullptr;
  REQUIRE(gpumem_torch_pool(0, &torch) == GPUMEM_GRANTED && !torch);
  REQUIRE(gpumem_torch_share_pool(0, nullptr) == GPUMEM_INVALID_ARGUMENT);
  REQUIRE(gpumem_torch_share_pool(1, pool.handle()) == GPUMEM_INVALID_ARGUMENT);
  gpumem::pool const stack{0, "aligned(pool)"};
  REQUIRE(gpumem_torch_set_memory_fraction(.5, 0) == GPUMEM_GRANTED);
  REQUIRE(gpumem_torch_share_pool(0, stack.handle()) == GPUMEM_INVALID_ARGUMENT); // its limit cannot change
  REQUIRE(gpumem_torch_share_pool(0, pool.handle()) == GPUMEM_GRANTED);
  REQUIRE(pool.statistics().limit > 0);
  REQUIRE(gpumem_torch_share_pool(0, pool.handle()) == GPUMEM_INVALID_ARGUMENT); // once
  auto* const stream = new_stream();
  auto* const tensor = gpumem_torch_try_allocate(mib, 0, stream);
  REQUIRE(pool.statistics().live == mib && pool.find(tensor)->base == tensor);
  gpumem_torch_free(tensor, mib, 0, stream);
  REQUIRE(gpumem_torch_pool(0, &torch) == GPUMEM_GRANTED);
  REQUIRE(gpumem::pool::share(torch) == pool && pool.statistics().live == 0);
}

void cccl_takes_the_pool_as_a_resource() {
#if defined(GPUMEM_DETAIL_WITH_MEMORY_RESOURCE)
  gpumem::pool pool{0};
  cuda::stream_ref const stream{new_stream()};
  {
    cuda::mr::any_resource<cuda::mr::device_accessible> erased{pool};
    cuda::mr::any_resource<cuda::mr::device_accessible> const managed{gpumem::pool{0, "pool(managed)"}};
    cuda::mr::dynamic_accessibility_property const told{};
    REQUIRE(get_property(managed, told) != get_property(erased, told)); // the host can access managed memory
    auto* const block = erased.allocate(stream, 100, 256);
    REQUIRE(pool.statistics().live == 100);
    erased.deallocate(stream, block, 100, 256);
    cuda::mr::resource_ref<cuda::mr::device_accessible> const reference{pool};
    REQUIRE(pool.statistics().live == 0);
  }
  auto const block = pool.acquire(stream, 100);
  REQUIRE(block.stream() == stream.get());
#endif
}

struct test_case {
  char const* name;
  void (*run)();
};

constexpr test_case cases[] = {
    {"all_options_reach_the_pool", all_options_reach_the_pool},
    {"captures_get_graph_memory", captures_get_graph_memory},
    {"growable_block_grows_and_gives_back", growable_block_grows_and_gives_back},
    {"other_options_have_their_text", other_options_have_their_text},
    {"numbers_have_a_point_in_any_language", numbers_have_a_point_in_any_language},
    {"wrong_options_are_refused", wrong_options_are_refused},
    {"blocks_are_allocated_and_freed", blocks_are_allocated_and_freed},
    {"exceptions_have_the_figures", exceptions_have_the_figures},
    {"exceptions_name_addresses_that_are_lacking", exceptions_name_addresses_that_are_lacking},
    {"requests_can_fail_without_an_exception", requests_can_fail_without_an_exception},
    {"the_drivers_error_is_kept", the_drivers_error_is_kept},
    {"copies_share_the_pool", copies_share_the_pool},
    {"wrong_frees_are_printed_and_do_nothing", wrong_frees_are_printed_and_do_nothing},
    {"blocks_free_themselves", blocks_free_themselves},
    {"requests_wait_for_memory", requests_wait_for_memory},
    {"the_pool_can_be_steered", the_pool_can_be_steered},
    {"stacks_are_made_from_text", stacks_are_made_from_text},
    {"release_on_leaves_nothing", release_on_leaves_nothing},
    {"null_is_one_default_stream_for_all_threads", null_is_one_default_stream_for_all_threads},
    {"pytorch_and_the_program_share_a_pool", pytorch_and_the_program_share_a_pool},
    {"cccl_takes_the_pool_as_a_resource", cccl_takes_the_pool_as_a_resource},
};

} // namespace

int main(int argc, char** argv) {
  for (auto const& each : cases) {
    if (argc == 2 && std::strcmp(argv[1], each.name) != 0) continue;
    simulated_reset(1);
    each.run();
    if (simulated_finish() != 0) return 1;
    if (argc == 2) return 0;
  }
  return argc == 2 ? 2 : 0;
}
