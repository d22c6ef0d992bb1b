// Makes a shard, with the time that it may spend on polls.
// SPDX-License-Identifier: Apache-2.0
module;
#include <chrono>
module gpumem:pool_shard.impl;
import :pool_shard;
import :sync;
import :time_budget;

namespace gpumem::detail {

// The longest burst of polls; later polls are limited to the share of the time.
inline constexpr time_budget::nanoseconds max_poll_burst = std::chrono::microseconds{200};

pool_shard::pool_shard(double poll_share) noexcept : poll_budget{poll_share, max_poll_burst, sync::now()} {}

} // namespace gpumem::detail
