// Stacks of resources that are described by text.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/gpumem.h>
#include <gpumem/gpumem_torch.h>
#include <gpumem/simulator.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <cuda/stream>

#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include "../../src/c/stack_text.hpp"

namespace {

namespace simulator = gpumem::simulator;
using gpumem::c::layer_text;
using testing::HasSubstr;

constexpr std::size_t kib = 1024, mib = 1024 * kib;

// Returns a function of the loaded driver.
template <class Function> Function* driver_function(char const* name) {
  return reinterpret_cast<Function*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
}

TEST(c_stack_text, layers_and_options_are_read) {
  auto outer =
      layer_text::read(" binning( pool(managed, limit=80GiB) , bins=256KiB:fixed;1MiB:pool(cuda,limit=1GiB) )");
  EXPECT_EQ(outer.name(), "binning");
  ASSERT_EQ(outer.inner().size(), 1u);
  auto pool = outer.inner()[0];
  EXPECT_EQ(pool.name(), "pool");
  EXPECT_EQ(pool.inner()[0].name(), "managed");
  EXPECT_EQ(pool.rest(), "limit=80GiB");
  EXPECT_EQ(pool.take("limit"), "80GiB");
  EXPECT_EQ(pool.rest(), "");
  EXPECT_EQ(outer.take("bins"), "256KiB:fixed;1MiB:pool(cuda,limit=1GiB)");
  EXPECT_EQ(outer.take("bins"), std::nullopt);
}

TEST(c_stack_text, options_alone_are_no_stack) {
  for (auto const* text : {"", " ", "limit=1GiB", "limit", "name=a(b)", "limit=1GiB,name=pool(cuda)", "=", ","})
    EXPECT_FALSE(layer_text::describes_stack(text)) << text;
  for (auto const* text : {"managed", " pool() ", "pool(limit=1GiB)", "what (ever", "unknown"})
    EXPECT_TRUE(layer_text::describes_stack(text)) << text;
}

class c_stack : public testing::Test {
protected:
  struct release {
    void operator()(gpumem_pool* pool) const { gpumem_release(pool); }
  };
  using handle = std::unique_ptr<gpumem_pool, release>;

  static void SetUpTestSuite() {
    simulator::options how;
    how.devices = 2;
    how.pageable_memory = true;
    simulator::load(how);
  }
  void SetUp() override { simulator::take_findings(); }
  void TearDown() override {
    EXPECT_EQ(simulator::run_until_idle(), 0u);
    for (auto const& finding : simulator::take_findings()) ADD_FAILURE() << finding.text;
  }

