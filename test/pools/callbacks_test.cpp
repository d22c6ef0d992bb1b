// Functions of the user that call the resource which calls them: each call works, or is refused at once.
// SPDX-License-Identifier: Apache-2.0
#include "../support/longest_wait.hpp"
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>
#include <gpumem/services.hpp>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <functional>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <streambuf>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

import gpumem;

namespace {

using namespace gpumem::literals;
using gpumem::any_pool;

// A call from inside a callback. It works on the resource that runs the callback, or throws std::invalid_argument.
struct call {
  char const* name;
  void (*run)(any_pool& resource, gpumem::pool_resource<gpumem::cuda_resource>& pool, gpumem::stream& stream,
              void* kept);
};
constexpr call calls[] = {
    {"allocate and free a small block",
     [](any_pool& resource, auto&, gpumem::stream& stream, void*) {
       resource.deallocate(stream, resource.allocate(stream, 100, 256), 100, 256);
     }},
    {"allocate what needs growth",
     [](any_pool& resource, auto&, gpumem::stream& stream, void*) {
       resource.deallocate(stream, resource.allocate(stream, 40_MiB, 256), 40_MiB, 256);
     }},
    {"try to allocate what needs growth",
     [](any_pool& resource, auto&, gpumem::stream& stream, void*) {
       if (auto const got = gpumem::try_allocate_erased(resource, stream, 40_MiB))
         resource.deallocate(stream, *got, 40_MiB, 256);
     }},
    {"acquire what needs growth", [](any_pool& resource, auto&, gpumem::stream& stream,
                                     void*) { gpumem::acquire(resource, stream, 40_MiB).wait().reset(); }},
    {"free", [](any_pool& resource, auto&, gpumem::stream& stream,
                void* kept) { resource.deallocate(stream, kept, 1_MiB, 256); }},
    {"trim", [](any_pool& resource, auto&, gpumem::stream&, void*) { gpumem::trim(resource); }},
    {"statistics", [](any_pool& resource, auto&, gpumem::stream&, void*) { gpumem::statistics_of(resource); }},
    {"set_limit", [](any_pool&, auto& pool, gpumem::stream&, void*) { pool.set_limit(1_GiB); }},
    {"reserve", [](any_pool&, auto& pool, gpumem::stream&, void*) { pool.reserve(200_MiB); }},
    {"find", [](any_pool&, auto& pool, gpumem::stream&, void* kept) { pool.find(kept); }},
    {"describe", [](any_pool&, auto& pool, gpumem::stream&, void*) { pool.describe_memory(); }},
};

std::function<void()> run_callback; // the callback of the test, called once
void run_once() {
  if (auto const run = std::exchange(run_callback, nullptr)) run();
}
void handle_misuse(gpumem::misuse const&) noexcept { run_once(); }

// An output that calls the callback when it is written to.
struct calling_buffer : std::streambuf {
  int_type overflow(int_type c) override {
    run_once();
    return c;
  }
  std::streamsize xsputn(char const*, std::streamsize count) override {
    run_once();
    return count;
  }
};

// Ends the program if a call hangs.
void end_program(int) {
  constexpr char text[] = "[  FAILED  ] a call from inside a callback hangs\n";
  if (write(STDOUT_FILENO, text, sizeof text - 1) >= 0) _exit(1);
}

class callbacks : public simulated {
protected:
  void SetUp() override {
    simulated::SetUp();
    std::signal(SIGALRM, end_program);
    alarm(static_cast<unsigned>(2 * gpumem_test::longest_wait().count()));
  }
  void TearDown() override {
    alarm(0);
    simulated::TearDown();
  }
  using pool_type = gpumem::pool_resource<gpumem::cuda_resource>;

