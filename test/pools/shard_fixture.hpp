// A fixture for tests of pools with several shards. Include it after `import gpumem;`: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

class shard_fixture : public simulated_test {
protected:
  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device};

  template <class Pool> static auto& engine_of(Pool& pool) {
    return static_cast<gpumem::detail::pool_state*>(pool.services().state)->engine();
  }
  // Runs `work(thread)` on two threads, each with a shard of its own: it has met others `contention_threshold` times.
  template <class Pool, class Work> void make_shards(Pool& pool, Work const& work) {
    auto& shards = engine_of(pool).shards();
    auto& first = *shards.all().front();
    std::barrier together{2};
    auto const body = [&](int number) {
      for (unsigned i = 0; i < gpumem::detail::sync::contention_threshold; ++i) {
        shards.lock_contended(first);
        first.mutex.unlock();
      }
      pool.deallocate_sync(pool.allocate_sync(1 << 20), 1 << 20); // no thread caches it
      together.arrive_and_wait();
      work(number);
    };
    std::thread other{body, 1};
    body(0);
    other.join();
  }
};

} // namespace gpumem_test
