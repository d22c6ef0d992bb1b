// Each adaptor and each composed resource over pools over each source: names of blocks, the holders of memory, and what
// watchers are told reach the pool below.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>
#include <gpumem/services.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

import gpumem;
import gpumem.snapshot;

#include "erased_upstream.hpp"

namespace {

namespace mr = gpumem::mr;
using gpumem::extend::any_memory;
using gpumem::extend::make_any_memory;
using source_pool = gpumem::pool_resource<any_memory>;

constexpr std::size_t MiB = std::size_t{1} << 20;

class counting_watcher final : public gpumem::detail::memory_watcher {
public:
  void on_mapped(void const*, std::size_t bytes) noexcept override { mapped += bytes; }
  void on_unmapping(void const*, std::size_t bytes) noexcept override { mapped -= bytes; }
  void on_moved(void const*, void const*, std::size_t) noexcept override {}
  std::size_t mapped = 0;
};

struct stack_over_pool {
  char const* name;
  std::function<any_memory(source_pool const&)> make;
};

// Returns the adaptors and composed resources over `up`, a form of the pool.
template <class Form> std::vector<stack_over_pool> stacks(Form form) {
  using namespace gpumem;
  auto const over = [form](auto make) {
    return [form, make](source_pool const& pool) { return make_any_memory(make(form(pool))); };
  };
  auto const refuses = [](auto const&) { return false; };
  constexpr std::size_t much = std::size_t{1} << 40;
  std::vector<stack_over_pool> all{
      {"itself", over([](auto up) { return up; })},
      {"statistics", over([](auto up) { return statistics_adaptor{up}; })},
      {"logging", over([](auto up) { return logging_adaptor{up, extend::log_sink{"/dev/null"}}; })},
      {"tracking", over([](auto up) { return tracking_adaptor{up, {.stack_depth = 0}}; })},
      {"limiting", over([](auto up) { return limiting_adaptor{up, {.limit = much}}; })},
      {"aligned", over([](auto up) { return aligned_adaptor{up, {.alignment = 4096}}; })},
      {"failing", over([](auto up) { return failing_adaptor{up, {}}; })},
      {"prefetch", over([](auto up) { return prefetch_adaptor{up, {.location = device{1}}}; })},
      {"thread_safe", over([](auto up) { return thread_safe_adaptor{up}; })},
      {"scope", over([](auto up) { return scope{up}; })},
      {"failure_callback", over([=](auto up) { return failure_callback_adaptor{up, {.callback = refuses}}; })},
      {"fallback, first", over([](auto up) { return fallback_adaptor{up, limiting_adaptor{up, {.limit = 1}}}; })},
      {"fallback, second", over([](auto up) { return fallback_adaptor{limiting_adaptor{up, {.limit = 1}}, up}; })},
      {"binning, upstream",
       over([](auto up) { return binning_resource{up, {.min_exponent = 12, .max_exponent = 15}}; })},
      {"binning, bin", over([](auto up) {
         binning_resource bins{limiting_adaptor{up, {.limit = much}}};
         bins.add_bin(64 * MiB, up);
         return bins;
       })},
  };
  // Over an erased resource, checked is a resource of another library.
  if constexpr (!std::is_same_v<std::invoke_result_t<Form, source_pool const&>, any_memory>)
    all.push_back({"checked", over([](auto up) { return simulator::checked{up}; })});
  return all;
}

enum class kind { plain, hardened, pass_through };

template <class Source> class named_blocks : public simulated {
protected:
  static source_pool make_pool(kind what) {
    gpumem::device_guard const there{gpumem::device{1}};
    auto const source = [] {
      if constexpr (std::is_constructible_v<Source, gpumem::device>) {
        return make_any_memory(Source{gpumem::device{1}});
      } else {
        return make_any_memory(Source{});
      }
    }();
    gpumem::pool_options options;
    options.limit = what == kind::pass_through ? 0 : 64 * MiB;
    options.hardened.enabled = what == kind::hardened;
    options.pass_through = what == kind::pass_through;
    return source_pool{source, options};
  }

  // Returns the labels of the pool's live blocks, sorted.
  static std::vector<std::string> labels_in(source_pool const& pool) {
    auto const seen = gpumem::take_snapshot(pool);
    std::vector<std::string> found;
    for (auto const& each : seen.blocks) {
      if (each.state == gpumem::memory_state::live) found.push_back(seen.labels[each.label]);
    }
    std::ranges::sort(found);
    return found;
  }

  template <class Form> void check_all(char const* form_name, Form form) {
    for (auto const& each : stacks(form)) {
      for (auto const what : {kind::plain, kind::hardened, kind::pass_through}) {
        SCOPED_TRACE(testing::Message{} << each.name << " over " << form_name << ", kind " << static_cast<int>(what));
        auto const pool = make_pool(what);
        check_names(pool, each.make(pool));
        if (what == kind::pass_through) continue; // has no pages to watch and no limit
        auto const watched = make_pool(what);
        check_watcher(watched, each.make(watched));
        check_holders(each.make(make_pool(what)));
      }
    }
  }

private:
  void check_names(source_pool const& pool, any_memory memory) {
    using names = std::vector<std::string>;
    auto const asked = gpumem::acquire(memory, stream_, MiB, {.label = "request"}).try_now();
    ASSERT_TRUE(asked);
    EXPECT_EQ(labels_in(pool), names{"request"});
    auto const from = gpumem::extend::services_of(memory);
    ASSERT_NE(from.table->set_label, nullptr);
    EXPECT_TRUE(from.table->set_label(from.state, asked->data(), gpumem::detail::label_number("owner")));
    EXPECT_FALSE(from.table->set_label(from.state, &memory, gpumem::detail::label_number("owner")));
    gpumem::scope work{memory, "work"};
    auto const in_work = gpumem::acquire(work, stream_, MiB).try_now();
    ASSERT_TRUE(in_work);
    EXPECT_EQ(labels_in(pool), (names{"owner", "work"}));
  }

  void check_watcher(source_pool const& pool, any_memory memory) {
    auto const from = gpumem::extend::services_of(memory);
    ASSERT_NE(from.table->watch_memory, nullptr);
    auto const first = gpumem::acquire(memory, stream_, MiB).try_now();
    counting_watcher watcher;
    EXPECT_TRUE(from.table->watch_memory(from.state, &watcher, true));
    EXPECT_EQ(watcher.mapped, pool.statistics().reserved); // told once, by whichever way
    auto const block = gpumem::acquire(memory, stream_, 48 * MiB).try_now();
    EXPECT_TRUE(first && block);
    EXPECT_GE(watcher.mapped, 48 * MiB);
    EXPECT_EQ(watcher.mapped, pool.statistics().reserved);
    from.table->watch_memory(from.state, &watcher, false);
  }

  void check_holders(any_memory memory) {
    auto const held = gpumem::acquire(memory, stream_, 40 * MiB, {.label = "held"}).try_now();
    ASSERT_TRUE(held);
    try {
      std::ignore = memory.allocate(stream_, 30 * MiB, 256);
      FAIL() << "has more memory than the limit";
    } catch (gpumem::out_of_memory const& error) {
      std::string const text = error.what();
      EXPECT_NE(text.find("live of 'held': 1 block, 40.0 MiB"), text.npos) << text;
    }
  }

  gpumem::stream stream_{gpumem::device{1}};
};

using sources =
    testing::Types<gpumem::cuda_resource, gpumem::async_resource, gpumem::async_resource_view, gpumem::managed_resource,
                   gpumem::pinned_resource, gpumem::host_resource, gpumem::system_resource,
                   gpumem::async_managed_resource, gpumem::async_pinned_resource, foreign_managed>;
TYPED_TEST_SUITE(named_blocks, sources);

TYPED_TEST(named_blocks, reach_the_pool_below) {
  this->check_all("the pool", [](source_pool const& pool) { return pool; });
  this->check_all("any_memory", [](source_pool const& pool) { return make_any_memory(pool); });
}

} // namespace