  // Calls `trigger`, which makes the resource run the callback, once for each call.
  template <class Trigger> void try_all(any_pool resource, pool_type pool, Trigger trigger, bool may_refuse = false) {
    for (auto const& each : calls) {
      SCOPED_TRACE(each.name);
      void* kept = resource.allocate(stream_, 1_MiB, 256);
      bool const frees = std::string{each.name} == "free";
      bool ran = false;
      run_callback = [&] {
        ran = true;
        try {
          each.run(resource, pool, stream_, kept);
        } catch (std::invalid_argument const& e) {
          EXPECT_TRUE(may_refuse) << e.what();
          EXPECT_NE(std::string{e.what()}.find("gets memory or gives it back"), std::string::npos) << e.what();
        }
      };
      trigger();
      EXPECT_TRUE(ran);
      run_callback = nullptr;
      if (!frees || !ran) resource.deallocate(stream_, kept, 1_MiB, 256);
      EXPECT_EQ(pool.statistics().live, 0u);
      pool.set_limit(0);
      pool.trim();
    }
  }
  gpumem::stream stream_{gpumem::device{0}};
};

TEST_F(callbacks, misuse_handler) {
  auto const before = gpumem::set_misuse_handler(handle_misuse);
  int foreign = 0;
  for (auto const& options : {gpumem::pool_options{}, {.pages = false}, {.hardened = {.enabled = true}}}) {
    pool_type pool{gpumem::device{0}, options};
    try_all(any_pool{pool}, pool, [&] { pool.deallocate(stream_, &foreign, 100); });
    try_all(any_pool{pool}, pool, [&] { pool.record_use(&foreign, stream_); });
    gpumem::thread_safe_adaptor safe{pool};
    try_all(any_pool{safe}, pool, [&] { safe.deallocate(stream_, &foreign, 100); });
  }
  gpumem::set_misuse_handler(before);
}

TEST_F(callbacks, misuse_handler_of_graph_memory) {
  auto const before = gpumem::set_misuse_handler(handle_misuse);
  pool_type pool{gpumem::device{0}};
  gpumem::graph_resource graphs{pool};
  auto* const p = graphs.allocate(stream_, 1000);
  for (auto const trigger :
       {+[](gpumem::graph_resource<pool_type>& of, gpumem::stream& on, void* at) { of.deallocate(on, at, 999); },
        +[](gpumem::graph_resource<pool_type>& of, gpumem::stream& on, void* at) {
          of.record_use(static_cast<char*>(at) + 1, on);
        }}) {
    bool ran = false;
    run_callback = [&] {
      ran = true;
      graphs.deallocate(stream_, graphs.allocate(stream_, 5_MiB), 5_MiB);
      graphs.statistics();
      graphs.find(p);
    };
    trigger(graphs, stream_, p);
    EXPECT_TRUE(ran);
  }
  graphs.deallocate(stream_, p, 1000);
  gpumem::set_misuse_handler(before);
}

TEST_F(callbacks, failure_callback) {
  pool_type pool{gpumem::device{0}};
  gpumem::failing_adaptor failing{pool, {.every = 1}};
  gpumem::failure_callback_adaptor subject{failing, {.callback = [](auto const&) {
                                             run_once();
                                             return false;
                                           }}};
  try_all(any_pool{pool}, pool, [&] { EXPECT_FALSE(subject.try_allocate(stream_, 100)); });
}

TEST_F(callbacks, log_sink) {
  calling_buffer buffer;
  std::ostream output{&buffer};
  for (auto const format : {gpumem::log_format::csv, gpumem::log_format::binary}) {
    pool_type pool{gpumem::device{0}};
    gpumem::logging_adaptor subject{pool, output, {.format = format}};
    try_all(any_pool{subject}, pool, [&] {
      subject.deallocate(stream_, subject.allocate(stream_, 100), 100);
      subject.flush();
    });
  }
}

TEST_F(callbacks, page_observers) {
  for (bool const mapped : {true, false}) {
    SCOPED_TRACE(mapped);
    gpumem::virtual_pages_options pages;
    if (mapped)
      pages.on_mapped = [](void*, std::size_t) {
        run_once();
        return true;
      };
    if (!mapped) pages.on_unmapping = [](void*, std::size_t) { run_once(); };
    pool_type pool{gpumem::device{0}, {}, pages};
    auto const trigger = [&] {
      auto const callback = std::exchange(run_callback, nullptr);
      if (!mapped) pool.deallocate(stream_, pool.allocate(stream_, 100_MiB), 100_MiB);
      stream_.synchronize();
      EXPECT_TRUE(pool.synchronize(gpumem_test::longest_wait()));
      if (mapped) pool.trim();
      run_callback = callback;
      mapped ? pool.deallocate(stream_, pool.allocate(stream_, 100_MiB), 100_MiB) : static_cast<void>(pool.trim());
    };
    try_all(any_pool{pool}, pool, trigger, true);
  }
}

TEST_F(callbacks, upstream_of_a_pool) {
  gpumem::cuda_resource memory;
  gpumem::callback_resource upstream{
      gpumem::device{0},
      [memory](gpumem::stream_ref on, std::size_t bytes, std::size_t alignment) mutable {
        auto* const p = memory.allocate(on, bytes, alignment);
        run_once();
        return p;
      },
      [memory](gpumem::stream_ref on, void* p, std::size_t bytes, std::size_t alignment) mutable {
        run_once();
        memory.deallocate(on, p, bytes, alignment);
      }};
  gpumem::pool_resource pool{upstream, {.chunk_size = 8_MiB}};
  gpumem::any_pool erased{pool};
  for (auto const& each : calls) {
    for (bool const growth : {true, false}) {
      SCOPED_TRACE(each.name);
      if (std::string{"set_limit reserve find describe"}.find(each.name) != std::string::npos) continue;
      void* kept = pool.allocate(stream_, 1_MiB);
      if (!growth) pool.deallocate(stream_, pool.allocate(stream_, 100_MiB), 100_MiB);
      stream_.synchronize();
      pool.synchronize(std::chrono::seconds{1});
      bool freed = false, ran = false;
      run_callback = [&] {
        ran = true;
        freed = std::string{each.name} == "free";
        pool_type* const none = nullptr;
        try {
          each.run(erased, *none, stream_, kept);
        } catch (std::invalid_argument const& e) {
          EXPECT_NE(std::string{e.what()}.find("gets memory or gives it back"), std::string::npos) << e.what();
        }
      };
      growth ? pool.deallocate(stream_, pool.allocate(stream_, 100_MiB), 100_MiB) : static_cast<void>(pool.trim());
      EXPECT_TRUE(ran);
      run_callback = nullptr;
      if (!freed) pool.deallocate(stream_, kept, 1_MiB);
      EXPECT_EQ(pool.statistics().live, 0u);
      stream_.synchronize();
      pool.synchronize(std::chrono::seconds{1});
      pool.trim();
    }
  }
}

} // namespace
