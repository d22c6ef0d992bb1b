// Heaps for kernels from C++17, over the C library and CUDA's runtime, built by GCC. Argument: the case.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/device_heap_host.hpp>
#include <gpumem/pool.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "bridge_checks.hpp"

namespace {

namespace detail = gpumem::heap_detail;

gpumem::device_heap_options options_of(std::size_t bytes, std::size_t reserve, char const* name = "nodes") {
  gpumem::device_heap_options options;
  options.bytes = bytes;
  options.reserve = reserve;
  options.name = name;
  return options;
}

template <class T> T& metadata_at(gpumem::heap_view const& heap, std::size_t offset) {
  return *reinterpret_cast<T*>(heap.metadata() + offset);
}

// Does what kernels would do, since kernels do not run here: takes slab 0 for 64-byte blocks, and makes it full.
void use_slab(gpumem::heap_view const& heap) {
  metadata_at<std::uint64_t>(heap, heap.layout().sets()) &= ~std::uint64_t{1};
  metadata_at<std::uint32_t>(heap, heap.layout().states()) = detail::make_state(3, 24);
}

void heap_grows_is_reset_and_tells_statistics() {
  gpumem::pool pool{0, "limit=256MiB"};
  auto* const stream = new_stream();
  gpumem::device_heap heap{pool, stream, options_of(3 * mib, 1024 * mib)};
  auto const old = heap.view();
  REQUIRE(heap.bytes() == 4 * mib && heap.reserved_addresses() == 1024 * mib);
  auto const empty = heap.statistics(stream);
  REQUIRE(empty.bytes == 4 * mib && empty.free == 4 * mib && empty.live == 0 && empty.failed == 0);
  REQUIRE(metadata_at<std::uint64_t>(old, old.layout().sets()) == ~std::uint64_t{0});
  REQUIRE(metadata_at<std::uint64_t>(old, old.layout().sets() + 8) == 0);
  use_slab(old);
  heap.grow_to(stream, 6 * mib);
  heap.grow_to(stream, mib);
  auto const used = heap.statistics(stream);
  REQUIRE(heap.bytes() == 6 * mib && heap.view().data() == old.data() && heap.view().metadata() == old.metadata());
  REQUIRE(metadata_at<std::uint64_t>(old, old.layout().sets() + 8) == 0xffffffffu);
  REQUIRE(used.live == 1000 && used.classes[2].live == 1000 && used.free == 6 * mib - (64 << 10));
  heap.reset(stream);
  auto const reset = heap.statistics(stream);
  REQUIRE(reset.live == 0 && reset.free == 6 * mib);
  REQUIRE(metadata_at<std::uint64_t>(old, old.layout().sets()) == ~std::uint64_t{0});
}

void failures_leave_the_heap_as_it_was() {
  gpumem::pool pool{0, "limit=64MiB"};
  auto* const stream = new_stream();
  gpumem::device_heap heap{pool, stream, options_of(4 * mib, std::size_t{16} << 30)};
  auto const lent = pool.statistics().lent;
  auto const large = thrown_by<gpumem::out_of_memory>([&] { heap.grow_to(stream, std::size_t{17} << 30); });
  REQUIRE(large.reason() == gpumem::outcome::too_large);
  REQUIRE(std::strcmp(large.what(), "gpumem: nodes: a growth to 18253611008 bytes exceeds the 17179869184 bytes of "
                                    "reserved addresses") == 0);
  auto const block = pool.acquire(stream, 40 * mib);
  auto const late =
      thrown_by<gpumem::acquire_error>([&] { heap.grow_to(stream, 60 * mib, std::chrono::milliseconds{1}); });
  REQUIRE(late.reason() == gpumem::outcome::deadline);
  REQUIRE(heap.bytes() == 4 * mib && pool.statistics().lent == lent);
  heap.grow_to(stream, 8 * mib, std::chrono::nanoseconds{-1});
  simulated_run();
  simulated_begin_capture(stream);
  REQUIRE(thrown_by<gpumem::acquire_error>([&] { heap.grow_to(stream, 16 * mib); }).reason() ==
          gpumem::outcome::capture_unsupported);
  REQUIRE(thrown_by<gpumem::acquire_error>([&] { heap.statistics(stream); }).reason() ==
          gpumem::outcome::capture_unsupported);
  heap.reset(stream);
  simulated_end_capture(stream);
  REQUIRE(heap.bytes() == 8 * mib && heap.statistics(stream).free == 8 * mib);
}

void heap_is_moved_and_can_be_empty() {
  static_assert(std::is_nothrow_move_constructible_v<gpumem::device_heap> &&
                    std::is_nothrow_move_assignable_v<gpumem::device_heap>,
                "moves throw nothing");
  gpumem::pool pool{0};
  auto* const stream = new_stream();
  gpumem::device_heap one{pool, stream, options_of(4 * mib, 0)};
  auto* const data = one.view().data();
  gpumem::device_heap two{std::move(one)};
  REQUIRE(!one && one.bytes() == 0 && one.reserved_addresses() == 0 && two.view().data() == data);
  REQUIRE(std::strcmp(thrown_by<std::invalid_argument>([&] { one.reset(stream); }).what(),
                      "gpumem: device_heap: the heap is empty; was it moved from?") == 0);
  thrown_by<std::invalid_argument>([&] { one.view(); });
  thrown_by<std::invalid_argument>([&] { one.statistics(stream); });
  thrown_by<std::invalid_argument>([&] { one.grow_to(stream, 1); });
  two = gpumem::device_heap{};
  REQUIRE(pool.statistics().lent == 0);
}

void wrong_options_are_refused() {
  gpumem::pool pool{0};
  auto* const stream = new_stream();
  auto const make = [&](gpumem::device_heap_options const& options) {
    return [&pool, stream, options] { gpumem::device_heap{pool, stream, options}; };
  };
  REQUIRE(std::strcmp(thrown_by<std::invalid_argument>(make(options_of(6, 5))).what(),
                      "gpumem: nodes: the initial 6 bytes exceed the 5 bytes of addresses") == 0);
  thrown_by<std::invalid_argument>(make(options_of(0, 0)));
  thrown_by<std::invalid_argument>(make(options_of(0, (std::size_t{1} << 40) + 1)));
  thrown_by<std::invalid_argument>(make(options_of(mib, 0, "a,page=3")));
  REQUIRE(pool.statistics().lent == 0);
}

struct test_case {
  char const* name;
  void (*run)();
};

constexpr test_case cases[] = {
    {"heap_grows_is_reset_and_tells_statistics", heap_grows_is_reset_and_tells_statistics},
    {"failures_leave_the_heap_as_it_was", failures_leave_the_heap_as_it_was},
    {"heap_is_moved_and_can_be_empty", heap_is_moved_and_can_be_empty},
    {"wrong_options_are_refused", wrong_options_are_refused},
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
