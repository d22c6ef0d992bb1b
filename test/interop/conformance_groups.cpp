// All resources that have to keep the contract: composed at compile time, adaptors over resources, pairs of adaptors.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/pool_options.hpp>
#include <gpumem/simulator.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

import gpumem;

#include "makers.hpp"
#include "subject.hpp"

namespace conformance {
namespace {

using gpumem::any_pool;
using namespace gpumem::literals;

template <class Maker> stack stack_of(int index) {
  using resource = decltype(Maker::make());
  return {.name = std::to_string(index) + "_" + Maker::name,
          .make = [] { return std::make_unique<held_subject<resource>>(Maker::make()); },
          .on_device = gpumem::mr::has_property<resource, gpumem::mr::device_accessible>};
}

template <class... Makers> std::vector<stack> stacks_of(testing::Types<Makers...>) {
  int index = 0;
  return {stack_of<Makers>(index++)...};
}

struct source {
  std::string name;
  std::function<any_pool()> make;
  std::size_t largest = 1_GiB;
};
struct adaptor {
  std::string name;
  std::function<any_pool(any_pool)> over;
};

gpumem::cuda_resource cuda() { return gpumem::cuda_resource{}; }

// Each resource of memory that the device can access.
std::vector<source> sources() {
  return {
      {"cuda", [] { return any_pool{cuda()}; }},
      {"async", [] { return any_pool{gpumem::async_resource{}}; }},
      {"managed", [] { return any_pool{gpumem::managed_resource{}}; }},
      {"system", [] { return any_pool{gpumem::system_resource{}}; }},
      {"system_with_headroom",
       [] { return any_pool{gpumem::system_resource{gpumem::device{0}, {.headroom = 79_GiB}}}; }},
      {"callback",
       [] {
         return any_pool{gpumem::callback_resource{
             gpumem::device{0},
             [](auto stream, auto bytes, auto alignment) { return cuda().allocate(stream, bytes, alignment); },
             [](auto stream, void* pointer, auto bytes, auto alignment) {
               cuda().deallocate(stream, pointer, bytes, alignment);
             }}};
       }},
      {"pool", [] { return any_pool{gpumem::pool_resource{gpumem::device{0}}}; }},
      {"pool_over_cuda", [] { return any_pool{gpumem::pool_resource{cuda()}}; }},
      {"hardened", [] { return any_pool{gpumem::pool_resource{cuda(), {.hardened = {.enabled = true}}}}; }},
      {"fixed_size", [] { return any_pool{gpumem::fixed_size_resource{cuda(), {8_MiB, 16}}}; }, 8_MiB},
      {"arena", [] { return any_pool{gpumem::arena_resource{cuda(), {.arena_size = 8_MiB}}}; }},
      {"monotonic", [] { return any_pool{gpumem::monotonic_resource{cuda(), {.region_size = 8_MiB}}}; }},
      {"binning",
       [] {
         gpumem::binning_resource made{gpumem::pool_resource{cuda()}, {10, 14, 16}};
         made.add_bin(1_MiB, gpumem::pool_resource{cuda()});
         return any_pool{std::move(made)};
       }},
      {"binning_of_late_bins",
       [] {
         gpumem::binning_resource made{gpumem::pool_resource{cuda()}};
         made.deallocate_sync(made.allocate_sync(1), 1);
         made.add_fixed_bin(4_KiB);
         made.add_bin(1_MiB, gpumem::pool_resource{cuda()});
         return any_pool{std::move(made)};
       }},
  };
}

// Each adaptor, over any resource.
std::vector<adaptor> adaptors() {
  return {
      {"statistics", [](any_pool up) { return any_pool{gpumem::statistics_adaptor{std::move(up)}}; }},
      {"logging",
       [](any_pool up) {
         return any_pool{gpumem::logging_adaptor{std::move(up), gpumem::extend::log_sink{"/dev/null"}}};
       }},
      {"limiting",
       [](any_pool up) { return any_pool{gpumem::limiting_adaptor{std::move(up), {.limit = PTRDIFF_MAX}}}; }},
      {"failing", [](any_pool up) { return any_pool{gpumem::failing_adaptor{std::move(up)}}; }},
      {"prefetch", [](any_pool up) { return any_pool{gpumem::prefetch_adaptor{std::move(up)}}; }},
      {"aligned",
       [](any_pool up) {
         return any_pool{gpumem::aligned_adaptor{std::move(up), {.alignment = 4_KiB, .threshold = 64_KiB}}};
       }},
      {"fallback",
       [](any_pool up) { return any_pool{gpumem::fallback_adaptor{std::move(up), gpumem::managed_resource{}}}; }},
      {"failure_callback",
       [](any_pool up) {
         return any_pool{gpumem::failure_callback_adaptor{std::move(up), {.callback = [](auto) { return false; }}}};
       }},
      {"thread_safe", [](any_pool up) { return any_pool{gpumem::thread_safe_adaptor{std::move(up)}}; }},
      {"tracking", [](any_pool up) { return any_pool{gpumem::tracking_adaptor{std::move(up), {.stack_depth = 4}}}; }},
      {"scope", [](any_pool up) { return any_pool{gpumem::scope{std::move(up)}}; }},
  };
}

stack erased(std::string name, std::function<any_pool()> make, std::size_t largest) {
  return {std::move(name), [make = std::move(make)] { return std::make_unique<held_subject<any_pool>>(make()); },
          largest};
}

std::vector<group> make_groups() {
  std::vector<group> all{{"static_stacks", stacks_of(makers::resources{})}, {"resources", {}}};
  for (auto const& from : sources()) all[1].stacks.push_back(erased(from.name, from.make, from.largest));
  for (auto const& outer : adaptors()) {
    group over{outer.name + "_over_resources", {}}, pairs{outer.name + "_over_adaptors", {}};
    for (auto const& from : sources()) {
      over.stacks.push_back(erased(from.name, [=] { return outer.over(from.make()); }, from.largest));
    }
    for (auto const& inner : adaptors()) {
      auto const make = [=] { return outer.over(inner.over(any_pool{gpumem::pool_resource{cuda()}})); };
      pairs.stacks.push_back(erased(inner.name, make, 1_GiB));
    }
    all.push_back(std::move(over));
    all.push_back(std::move(pairs));
  }
  return all;
}

} // namespace

std::vector<group> const& all_groups() {
  static auto const all = make_groups();
  return all;
}

} // namespace conformance
