// A fixture for tests of a pool's backend: the parts of a pool, its upstream, and calls under the locks of all shards.
// Include it after `import gpumem;` and "upstream.hpp": it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

inline constexpr std::size_t MiB = std::size_t{1} << 20;

struct no_pass final : gpumem::detail::timer {
  void expire() noexcept override {}
};

// Chunks of a resource, or pages of a device.
template <class Resource> class test_upstream final : public gpumem::detail::pool_upstream {
public:
  explicit test_upstream(Resource const& from, std::optional<gpumem::device> pages_of = {}) : value_{from} {
    attach(gpumem::extend::services_of(value_));
    if (pages_of) use_pages(*pages_of, {.address_space = 256 * MiB});
  }

private:
  Resource value_;
};

// The parts of a pool, and its first shard. Each call that needs the locks of all shards takes them.
class backend_fixture : public simulated_test {
protected:
  using all_shards_lock = gpumem::detail::all_shards_lock;
  using allocation_request = gpumem::detail::allocation_request;
  using block = gpumem::detail::block;
  using placement = gpumem::detail::placement;
  using pool_shard = gpumem::detail::pool_shard;

  void TearDown() override {
    if (parts) {
      complete_all();
      release(0);
      EXPECT_EQ(parts->chunks.reserved(), 0u);
      parts.reset();
    }
    simulated_test::TearDown();
  }
  void make(std::unique_ptr<gpumem::detail::pool_upstream> from, gpumem::pool_options options) {
    parts.emplace(std::move(from), std::move(options), pass);
    shard = parts->shards.all().front().get();
  }
  pool_shard& add_shard() {
    all_shards_lock const held{parts->shards};
    parts->shards.add_for_thread();
    return *parts->shards.all().back();
  }

  auto grow(allocation_request const& request, bool exact = true) {
    all_shards_lock const held{parts->shards};
    bool const reserves = request.shard->addresses.empty() && parts->backend->paged();
    if (reserves) EXPECT_TRUE(parts->backend->grow(request, exact).must_retry());
    return parts->backend->grow(request, exact);
  }
  auto grow_to(std::size_t bytes) {
    all_shards_lock const held{parts->shards};
    return parts->backend->grow_to(bytes, *shard);
  }
  std::size_t release(std::size_t keep) {
    all_shards_lock const held{parts->shards};
    return parts->backend->release(keep);
  }
  void release_for(allocation_request const& request) {
    all_shards_lock const held{parts->shards};
    parts->backend->release_for(request);
  }
  placement move_at_limit(allocation_request const& request) {
    all_shards_lock const held{parts->shards};
    return parts->backend->move_at_limit(request);
  }
  placement migrate_chunk(allocation_request const& request) {
    all_shards_lock const held{parts->shards};
    return parts->backend->migrate_chunk(request);
  }

  static auto& of(gpumem::stream const& s) { return s.key().identity().timeline(); }
  // Lets the device run, and the host see that all uses of free memory are complete.
  void complete_all() {
    for (int i = 0; i < 2; ++i) {
      all_shards_lock const held{parts->shards};
      parts->rules.poll_streams(nullptr, parts->shards.everywhere());
      gpumem::simulator::run_until_idle();
    }
    all_shards_lock const held{parts->shards};
    parts->rules.poll_streams(nullptr, parts->shards.everywhere());
  }
  void promote_completed() {
    all_shards_lock const held{parts->shards};
    EXPECT_TRUE(parts->rules.promote_completed(parts->shards.everywhere()));
  }
  allocation_request request(std::size_t bytes, std::size_t alignment = gpumem::detail::granule) {
    return {.key = key_a,
            .requested = bytes - 1,
            .bytes = bytes,
            .class_number = gpumem::detail::size_class::count,
            .alignment = alignment,
            .thread = 0,
            .shard = shard};
  }
  // Grows exactly for a block, and allocates it.
  block& grown(std::size_t bytes) {
    auto const got = grow(request(bytes));
    EXPECT_TRUE(got.is_done());
    auto& made = shard->ranges.split_off(*got.value().range, got.value().offset, bytes);
    made.stream = &of(a);
    made.uses.clear();
    return made;
  }
  void free(block& live, gpumem::extend::epoch newest) {
    live.uses.assign(gpumem::detail::stream_use{&of(a), newest});
    shard->ranges.free(live, gpumem::detail::range_allocator::coalescing::same_streams);
  }
  void free_complete(block& live) { free(live, 0); }
  void free_in_use(block& live) { free(live, of(a).epochs().advance()); }

  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device};
  gpumem::extend::stream_key const key_a = a.key();
  no_pass pass;
  std::optional<gpumem::detail::pool_parts> parts;
  pool_shard* shard = nullptr;
};

} // namespace gpumem_test
