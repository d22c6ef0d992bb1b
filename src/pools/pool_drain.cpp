// Out of memory: what is free but still in use on some stream is waited for on the host, for a bounded time.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>
module gpumem:pool_drain.impl;
import :pool_engine;
import :chunks;
import :cuda;
import :device;
import :driver;
import :ranges;
import :stream;
import :sync;
import :tags;
import :timeline;

namespace gpumem::detail {
namespace {

using namespace std::chrono_literals;
inline constexpr sync::duration longest_drain = 1s;
inline constexpr sync::duration longest_nap = 5ms;

} // namespace

// Epochs are closed before the wait begins: what is freed meanwhile belongs to later ones.
void synchronise_with(std::vector<timeline*> const& orders, device where) noexcept {
  std::vector<std::pair<timeline*, epoch>> seen;
  try {
    for (auto* const order : orders) seen.emplace_back(order, order->close_epoch());
    current_device const scope{where};
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver().thread_exchange_stream_capture_mode(&mode);
    auto const result = driver().ctx_synchronize();
    driver().thread_exchange_stream_capture_mode(&mode);
    if (result != CUDA_SUCCESS) {
      if (sticky(result)) where.lose(result);
      return; // an error is not "complete"
    }
    for (auto const& [order, newest] : seen) order->publish_completed(newest);
  } catch (...) {
    // Nothing was learnt.
  }
}

// Whether completion of what is open could bring this request about, by itself or by making room for growth.
bool pool_engine::draining_may_help(pool_request const& what) {
  if (open_timelines(false).empty()) return false;
  if (ranges_.largest_run() >= what.bytes && (options_.cross_stream != reuse::own || what.key.is_host())) return true;
  return chunks_.largest_idle(0, [](chunk const&) { return true; }) != nullptr;
}

// Polls for up to a second, then synchronises once with streams that left no evidence. Whatever completes is looked at
// at once; chunks that become idle are the caller's to give back.
void* pool_engine::drain(pool_request const& what, sync::lock& held) {
  auto const deadline = sync::now() + longest_drain;
  auto const again = [&] {
    auto* const p = reuse_now(what);
    if (p) ++counts_.reuse_drained;
    return p;
  };
  learn_completion(nullptr);
  for (sync::duration nap = 20us; draining_may_help(what); nap = std::min(2 * nap, longest_nap)) {
    auto const open = open_timelines(false);
    auto const tails = open_timelines(true);
    bool const only_tails = open.size() == tails.size();
    if (device_.lost() || (!only_tails && sync::now() >= deadline)) return nullptr;
    held.unlock();
    if (only_tails) {
      synchronise_with(tails, device_);
    } else {
      sync::sleep_for(nap);
      for (auto* const order : open) order->poll();
    }
    held.lock();
    if (auto* const p = again()) return p;
    if (only_tails) return nullptr;
  }
  return again();
}

} // namespace gpumem::detail
