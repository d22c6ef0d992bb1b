// The constructor of a shard, a part of a pool with a lock of its own.
// SPDX-License-Identifier: Apache-2.0
module;
#include <chrono>
module gpumem:pool_shard.impl;
import :pool_shard;
import :sync;
import :time_budget;
import :tuning;

namespace gpumem::detail {

pool_shard::pool_shard(double poll_share, bool locked)
    : mutex{locked}, poll_budget{poll_share, tuning::max_poll_burst, sync::now()} {}

} // namespace gpumem::detail
