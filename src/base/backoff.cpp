// Computes the next pause between polls.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
module gpumem:backoff.impl;
import :backoff;
import :sync;
import :tuning;

namespace gpumem::detail {

sync::duration backoff::next() noexcept { return std::min<sync::duration>(++count_ * tuning::pause_step, longest_); }

} // namespace gpumem::detail