  static handle make(std::string const& text) {
    gpumem_pool* pool = nullptr;
    EXPECT_EQ(gpumem_make_pool(0, text.c_str(), &pool), GPUMEM_GRANTED) << text << ": " << gpumem_last_error();
    return handle{pool};
  }
  static void expect_refused(char const* text, char const* sentence) {
    gpumem_pool* pool = nullptr;
    EXPECT_EQ(gpumem_make_pool(0, text, &pool), GPUMEM_INVALID_ARGUMENT) << text;
    EXPECT_THAT(gpumem_last_error(), HasSubstr(sentence)) << text;
    EXPECT_EQ(pool, nullptr);
  }
  static void* allocate(handle const& from, std::size_t bytes) {
    void* block = nullptr;
    EXPECT_EQ(gpumem_allocate(from.get(), GPUMEM_STREAM_PER_THREAD, bytes, GPUMEM_ALIGNMENT, &block), GPUMEM_GRANTED)
        << gpumem_last_error();
    return block;
  }
  static CUstream make_stream() {
    CUcontext context = nullptr;
    CUstream made = nullptr;
    EXPECT_EQ(driver_function<CUresult(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain")(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(driver_function<CUresult(CUcontext)>("cuCtxSetCurrent")(context), CUDA_SUCCESS);
    EXPECT_EQ(driver_function<CUresult(CUstream*, unsigned)>("cuStreamCreate")(&made, CU_STREAM_NON_BLOCKING),
              CUDA_SUCCESS);
    return made;
  }
  static void destroy(CUstream stream) {
    EXPECT_EQ(driver_function<CUresult(CUstream)>("cuStreamDestroy_v2")(stream), CUDA_SUCCESS);
  }
  static gpumem_statistics statistics(handle const& of) {
    gpumem_statistics now{};
    now.size = sizeof now;
    EXPECT_EQ(gpumem_read_statistics(of.get(), &now), GPUMEM_GRANTED);
    return now;
  }
};

// Each resource serves all functions.
TEST_F(c_stack, every_resource_can_be_described) {
  for (auto const* text : {"cuda",
                           "async",
                           "managed",
                           "pinned",
                           "async_managed",
                           "system",
                           "system(headroom=1GiB)",
                           "pool(system(headroom=79GiB),limit=1GiB)",
                           "pool",
                           "pool(limit=1GiB)",
                           "pool(cuda,hardened=on)",
                           "fixed(block_size=1MiB)",
                           "fixed(pool(managed),block_size=64KiB,blocks_per_chunk=4,limit=1GiB)",
                           "arena(arena_size=8MiB,max_arenas=4)",
                           "arena(async)",
                           "binning(pool,min_exponent=10,max_exponent=12)",
                           "binning(pool(managed,limit=80GiB),bins=256KiB:fixed)",
                           "binning(cuda,bins=1KiB:pool(cuda);4KiB:upstream;8KiB:fixed,blocks_per_chunk=8)",
                           "limiting(pool,limit=1GiB)",
                           "logging(cuda,file=/dev/null)",
                           "logging(pool,file=/dev/null,format=binary)",
                           "logging(pool,file=/dev/null,format=binary,keep_last=1000)",
                           "statistics(limiting(statistics(pool(async)),limit=64MiB))",
                           "failing(pool,every=1000)",
                           "aligned(pool,alignment=4KiB,threshold=1KiB)",
                           "fallback(pool(limit=1MiB),managed)",
                           "fallback(fallback(pool(limit=1MiB),pool(cuda)),managed)",
                           "thread_safe(pool)",
                           "tracking(pool)",
                           "tracking(pool,stack_depth=0,freed_remembered=8,report=/dev/null)",
                           "prefetch(managed)",
                           "prefetch(pool(managed),to=host)"}) {
    SCOPED_TRACE(text);
    auto const pool = make(text), twin = make(text);
    if (!pool) continue;
    auto* const block = allocate(pool, 1000);
    ASSERT_NE(block, nullptr);
    EXPECT_GE(statistics(pool).live, 1000u);
    EXPECT_EQ(std::pair(statistics(twin).live, statistics(twin).peak_live), std::pair(0ul, 0ul)) << "another stack";
    EXPECT_EQ(statistics(twin).reserved + statistics(twin).reserved_in_all, 0u);
    gpumem_block found{};
    found.size = sizeof found;
    EXPECT_EQ(gpumem_find(pool.get(), static_cast<char*>(block) + 500, &found), GPUMEM_GRANTED);
    EXPECT_EQ(found.base, block);
    EXPECT_EQ(found.bytes, 1000u);
    EXPECT_EQ(found.live, 1u);
    EXPECT_EQ(gpumem_find(pool.get(), &found, &found), GPUMEM_GRANTED);
    EXPECT_EQ(found.base, nullptr);
    EXPECT_EQ(gpumem_free_sized(pool.get(), GPUMEM_STREAM_PER_THREAD, block, 999), GPUMEM_INVALID_ARGUMENT);
    EXPECT_EQ(gpumem_free(pool.get(), GPUMEM_STREAM_PER_THREAD, block), GPUMEM_GRANTED) << gpumem_last_error();
    EXPECT_EQ(gpumem_free(pool.get(), GPUMEM_STREAM_PER_THREAD, &found), GPUMEM_INVALID_ARGUMENT);
    EXPECT_EQ(gpumem_free(pool.get(), GPUMEM_STREAM_PER_THREAD, nullptr), GPUMEM_GRANTED);
    void* ready = nullptr;
    EXPECT_EQ(gpumem_allocate_sync(pool.get(), 100, 4096, &ready), GPUMEM_GRANTED) << gpumem_last_error();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(ready) % 4096, 0u);
    EXPECT_EQ(gpumem_free_sync(pool.get(), ready, 100), GPUMEM_GRANTED) << gpumem_last_error();
    std::size_t given = 0;
    EXPECT_EQ(gpumem_synchronize(pool.get(), 10'000'000'000), GPUMEM_GRANTED) << gpumem_last_error();
    EXPECT_EQ(gpumem_trim(pool.get(), 0, &given), GPUMEM_GRANTED);
    EXPECT_EQ(statistics(pool).live, 0u);
    bool const has_shards = std::string{text}.starts_with("arena"); // their peak is exact to 1/16 of the reserved bytes
    if (!has_shards) EXPECT_GE(statistics(pool).peak_live, 1000u);
    EXPECT_EQ(gpumem_reset_peaks(pool.get()), GPUMEM_GRANTED);
    EXPECT_EQ(statistics(pool).peak_live, 0u);
  }
}

TEST_F(c_stack, options_reach_their_layer) {
  auto const pool = make("limiting(pool(cuda,limit=64MiB,chunk_size=8MiB),limit=16MiB)");
  auto* const block = allocate(pool, mib);
  EXPECT_EQ(statistics(pool).reserved, 8 * mib);
  EXPECT_EQ(statistics(pool).limit, 16 * mib);
  void* refused = nullptr;
  EXPECT_EQ(gpumem_allocate(pool.get(), GPUMEM_STREAM_PER_THREAD, 17 * mib, 256, &refused), GPUMEM_TOO_LARGE);
  EXPECT_EQ(gpumem_free(pool.get(), GPUMEM_STREAM_PER_THREAD, block), GPUMEM_GRANTED);
}

TEST_F(c_stack, recorded_use_orders_the_free) {
  auto const pool = make("limiting(pool(cuda,limit=2MiB),limit=2MiB)");
  auto* const one = make_stream();
  auto* const other = make_stream();
  for (int round = 0; round < 10; ++round) {
    void* block = nullptr;
    ASSERT_EQ(gpumem_allocate(pool.get(), one, 2 * mib, 256, &block), GPUMEM_GRANTED) << gpumem_last_error();
    simulator::work(cuda::stream_ref{other}, {simulator::write(block, 2 * mib)}, std::chrono::microseconds{20});
    ASSERT_EQ(gpumem_record_use(pool.get(), block, other), GPUMEM_GRANTED) << gpumem_last_error();
    ASSERT_EQ(gpumem_free(pool.get(), one, block), GPUMEM_GRANTED) << gpumem_last_error();
  }
  int foreign = 0;
  EXPECT_EQ(gpumem_record_use(pool.get(), &foreign, other), GPUMEM_INVALID_ARGUMENT);
  destroy(one);
  destroy(other);
}

TEST_F(c_stack, free_without_a_stream_leaves_nothing_of_streams_that_end) {
  for (auto const* text : {"statistics(pool)", "async", "cuda"}) {
    auto const pool = make(text);
    std::uint64_t most = 0;
    for (int round = 0; round < 20; ++round) {
      auto* const stream = make_stream();
      void* block = nullptr;
      ASSERT_EQ(gpumem_allocate(pool.get(), stream, 64 * mib, GPUMEM_ALIGNMENT, &block), GPUMEM_GRANTED);
      EXPECT_EQ(gpumem_free_pointer(block), GPUMEM_GRANTED);
      EXPECT_EQ(driver_function<CUresult(CUstream)>("cuStreamSynchronize")(stream), CUDA_SUCCESS);
      destroy(stream);
      most = std::max<std::uint64_t>(most, simulator::report().bytes_allocated);
    }
    EXPECT_LE(most, 256 * mib) << text;
  }
}

// Memory of the caller's own functions, which call the driver.
struct own_memory {
  int live = 0;
  bool full = false;
  static void* allocate(void* context, void*, std::size_t bytes, std::size_t) {
    auto& self = *static_cast<own_memory*>(context);
    if (self.full) return nullptr;
    CUdeviceptr address = 0;
    driver_function<CUresult(CUdeviceptr*, std::size_t)>("cuMemAlloc_v2")(&address, bytes);
    ++self.live;
    return reinterpret_cast<void*>(address);
  }
  static void free(void* context, void*, void* pointer, std::size_t, std::size_t) {
    --static_cast<own_memory*>(context)->live;
    driver_function<CUresult(CUdeviceptr)>("cuMemFree_v2")(reinterpret_cast<CUdeviceptr>(pointer));
  }
  gpumem_callbacks callbacks() { return {sizeof(gpumem_callbacks), this, &own_memory::allocate, &own_memory::free}; }
};

TEST_F(c_stack, callers_functions_give_the_memory) {
  own_memory memory;
  auto const callbacks = memory.callbacks();
  for (auto const* text : {"", "limit=64MiB", "callbacks", "statistics(pool(callbacks))"}) {
    SCOPED_TRACE(text);
    gpumem_pool* made = nullptr;
    ASSERT_EQ(gpumem_make_pool_over(0, &callbacks, text, &made), GPUMEM_GRANTED) << gpumem_last_error();
    handle pool{made};
    auto* const block = allocate(pool, 1000);
    EXPECT_EQ(memory.live, 1);
    EXPECT_EQ(gpumem_free(pool.get(), GPUMEM_STREAM_PER_THREAD, block), GPUMEM_GRANTED);
    memory.full = true;
    void* refused = nullptr;
    EXPECT_EQ(gpumem_allocate(pool.get(), GPUMEM_STREAM_PER_THREAD, 32 * mib, 256, &refused), GPUMEM_EXHAUSTED);
    memory.full = false;
    pool.reset();
    simulator::run_until_idle();
    for (int i = 0; memory.live > 0 && i < 10'000; ++i) std::this_thread::sleep_for(std::chrono::milliseconds{1});
    EXPECT_EQ(memory.live, 0);
  }
}

TEST_F(c_stack, bad_callbacks_are_refused) {
  own_memory memory;
  gpumem_pool* pool = nullptr;
  auto callbacks = memory.callbacks();
  EXPECT_EQ(gpumem_make_pool_over(0, nullptr, "", &pool), GPUMEM_INVALID_ARGUMENT);
  EXPECT_EQ(gpumem_make_pool_over(0, &callbacks, "", nullptr), GPUMEM_INVALID_ARGUMENT);
  callbacks.size = 8;
  EXPECT_EQ(gpumem_make_pool_over(0, &callbacks, "", &pool), GPUMEM_INVALID_ARGUMENT);
  callbacks = memory.callbacks();
  callbacks.free = nullptr;
  EXPECT_EQ(gpumem_make_pool_over(0, &callbacks, "", &pool), GPUMEM_INVALID_ARGUMENT);
  expect_refused("pool(callbacks)", "needs gpumem_make_pool_over");
}

TEST_F(c_stack, log_is_written) {
  auto const path = std::filesystem::temp_directory_path() / ("c_stack_" + std::to_string(getpid()));
  auto const log_of = [&](std::string const& options) {
    {
      auto const pool = make("logging(pool,file=" + path.string() + options + ")");
      EXPECT_EQ(gpumem_free(pool.get(), GPUMEM_STREAM_PER_THREAD, allocate(pool, 4711)), GPUMEM_GRANTED);
    }
    std::ifstream file{path, std::ios::binary};
    return std::string{std::istreambuf_iterator<char>{file}, {}};
  };
  EXPECT_THAT(log_of(""), HasSubstr(",4711,"));
  EXPECT_THAT(log_of(",format=csv"), HasSubstr(",4711,"));
  auto const binary = log_of(",format=binary");
  EXPECT_EQ(binary.size(), 5u * 40) << "a header, two rows, one of the memory and one of the clock";
  EXPECT_EQ(binary.substr(0, 8), "\x89gpumem\n");
  std::filesystem::remove(path);
}

// Layers that only watch a pool know no blocks, and the pool does.
TEST_F(c_stack, watched_pool_has_all_calls_of_a_pool) {
  auto const path = std::filesystem::temp_directory_path() / ("c_stack_watched_" + std::to_string(getpid()));
  auto const log = ",file=" + path.string() + ",format=binary)";
  for (std::string const& text :
       {"logging(pool(limit=64MiB)" + log,
        "logging(statistics(tracking(pool(cuda,limit=64MiB),report=/dev/null))" + log,
        "logging(fixed(block_size=1MiB,limit=64MiB)" + log, "logging(arena(cuda,limit=64MiB)" + log,
        "logging(pool(limit=64MiB,hardened=on)" + log}) {
    SCOPED_TRACE(text);
    {
      auto const pool = make(text);
      ASSERT_TRUE(pool);
      EXPECT_EQ(gpumem_reserve(pool.get(), 32 * mib), GPUMEM_GRANTED) << gpumem_last_error();
      EXPECT_GE(statistics(pool).reserved, 32 * mib);
      auto* const one = make_stream();
      void* blocks[4]{};
      EXPECT_EQ(gpumem_allocate(pool.get(), one, 1001, 256, &blocks[0]), GPUMEM_GRANTED) << gpumem_last_error();
      EXPECT_EQ(gpumem_acquire(pool.get(), one, 1002, 256, 0, &blocks[1]), GPUMEM_GRANTED) << gpumem_last_error();
      EXPECT_EQ(gpumem_allocate_sync(pool.get(), 1003, 256, &blocks[2]), GPUMEM_GRANTED) << gpumem_last_error();
      EXPECT_EQ(gpumem_allocate(pool.get(), GPUMEM_STREAM_PER_THREAD, 1004, 256, &blocks[3]), GPUMEM_GRANTED);
      EXPECT_EQ(gpumem_set_label(pool.get(), blocks[0], "weights"), GPUMEM_GRANTED) << gpumem_last_error();
      EXPECT_EQ(gpumem_set_label(pool.get(), &pool, "weights"), GPUMEM_INVALID_ARGUMENT);
      std::size_t live = 0;
      auto const count = [](void* context, gpumem_range const* range) {
        *static_cast<std::size_t*>(context) += range->live;
      };
      EXPECT_EQ(gpumem_visit_ranges(pool.get(), count, &live), GPUMEM_GRANTED) << gpumem_last_error();
      EXPECT_EQ(live, 4u);
      EXPECT_EQ(gpumem_write_snapshot(pool.get(), "/dev/null", nullptr), GPUMEM_GRANTED) << gpumem_last_error();
      EXPECT_EQ(gpumem_record_use(pool.get(), blocks[0], GPUMEM_STREAM_PER_THREAD), GPUMEM_GRANTED);
      EXPECT_EQ(gpumem_free(pool.get(), one, &live), GPUMEM_INVALID_ARGUMENT);
      EXPECT_EQ(gpumem_free(pool.get(), one, blocks[0]), GPUMEM_GRANTED) << gpumem_last_error();
      EXPECT_EQ(gpumem_free_pointer(blocks[0]), GPUMEM_INVALID_ARGUMENT);
      EXPECT_EQ(gpumem_free_pointer(blocks[1]), GPUMEM_GRANTED) << gpumem_last_error();
      EXPECT_EQ(gpumem_free_sync(pool.get(), blocks[2], 1003), GPUMEM_GRANTED) << gpumem_last_error();
      EXPECT_EQ(gpumem_free_sized(pool.get(), GPUMEM_STREAM_PER_THREAD, blocks[3], 1004), GPUMEM_GRANTED);
      EXPECT_EQ(statistics(pool).live, 0u);
      EXPECT_EQ(gpumem_synchronize(pool.get(), 10'000'000'000), GPUMEM_GRANTED);
      EXPECT_EQ(gpumem_set_limit(pool.get(), 32 * mib), GPUMEM_GRANTED) << gpumem_last_error();
      EXPECT_EQ(gpumem_reset_peaks(pool.get()), GPUMEM_GRANTED);
      EXPECT_EQ(statistics(pool).peak_live, 0u);
      destroy(one);
    }
    std::ifstream file{path, std::ios::binary};
    std::string const rows{std::istreambuf_iterator<char>{file}, {}};
    for (std::size_t bytes = 1001; bytes <= 1004; ++bytes) {
      int found = 0;
      for (std::size_t at = 0; at + 40 <= rows.size(); at += 40)
        found += *reinterpret_cast<std::uint64_t const*>(&rows[at + 16]) == bytes;
      EXPECT_EQ(found, 2) << bytes;
    }
    EXPECT_THAT(rows, HasSubstr("weights"));
  }
  std::filesystem::remove(path);
}

TEST_F(c_stack, leaks_are_reported) {
  auto const path = std::filesystem::temp_directory_path() / ("c_stack_leaks_" + std::to_string(getpid()) + ".txt");
  void* block = nullptr;
  auto const pool = make("tracking(pool,stack_depth=4,report=" + path.string() + ")");
  block = allocate(pool, 4711);
  EXPECT_TRUE(std::filesystem::is_empty(path)) << "the file is made, and written at the end";
  EXPECT_EQ(gpumem_free(pool.get(), GPUMEM_STREAM_PER_THREAD, block), GPUMEM_GRANTED);
  std::filesystem::remove(path);
}

TEST_F(c_stack, second_resource_serves_when_the_first_is_full) {
  auto const pool = make("fallback(pool(cuda,limit=2MiB),managed)");
  auto* const first = allocate(pool, 2 * mib);
  auto* const second = allocate(pool, 2 * mib);
  EXPECT_NE(second, nullptr);
  EXPECT_EQ(statistics(pool).live, 4 * mib);
  EXPECT_EQ(gpumem_free(pool.get(), GPUMEM_STREAM_PER_THREAD, first), GPUMEM_GRANTED);
  EXPECT_EQ(gpumem_free(pool.get(), GPUMEM_STREAM_PER_THREAD, second), GPUMEM_GRANTED);
}

TEST_F(c_stack, stack_serves_calls_of_pytorch) {
  ASSERT_EQ(gpumem_torch_configure("binning(pool(managed,limit=64MiB),bins=256KiB:fixed;1MiB:upstream)"),
            GPUMEM_GRANTED)
      << gpumem_last_error();
  auto* const stream = static_cast<CUstream>(GPUMEM_STREAM_PER_THREAD);
  for (std::size_t const bytes : {std::size_t{1000}, std::size_t{300'000}, 2 * mib}) {
    auto* const block = gpumem_torch_try_allocate(bytes, 1, stream);
    ASSERT_NE(block, nullptr) << gpumem_last_error();
    gpumem_torch_free(block, bytes, 1, stream);
  }
  EXPECT_EQ(gpumem_torch_try_allocate(65 * mib, 1, stream), nullptr);
  EXPECT_THAT(gpumem_last_error(), HasSubstr("too_large"));
  gpumem_pool* pool = nullptr;
  ASSERT_EQ(gpumem_torch_pool(1, &pool), GPUMEM_GRANTED);
  gpumem_statistics now{};
  now.size = sizeof now;
  ASSERT_EQ(gpumem_read_statistics(pool, &now), GPUMEM_GRANTED);
  EXPECT_EQ(now.allocations, 3u);
  EXPECT_EQ(now.live, 0u);
}

TEST_F(c_stack, bad_descriptions_are_refused) {
  expect_refused("fallback(pool)", "'fallback' needs two resources in its parentheses");
  expect_refused("fallback(pool,cuda,managed)", "'fallback' needs two resources in its parentheses");
  expect_refused("aligned(pool,alignment=3)", "the alignment is not a power of two");
  expect_refused("tracking(pool,stack_depth=1000)", "must be 256 at most");
  expect_refused("tracking(pool,depth=1)", "its options are stack_depth, freed_remembered, report");
  expect_refused("thread_safe(pool,on=1)", "'on' is no option of thread_safe");
  expect_refused("malloc", "'malloc' is unknown; the resources are aligned, arena, async, ");
  expect_refused("pool(malloc)", "'malloc' is unknown");
  expect_refused("pool(cuda", "a ')' is missing");
  expect_refused("pool(cuda))", "closed that was not opened");
  expect_refused("pool(cuda,)", "a part is missing");
  expect_refused("pool(cuda,managed)", "needs one resource in its parentheses");
  expect_refused("limiting(limit=1GiB)", "needs one resource in its parentheses");
  expect_refused("limiting(pool)", "'limiting' needs the option 'limit'");
  expect_refused("limiting(pool,limit=much)", "needs a size for 'limit', not 'much'");
  expect_refused("limiting(pool,limit=1GiB,limit=2GiB)", "is given twice");
  expect_refused("limiting(pool,limit=)", "has an empty value");
  expect_refused("limiting(pool,limit=1GiB,size=1)", "'size' is no option of limiting; its options are limit");
  expect_refused("cuda(pool)", "has no resource in its parentheses");
  expect_refused("system(pool)", "has no resource in its parentheses");
  expect_refused("system(headroom=much)", "needs a size for 'headroom', not 'much'");
  expect_refused("system(limit=1GiB)", "'limit' is no option of system; its options are headroom");
  expect_refused("cuda(limit=1GiB)", "'limit' is no option of cuda, which has none");
  expect_refused("pool(limt=1GiB)", "'limt' is unknown; the options are");
  expect_refused("fixed(cuda)", "needs the option 'block_size'");
  expect_refused("fixed(block_size=1MiB,blocks_per_chunk=x)", "needs a number for 'blocks_per_chunk'");
  expect_refused("binning(pool,bins=256KiB)", "needs bins as in 256KiB:fixed");
  expect_refused("binning(pool,bins=256KiB:fixed(block_size=1KiB))", "refuses blocks of the bin's size");
  expect_refused("binning(pool,bins=1KiB:fixed;1KiB:fixed)", "has a bin of this size already");
  expect_refused("logging(cuda)", "needs the option 'file'");
  expect_refused("logging(cuda,file=/dev/null,format=text)", "'logging' writes csv or binary, not 'text'");
  expect_refused("logging(cuda,file=/dev/null,keep_last=9)", "only a binary log keeps its last rows in memory");
  expect_refused("logging(cuda,file=/dev/null,size=1)", "'size' is no option of logging; its options are file, format");
  expect_refused("prefetch(managed,to=moon)", "to device or to host, not to 'moon'");
  expect_refused("binning(pool,min_exponent=70,max_exponent=71)", "exponents");
  std::string deep = "cuda";
  for (int i = 0; i < 20; ++i) deep = "statistics(" + deep + ")";
  expect_refused(deep.c_str(), "16 layers at most");
  std::string bins = "fixed";
  for (int i = 0; i < 20'000; ++i) bins = "binning(cuda,bins=1MiB:" + bins + ")";
  expect_refused(bins.c_str(), "16 layers at most");
}

} // namespace
