// Random use of a pool on a real device: a kernel stamps every block after its allocation, and another checks the stamp
// before its free.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stamp.hpp"

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

import gpumem;

namespace gpumem_test {

inline std::vector<gpumem::stream> make_streams(int count, int priority = 0) {
  std::vector<gpumem::stream> streams;
  for (int i = 0; i < count; ++i) streams.emplace_back(gpumem::device{0}, priority);
  return streams;
}

/// One thread's part, on streams that it may share with other threads. A free is on the block's own stream, or on
/// another stream that an event orders after it, or after a use that record_use declares. Words that another worker has
/// overwritten are counted in *wrong.
template <class Pool> class churn {
public:
  /// One kernel in eight runs for `microseconds`.
  churn(Pool& pool, std::vector<gpumem::stream>& streams, unsigned long long* wrong, std::uint64_t seed,
        unsigned microseconds = 30)
      : pool_{&pool}, streams_{&streams}, wrong_{wrong}, seed_{seed}, microseconds_{microseconds}, random_{seed} {}

  void run(int steps) {
    for (int i = 0; i < steps; ++i) step();
    for (auto const& each : live_) {
      check(each, each.home);
      pool_->deallocate(on(each.home), each.data, each.bytes);
    }
    live_.clear();
  }

  void step() {
    if (live_.size() < fewest || (live_.size() < most && random_() % 2)) return allocate();
    std::swap(live_[random_() % live_.size()], live_.back());
    auto const freed = live_.back();
    live_.pop_back();
    check(freed, freed.home);
    auto const other = random_() % streams_->size();
    switch (random_() % 3) {
    case 0: pool_->deallocate(on(freed.home), freed.data, freed.bytes); break;
    case 1:
      order(freed.home, other);
      pool_->deallocate(on(other), freed.data, freed.bytes);
      break;
    default:
      order(freed.home, other);
      check(freed, other);
      pool_->record_use(freed.data, on(other));
      pool_->deallocate(on(freed.home), freed.data, freed.bytes);
    }
  }

private:
  static constexpr std::size_t fewest = 64, most = 128;
  struct block {
    void* data;
    std::size_t bytes;
    std::uint64_t value;
    std::size_t home;
  };

  gpumem::stream& on(std::size_t number) { return (*streams_)[number]; }
  unsigned spin() { return random_() % 8 ? 0 : microseconds_; }
  void check(block const& one, std::size_t where) {
    stamp::check(on(where).get(), one.data, one.bytes, one.value, wrong_, spin());
  }
  void order(std::size_t before, std::size_t after) {
    happened_.record(on(before));
    on(after).wait(happened_);
  }
  void allocate() {
    auto const home = random_() % streams_->size();
    auto const bytes = std::size_t{256} << random_() % 14;
    auto const got = pool_->try_allocate(on(home), bytes);
    if (!got) return;
    auto const value = seed_ << 40 | ++count_;
    stamp::write(on(home).get(), *got, bytes, value, spin());
    live_.push_back({*got, bytes, value, home});
  }

  Pool* pool_;
  std::vector<gpumem::stream>* streams_;
  unsigned long long* wrong_;
  std::uint64_t seed_;
  unsigned microseconds_;
  std::uint64_t count_ = 0;
  std::mt19937_64 random_;
  std::vector<block> live_;
  gpumem::event happened_{gpumem::device{0}};
};

} // namespace gpumem_test
