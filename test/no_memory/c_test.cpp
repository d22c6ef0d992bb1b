// Each function of the C headers with each of its host allocations refused once: it returns an outcome or throws what
// its comment says, and no memory is lost.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/gpumem.h>
#include <gpumem/gpumem_torch.h>
#include <gpumem/simulator.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include <cuda.h>
#include <dlfcn.h>

#include "../support/failing_new.hpp"
#include "rows.hpp"

namespace {

namespace simulator = gpumem::simulator;
using no_memory::KiB;
using no_memory::MiB;
using no_memory::row;

template <class Function> Function* driver_function(char const* name) {
  return reinterpret_cast<Function*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
}

struct made_by_the_caller {
  gpumem_pool* pool = nullptr;
  CUstream raw = nullptr;
};
made_by_the_caller with;

void* block_of(std::size_t bytes = MiB) {
  void* block = nullptr;
  gpumem_allocate(with.pool, with.raw, bytes, GPUMEM_ALIGNMENT, &block);
  return block;
}
void free_block(void* block) { EXPECT_EQ(gpumem_free(with.pool, with.raw, block), GPUMEM_GRANTED); }

void make(char const* options) {
  gpumem_pool* pool = nullptr;
  if (gpumem_make_pool(0, options, &pool) != GPUMEM_GRANTED) return;
  void* block = nullptr;
  if (gpumem_allocate(pool, with.raw, MiB, GPUMEM_ALIGNMENT, &block) == GPUMEM_GRANTED)
    gpumem_free(pool, with.raw, block);
  gpumem_release(pool);
}

void* take(void*, void*, size_t bytes, size_t) {
  CUdeviceptr made = 0;
  static auto* const allocate = driver_function<decltype(cuMemAlloc)>("cuMemAlloc_v2");
  return allocate(&made, bytes) == CUDA_SUCCESS ? reinterpret_cast<void*>(made) : nullptr;
}
void give(void*, void*, void* pointer, size_t, size_t) {
  static auto* const free = driver_function<decltype(cuMemFree)>("cuMemFree_v2");
  free(reinterpret_cast<CUdeviceptr>(pointer));
}

void on_block(void (*use)(void*)) {
  void* const block = block_of();
  if (block == nullptr) return;
  use(block);
  free_block(block);
}

std::vector<row> pool_rows() {
  return {
      {"gpumem_version gpumem_outcome_name gpumem_last_error",
       [] {
         gpumem_version();
         gpumem_outcome_name(GPUMEM_EXHAUSTED);
         gpumem_last_error();
       }},
      {"gpumem_make_pool gpumem_retain gpumem_release", [] { make("limit=64MiB,name=a"); }},
      {"gpumem_make_pool", [] { make("binning(pool(managed,limit=80GiB),bins=256KiB:fixed)"); }},
      {"gpumem_make_pool", [] { make("limiting(statistics(tracking(arena(cuda))),limit=1GiB)"); }},
      {"gpumem_make_pool", [] { make("hardened=on"); }},
      {"gpumem_make_pool", [] { make("no such option"); }},
      {"gpumem_make_observed_pool",
       [] {
         gpumem_page_observer observer{};
         observer.size = sizeof observer;
         observer.changed = [](void*, void*, size_t, int) {};
         gpumem_pool* pool = nullptr;
         if (gpumem_make_observed_pool(0, &observer, "", &pool) == GPUMEM_GRANTED) gpumem_release(pool);
       }},
      {"gpumem_allocate gpumem_free", [] { on_block([](void*) {}); }},
      {"gpumem_acquire gpumem_free_sized",
       [] {
         void* block = nullptr;
         if (gpumem_acquire(with.pool, with.raw, MiB, 256, 1000, &block) == GPUMEM_GRANTED)
           gpumem_free_sized(with.pool, with.raw, block, MiB);
       }},
      {"gpumem_allocate gpumem_read_failure",
       [] {
         block_of(std::size_t{1} << 50);
         gpumem_failure failure{};
         failure.size = sizeof failure;
         gpumem_read_failure(&failure);
       }},
      {"gpumem_free_pointer",
       [] {
         if (void* const block = block_of()) EXPECT_EQ(gpumem_free_pointer(block), GPUMEM_GRANTED);
       }},
      {"gpumem_pool_of gpumem_find gpumem_record_use",
       [] {
         on_block([](void* block) {
           gpumem_pool* found = nullptr;
           gpumem_pool_of(block, &found);
           gpumem_block told{};
           told.size = sizeof told;
           gpumem_find(with.pool, block, &told);
           gpumem_record_use(with.pool, block, GPUMEM_STREAM_PER_THREAD);
         });
       }},
      {"gpumem_allocate_sync gpumem_free_sync",
       [] {
         void* block = nullptr;
         if (gpumem_allocate_sync(with.pool, MiB, 256, &block) == GPUMEM_GRANTED)
           gpumem_free_sync(with.pool, block, MiB);
       }},
      {"gpumem_synchronize gpumem_trim gpumem_set_limit gpumem_reset_peaks gpumem_device gpumem_open_to "
       "gpumem_host_accessible",
       [] {
         std::size_t given = 0;
         int device = 0;
         gpumem_synchronize(with.pool, 1000);
         gpumem_trim(with.pool, 0, &given);
         gpumem_set_limit(with.pool, 0);
         gpumem_reset_peaks(with.pool);
         gpumem_device(with.pool, &device);
         gpumem_open_to(with.pool, 1);
         int accessible = 0;
         gpumem_host_accessible(with.pool, &accessible);
       }},
      {"gpumem_release_on",
       [] {
         gpumem_pool* made = nullptr;
         if (gpumem_make_pool(0, "", &made) != GPUMEM_GRANTED) return;
         void* const streams[] = {GPUMEM_STREAM_PER_THREAD};
         if (gpumem_release_on(made, streams, 1) != GPUMEM_GRANTED) gpumem_release(made);
       }},
      {"gpumem_reserve", [] { gpumem_reserve(with.pool, 8 * MiB); }},
      {"gpumem_set_label gpumem_write_snapshot",
       [] {
         on_block([](void* block) {
           static int number = 0; // a text that is known already needs no memory
           auto const label = "label " + std::to_string(number++);
           gpumem_set_label(with.pool, block, label.c_str());
           gpumem_write_snapshot(with.pool, "/dev/null", "format=json");
           gpumem_write_snapshot(with.pool, "/dev/null", "format=pickle");
         });
       }},
      {"gpumem_read_statistics gpumem_visit_ranges",
       [] {
         gpumem_statistics now{};
         now.size = sizeof now;
         gpumem_read_statistics(with.pool, &now);
         gpumem_visit_ranges(with.pool, [](void*, gpumem_range const*) {}, nullptr);
       }},
  };
}

constexpr gpumem_torch_pool_id torch_pool{1, 2};

std::vector<row> torch_rows() {
  return {
      {"gpumem_torch_pool gpumem_torch_allocate gpumem_torch_free",
       [] {
         gpumem_pool* pool = nullptr;
         gpumem_torch_pool(0, &pool);
         if (void* const block = gpumem_torch_allocate(MiB, 0, with.raw)) gpumem_torch_free(block, MiB, 0, with.raw);
       }},
      {"gpumem_torch_try_allocate gpumem_torch_record_stream gpumem_torch_record_block_stream "
       "gpumem_torch_record_block_use",
       [] {
         void* const block = gpumem_torch_try_allocate(MiB, 0, with.raw);
         if (block == nullptr) return;
         struct freed {
           void* block;
           ~freed() { gpumem_torch_free(block, MiB, 0, with.raw); }
         } const end{block};
         gpumem_torch_record_block_stream(block, CU_STREAM_PER_THREAD, 0);
         gpumem_torch_record_block_use(block, CU_STREAM_PER_THREAD, 0, GPUMEM_TORCH_STREAM_LIVES);
         gpumem_torch_record_stream(block, CU_STREAM_PER_THREAD);
       }},
      {"gpumem_torch_allocate_block gpumem_torch_allocate_rounded_block gpumem_torch_free_block "
       "gpumem_torch_describe_block",
       [] {
         void* block = nullptr;
         gpumem_torch_block told{};
         told.size = sizeof told;
         if (gpumem_torch_allocate_block(MiB, 0, with.raw, 0, &block) == GPUMEM_GRANTED) {
           gpumem_torch_describe_block(block, &told);
           EXPECT_EQ(gpumem_torch_free_block(block, nullptr), GPUMEM_GRANTED);
         }
         if (gpumem_torch_allocate_rounded_block(MiB, 2 * MiB, 0, with.raw, 0, &block) == GPUMEM_GRANTED)
           EXPECT_EQ(gpumem_torch_free_block(block, nullptr), GPUMEM_GRANTED);
       }},
      {"gpumem_torch_configure gpumem_torch_share_pool gpumem_torch_open_to gpumem_torch_observe_pages",
       [] {
         gpumem_torch_configure("limit=1GiB");
         gpumem_torch_share_pool(0, with.pool);
         gpumem_torch_open_to(1, 0);
         gpumem_torch_observe_pages(nullptr);
       }},
      {"gpumem_torch_set_memory_fraction gpumem_torch_memory_fraction",
       [] {
         gpumem_torch_set_memory_fraction(1, 0);
         gpumem_torch_memory_fraction(1, 0);
       }},
      {"gpumem_torch_visit_ranges gpumem_torch_read_statistics gpumem_torch_reset_peaks gpumem_torch_reset_totals",
       [] {
         gpumem_torch_visit_ranges(
             0, [](void*, gpumem_range const*, unsigned long long, unsigned long long) {}, nullptr);
         gpumem_torch_statistics now{};
         now.size = sizeof now;
         gpumem_torch_read_statistics(0, &now);
         gpumem_torch_reset_peaks(0);
         gpumem_torch_reset_totals(0);
       }},
      {"gpumem_torch_share_block gpumem_torch_open_shared gpumem_torch_close_shared",
       [] {
         void* const block = gpumem_torch_try_allocate(MiB, 0, with.raw);
         if (block == nullptr) return;
         char name[GPUMEM_TORCH_NAME_SIZE];
         std::size_t offset = 0;
         void* base = nullptr;
         gpumem_torch_share_block(block, name, &offset);
         if (gpumem_torch_open_shared("no such name", 0, &base) == GPUMEM_GRANTED) gpumem_torch_close_shared(base);
         gpumem_torch_free(block, MiB, 0, with.raw);
       }},
      {"gpumem_torch_empty_cache", [] { gpumem_torch_empty_cache(); }},
      {"gpumem_torch_retain_pool gpumem_torch_pool_use_count gpumem_torch_use_pool_on_out_of_memory "
       "gpumem_torch_set_pool_unsplit gpumem_torch_empty_pool gpumem_torch_restore_pool gpumem_torch_release_pool",
       [] {
         int uses = 0;
         if (gpumem_torch_retain_pool(0, torch_pool, nullptr) != GPUMEM_GRANTED) return;
         gpumem_torch_pool_use_count(0, torch_pool, &uses);
         gpumem_torch_use_pool_on_out_of_memory(0, torch_pool, 0);
         gpumem_torch_set_pool_unsplit(0, torch_pool);
         gpumem_torch_restore_pool(0, torch_pool, nullptr, 0, [](void*, gpumem_range const*, int) {}, nullptr);
         gpumem_torch_release_pool(0, torch_pool);
         gpumem_torch_empty_pool(0, torch_pool);
       }},
      {"gpumem_torch_begin_allocate_to_pool gpumem_torch_end_allocate_to_pool",
       [] {
         gpumem_torch_begin_allocate_to_pool(0, torch_pool, [](CUstream_st*) { return true; });
         if (void* const block = gpumem_torch_try_allocate(MiB, 0, with.raw))
           gpumem_torch_free(block, MiB, 0, with.raw);
         EXPECT_NO_THROW(gpumem_torch_end_allocate_to_pool(0, torch_pool)) << "what has begun can end";
         gpumem_torch_release_pool(0, torch_pool);
         gpumem_torch_empty_pool(0, torch_pool);
       }},
      {"gpumem_make_pool_over",
       [] {
         gpumem_callbacks calls{};
         calls.size = sizeof calls;
         calls.allocate = take;
         calls.free = give;
         gpumem_pool* pool = nullptr;
         if (gpumem_make_pool_over(0, &calls, "", &pool) != GPUMEM_GRANTED) return;
         void* block = nullptr;
         if (gpumem_allocate(pool, with.raw, MiB, 256, &block) == GPUMEM_GRANTED) gpumem_free(pool, with.raw, block);
         gpumem_release(pool);
       }},
  };
}

std::vector<row> const& all_rows() {
  static auto const all = [] {
    auto made = pool_rows();
    for (auto& each : torch_rows()) made.push_back(std::move(each));
    return made;
  }();
  return all;
}

class no_host_memory_in_c : public testing::TestWithParam<std::size_t> {
protected:
  static void SetUpTestSuite() {
    simulator::load({.devices = 2, .mode = simulator::stepping::immediate});
    ASSERT_EQ(gpumem_make_pool(0, "", &with.pool), GPUMEM_GRANTED) << gpumem_last_error();
  }
  static void begin() {
    static auto* const retain = driver_function<decltype(cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain");
    static auto* const make_current = driver_function<decltype(cuCtxSetCurrent)>("cuCtxSetCurrent");
    static auto* const create = driver_function<decltype(cuStreamCreate)>("cuStreamCreate");
    CUcontext context = nullptr;
    retain(&context, 0);
    make_current(context);
    ASSERT_EQ(create(&with.raw, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  static void end() {
    static auto* const destroy = driver_function<decltype(cuStreamDestroy)>("cuStreamDestroy_v2");
    EXPECT_EQ(destroy(with.raw), CUDA_SUCCESS);
    gpumem_statistics now{};
    now.size = sizeof now;
    EXPECT_EQ(gpumem_read_statistics(with.pool, &now), GPUMEM_GRANTED);
    EXPECT_EQ(now.live, 0u);
    for (auto const& found : simulator::take_findings()) ADD_FAILURE() << found.text;
  }
};

std::string test_name(std::string names, std::size_t index) {
  for (char& each : names)
    if (each == ' ') each = '_';
  return names.substr(0, 60) + "_" + std::to_string(index);
}

INSTANTIATE_TEST_SUITE_P(row, no_host_memory_in_c, testing::Range(std::size_t{0}, all_rows().size()),
                         [](auto const& of) { return test_name(all_rows()[of.param].names, of.param); });

TEST_P(no_host_memory_in_c, ends_with_an_error_and_loses_nothing) {
  if (!test::new_can_fail) GTEST_SKIP();
  for (bool const only_one : {false, true}) no_memory::run(all_rows()[GetParam()], only_one, begin, end);
}

} // namespace
