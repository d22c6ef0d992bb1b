// Each pool and each adaptor over the erased forms of each source: what holds for the memory is what holds for the
// source.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/services.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

import gpumem;

#include "erased_upstream.hpp"

namespace {

namespace mr = gpumem::mr;
namespace simulator = gpumem::simulator;
using namespace std::chrono_literals;
using gpumem::extend::any_memory;

constexpr std::size_t bytes = std::size_t{1} << 20;

template <class Source> class erased_upstream : public simulated {
protected:
  static constexpr bool for_device = mr::has_property<Source, mr::device_accessible>;
  static constexpr bool for_host = mr::has_property<Source, mr::host_accessible>;

  static Source make_source() {
    gpumem::device_guard const there{gpumem::device{1}};
    if constexpr (std::is_constructible_v<Source, gpumem::device>) {
      return Source{gpumem::device{1}};
    } else {
      return Source{};
    }
  }

  template <class Form> void check_all(char const* form, Form const& upstream) {
    for (auto const& each : stacks_over(upstream)) {
      SCOPED_TRACE(testing::Message{} << each.name << " over " << form);
      auto const made = [&] {
        gpumem::device_guard const there{gpumem::device{1}}; // a form without services belongs to the current device
        return each.make();
      }();
      check_traits(made);
      check_alignment(made);
      if (for_host && !testing::Test::HasFailure()) check_host_writes(made);
    }
  }

private:
  static void check_traits(any_memory memory) {
    auto const from = gpumem::extend::services_of(memory);
    auto const traits = from.table->traits(from.state);
    EXPECT_EQ(traits.host_accessible, for_host);
    EXPECT_EQ(traits.device_accessible, for_device);
    EXPECT_EQ(from.table->device(from.state), for_device ? 1 : -1);
    EXPECT_NE(from.table->try_allocate_behind, nullptr);
    auto const told = gpumem::extend::traits_by_property(memory);
    EXPECT_EQ(told.host_accessible, for_host);
    EXPECT_EQ(told.device_accessible, for_device);
  }

  void check_alignment(any_memory memory) {
    for (std::size_t const alignment : {std::size_t{4096}, std::size_t{65536}}) {
      void* const block = memory.allocate(stream_, 4096, alignment);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % alignment, 0u);
      memory.deallocate(stream_, block, 4096, alignment);
    }
  }

  // The host writes as soon as the block is granted. Work that uses the freed block must not come afterwards.
  void check_host_writes(any_memory memory) {
    for (int i = 0; i < 3; ++i) {
      void* const used = memory.allocate(stream_, bytes, 256);
      simulator::work(stream_, {simulator::write(used, bytes)}, 50us, [used] { std::memset(used, 1, bytes); });
      memory.deallocate(stream_, used, bytes, 256);
      auto* const block = static_cast<unsigned char*>(memory.allocate(stream_, bytes, 256));
      std::memset(block, 42, bytes);
      stream_.synchronize();
      EXPECT_TRUE(block[0] == 42 && block[bytes - 1] == 42) << "a write of the host was lost";
      memory.deallocate(stream_, block, bytes, 256);
      stream_.synchronize();
    }
  }

  gpumem::stream stream_{gpumem::device{1}};
};

using sources =
    testing::Types<gpumem::cuda_resource, gpumem::async_resource, gpumem::async_resource_view, gpumem::managed_resource,
                   gpumem::pinned_resource, gpumem::host_resource, gpumem::system_resource,
                   gpumem::async_managed_resource, gpumem::async_pinned_resource, foreign_managed>;
TYPED_TEST_SUITE(erased_upstream, sources);

// One source of gpumem and one of another library. 29 resources over a source take 4 seconds to compile, so the others
// are tried only in their erased forms, whose types all sources share.
template <class Source>
constexpr bool is_tried_itself =
    std::is_same_v<Source, gpumem::managed_resource> || std::is_same_v<Source, foreign_managed>;

TYPED_TEST(erased_upstream, is_known_as_its_source) {
  // References to it must stay valid, because pools give memory back after their last handle is gone.
  static auto& source = *new auto{TestFixture::make_source()};
  if constexpr (is_tried_itself<TypeParam>) this->check_all("the source", source);
  gpumem::device_guard const there{gpumem::device{1}};
  this->check_all("any_memory", gpumem::extend::make_any_memory(source));
  if constexpr (TestFixture::for_device && mr::has_property<TypeParam, gpumem::extend::services>) {
    this->check_all("any_pool", gpumem::any_pool{source});
    this->check_all("pool_ref", source.ref());
    this->check_all("narrowed any_pool", mr::any_resource<mr::device_accessible>{gpumem::any_pool{source}});
  }
  if constexpr (TestFixture::for_device) {
    this->check_all("any_resource", mr::any_resource<mr::device_accessible>{source});
    this->check_all("resource_ref", mr::resource_ref<mr::device_accessible>{source});
  }
  if constexpr (TestFixture::for_host)
    this->check_all("any_resource for the host", mr::any_resource<mr::host_accessible>{source});
}

} // namespace
