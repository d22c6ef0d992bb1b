// Noting a fork.
// SPDX-License-Identifier: Apache-2.0
module;
#include <pthread.h>
#include <atomic>
module gpumem:fork.impl;
import :fork;

namespace gpumem::detail {
namespace {

std::atomic<bool> is_child{false};

// Before anything can fork that has used gpumem.
[[maybe_unused]] int const fork_handler = pthread_atfork(nullptr, nullptr, [] { is_child = true; });

} // namespace

bool forked() noexcept { return is_child.load(std::memory_order_relaxed); }

} // namespace gpumem::detail
