// failing_adaptor: numbers the requests and decides which are refused.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <stdexcept>
#include <utility>
module gpumem:failing_adaptor.impl;
import :failing_adaptor;
import :process;
import :sync;

namespace gpumem::detail {
namespace {

// The last failed attempt to allocate on this thread. `at` is the adaptor's state, and `refused` says whether the
// adaptor refused the attempt. The request of that attempt can begin to wait next.
struct failed_attempt {
  refusals const* at = nullptr;
  bool refused = false;
};
thread_local failed_attempt last_failed;

// Returns a random value of at least 0 and less than 1. It depends only on the seed and the request number, so each run
// refuses the same numbers, also with several threads. Algorithm: SplitMix64, from Steele, Lea, Flood, "Fast splittable
// pseudorandom number generators" (2014).
double chance(std::uint64_t seed, std::uint64_t number) noexcept {
  auto mixed = seed + number * 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
  mixed ^= mixed >> 31;
  return static_cast<double>(mixed >> 11) * 0x1p-53;
}

bool is_refused(failing_options const& options, std::uint64_t number) noexcept {
  if (options.every != 0 && number % options.every == 0) return true;
  if (options.first != 0 && number >= options.first && number - options.first < options.count) return true;
  return chance(options.seed, number) < options.probability;
}

} // namespace

failing_options const& refusals::checked(failing_options const& options) {
  if (options.probability >= 0 && options.probability <= 1) return options;
  throw std::invalid_argument{"gpumem: the probability of a refusal must be between 0 and 1"};
}

refusals::refusals(failing_options const& options) : options_{checked(options)} {}

void refusals::restart(failing_options const& options) {
  checked(options);
  if (forked()) return;
  sync::spin_lock const lock{mutex_};
  options_ = options;
  counts_ = {};
}

failing_counts refusals::read() noexcept {
  if (forked()) return {};
  sync::spin_lock const lock{mutex_};
  return counts_;
}

bool refusals::refuse_next() noexcept {
  sync::spin_lock const lock{mutex_};
  bool const refused = is_refused(options_, ++counts_.requests);
  counts_.refused += refused;
  return refused;
}

void refusals::note_failed(bool refused) noexcept { last_failed = {this, refused}; }

// Returns whether the request that begins to wait is refused. If an attempt of the request at this adaptor has just
// failed on this thread, the decision of the attempt holds. Otherwise an outer adaptor let the request wait without an
// attempt at this one, and a new decision is made.
bool refusals::refuse_waiting() noexcept {
  auto const last = std::exchange(last_failed, {});
  return last.at == this ? last.refused : refuse_next();
}

} // namespace gpumem::detail
