// Violations of the rules for locks: each of these lines must fail to compile. The script gives the number of one;
// line 0 compiles.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
module gpumem:lock_violations.impl;
import :std;
import :sync;

namespace gpumem::detail {
namespace {

struct shard {
  sync::mutex mutex;
  int blocks GPUMEM_GUARDED_BY(mutex) = 0;
};

// Two shards. `growing` is written under the locks of both, and read under either.
struct shards {
  shard first, second;
  sync::role all;
  bool growing GPUMEM_GUARDED_BY(all) = false;
};

class GPUMEM_SCOPED_LOCK shard_lock {
public:
  shard_lock(shards& in, shard& one) GPUMEM_ACQUIRES(one.mutex) GPUMEM_ACQUIRES_SHARED(in.all) : held_{one.mutex} {}
  GPUMEM_RELEASES() ~shard_lock() {}

private:
  sync::lock held_;
};

class GPUMEM_SCOPED_LOCK all_shards_lock {
public:
  explicit all_shards_lock(shards& in) GPUMEM_ACQUIRES(in.all, in.first.mutex, in.second.mutex)
      : first_{in.first.mutex}, second_{in.second.mutex} {}
  GPUMEM_RELEASES() ~all_shards_lock() {}

private:
  sync::lock first_, second_;
};

class account {
public:
  [[maybe_unused]] void pay() GPUMEM_EXCLUDES(mutex_);

private:
  void wait_for_money() GPUMEM_REQUIRES(mutex_) {
    while (money_ == 0) paid_.wait(mutex_);
  }

  sync::mutex mutex_;
  sync::condition paid_;
  int money_ GPUMEM_GUARDED_BY(mutex_) = 0;
};

void account::pay() {
#if LINE == 1
  --money_;
#elif LINE == 2
  wait_for_money();
#elif LINE == 3
  paid_.wait(mutex_);
#endif
  sync::lock held{mutex_};
  wait_for_money();
  --money_;
#if LINE == 4
  if (money_ > 0) pay();
#endif
  {
    sync::scoped_unlock const meanwhile{mutex_};
#if LINE == 5
    --money_;
#endif
  }
  held.unlock();
#if LINE == 6
  --money_;
#endif
}

[[maybe_unused]] bool use(shards& in) {
  {
    all_shards_lock const held{in};
    in.growing = in.first.blocks == in.second.blocks;
  }
  shard_lock const held{in, in.first};
  ++in.first.blocks;
#if LINE == 7
  in.growing = true;
#elif LINE == 8
  ++in.second.blocks;
#endif
  return in.growing;
}

class slot {
public:
  [[maybe_unused]] int take() {
    if (!mutex_.try_lock()) return 0;
#if LINE == 9
    return content_;
#else
    sync::spin_lock const held{mutex_, std::adopt_lock};
    return content_;
#endif
  }
  [[maybe_unused]] void put(int content) {
#if LINE != 10
    sync::biased_lock const held{own_};
#endif
    kept_ = content;
  }

private:
  sync::spin_mutex mutex_;
  int content_ GPUMEM_GUARDED_BY(mutex_) = 0;
  sync::biased_mutex own_;
  int kept_ GPUMEM_GUARDED_BY(own_) = 0;
};

} // namespace
} // namespace gpumem::detail
