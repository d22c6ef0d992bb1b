// Out of memory: what is free but still in use on some stream is waited for on the host, for a bounded time.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>
module gpumem:pool_drain.impl;
import :pool_engine;
import :pool_order;
import :pool_supply;
import :block;
import :chunks;
import :cuda;
import :device;
import :driver;
import :executor;
import :pool_request;
import :ranges;
import :shards;
import :stream;
import :sync;
import :tags;
import :timeline;

namespace gpumem::detail {
namespace {

using namespace std::chrono_literals;
inline constexpr sync::duration longest_drain = 1s;
inline constexpr sync::duration longest_nap = 5ms;

// One host wait for all work of a context, made on a thread of its own: a kernel may run until the very thread that
// wants memory goes on. Epochs are closed before the wait begins, so what is freed meanwhile belongs to later ones.
class context_wait final : private resumption {
public:
  // False when not done by then; the wait goes on without the caller.
  static bool run(std::vector<timeline*> const& orders, sync::time_point deadline) {
    auto* const thread = waiting_thread();
    if (!thread) return false;
    auto* const wait = new context_wait{orders};
    sync::lock held{wait->guard_};
    thread->post(*wait);
    while (!wait->done_ && sync::now() < deadline) wait->ended_.wait_until(held, deadline);
    wait->abandoned_ = !wait->done_;
    bool const done = wait->done_;
    held.unlock();
    if (done) delete wait;
    return done;
  }

private:
  explicit context_wait(std::vector<timeline*> const& orders) {
    for (auto* const order : orders) {
      seen_.emplace_back(order, order->close_epoch());
      if (std::ranges::find(devices_, order->device()) == devices_.end()) devices_.push_back(order->device());
    }
  }

  // Kept for the process, and stopped before the driver goes: null from then on.
  static thread_executor* waiting_thread() {
    static std::atomic<thread_executor*> running{new thread_executor};
    static bool const registered = [] {
      at_driver_exit([]() noexcept { delete running.exchange(nullptr); });
      return true;
    }();
    static_cast<void>(registered);
    return running.load();
  }

  void resume() noexcept override {
    for (auto const ordinal : devices_) synchronise(ordinal);
    sync::lock held{guard_};
    done_ = true;
    ended_.notify_one();
    bool const abandoned = abandoned_;
    held.unlock();
    if (abandoned) delete this;
  }

  void synchronise(int ordinal) noexcept {
    try {
      device const where{ordinal};
      where.require();
      current_device const scope{where};
      relaxed_capture const relaxed; // other threads' captures are not to be disturbed
      auto const result = where.judge(driver().ctx_synchronize());
      if (result != CUDA_SUCCESS) return; // an error is not "complete"
      for (auto const& [order, newest] : seen_) {
        if (order->device() == ordinal) order->publish_completed(newest);
      }
    } catch (...) {
      // Without a context nothing was learnt.
    }
  }

  std::vector<std::pair<timeline*, epoch>> seen_;
  std::vector<int> devices_;
  sync::mutex guard_;
  sync::condition ended_;
  bool done_ = false;
  bool abandoned_ = false;
};

} // namespace

bool synchronise_with(std::vector<timeline*> const& orders, sync::duration longest) noexcept {
  try {
    return context_wait::run(orders, sync::now() + longest);
  } catch (...) { // the host has no memory, or no thread, to wait with
    return false;
  }
}

bool pool_engine::settle(sync::duration longest) {
  std::vector<timeline*> open;
  {
    shard_locks const held{shards_};
    serve_deferred();
    sweep();
    open = pool_order::open_timelines(false, everywhere());
  }
  return (open.empty() || synchronise_with(open, longest)) && !lost();
}

// Whether completion of what is open could bring this request about, by itself or by making room for growth.
bool pool_engine::draining_may_help(pool_request const& what) {
  if (pool_order::open_timelines(false, everywhere()).empty()) return false;
  if (supply_.paged() && free_bytes() + supply_.chunks().room() >= what.bytes) return true;
  std::size_t run = 0;
  supply_.chunks().visit([&](chunk const& each) { run = std::max(run, range_map::largest_run(each)); });
  if (run >= what.bytes && (options_.cross_stream != reuse::own || what.key.is_host())) return true;
  return supply_.chunks().largest_idle(0, [](chunk const&) { return true; }) != nullptr;
}

// Polls for up to a second, then synchronises once with streams that left no evidence. Whatever completes is looked at
// at once; chunks that become idle are the caller's to give back.
void* pool_engine::drain(pool_request const& what, shard_locks& held) {
  auto const deadline = sync::now() + longest_drain;
  auto const again = [&] {
    auto* const p = reuse_now(what);
    if (p) ++what.own->counts.reuse_drained;
    return p;
  };
  order_.learn_completion(nullptr, everywhere());
  for (sync::duration nap = 20us; draining_may_help(what); nap = std::min(2 * nap, longest_nap)) {
    auto const open = pool_order::open_timelines(false, everywhere());
    auto const tails = pool_order::open_timelines(true, everywhere());
    bool const only_tails = open.size() == tails.size();
    if (lost() || (!only_tails && sync::now() >= deadline)) return nullptr;
    held.unlock();
    if (only_tails) {
      synchronise_with(tails, deadline - sync::now());
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
