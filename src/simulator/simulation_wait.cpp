// simulation: host calls that wait. They run device work, let other threads run, and detect deadlocks.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "simulation.hpp"

namespace simulated {

CUresult simulation::block_until(const std::string& what, const std::function<bool()>& done) {
  using clock = std::chrono::steady_clock;
  const std::uint64_t thread = this_host_thread().number;
  blocked_.push_back({thread, what});
  const auto leave = [&](CUresult result) {
    std::erase_if(blocked_, [&](const blocked_call& call) { return call.thread == thread; });
    return result;
  };
  std::uint64_t seen = progress_;
  auto since = clock::now();
  while (!done()) {
    if (step()) continue;
    if (on_block != nullptr) {
      if (const unlocked meanwhile(simulation_mutex); on_block(on_block_context)) continue;
      if (done() || step()) continue;
      return leave(deadlocked(what));
    }
    if (!executing_ && alone()) return leave(deadlocked(what));
    changed_.wait_for(simulation_mutex, std::chrono::milliseconds(1));
    if (seen != progress_) {
      seen = progress_;
      since = clock::now();
    } else if (!executing_ && clock::now() - since > std::chrono::milliseconds(options_.stall_timeout_ms)) {
      return leave(deadlocked(what));
    }
  }
  return leave(CUDA_SUCCESS);
}

/// Called if a query finds work not done. Warns once if no work has run for the stall timeout: the program may hang,
/// because a thread waits for that work outside the driver, as in sync_wait.
void simulation::queried_in_vain() {
  if (options_.stepping != GPUMEM_STEPPING_MANUAL || vain_.told) return;
  const auto now = std::chrono::steady_clock::now();
  if (vain_.progress != progress_) {
    vain_.progress = progress_;
    vain_.since = now;
  } else if (now - vain_.since >= std::chrono::milliseconds(options_.stall_timeout_ms)) {
    vain_.told = true;
    std::fprintf(stderr, "gpumem simulator: queries find the same work not done, since with stepping::manual no work "
                         "runs by itself; a thread that waits for it, as in sync_wait, waits until another thread "
                         "calls step() or run_until_idle()\n");
  }
}

/// If another thread runs a function of device work, waits for the function, except in two cases. If a test schedules
/// the threads (on_block), only one thread runs at a time. If the caller is that function, it would wait for itself.
std::uint64_t simulation::run_until_idle() {
  for (;;) {
    if (step()) continue;
    if (!executing_ || on_block != nullptr || this_host_thread().in_function) return pending();
    changed_.wait_for(simulation_mutex, std::chrono::milliseconds(1));
  }
}

/// Returns whether all threads of the process are in calls that wait.
bool simulation::alone() const {
  std::error_code failed;
  const std::filesystem::directory_iterator threads("/proc/self/task", failed);
  if (failed) return false;
  return std::cmp_less_equal(std::distance(begin(threads), end(threads)), blocked_.size());
}

CUresult simulation::deadlocked(const std::string& what) {
  const std::string text = "deadlock: " + what + " cannot complete, since no device work can run; " + who_waits();
  std::fprintf(stderr, "gpumem simulator: %s\n", text.c_str());
  find(finding_kind::deadlock, text);
  return CUDA_ERROR_TIMEOUT;
}

std::string simulation::who_waits() const {
  std::string text;
  for (const blocked_call& call : blocked_)
    text += "host thread " + std::to_string(call.thread) + " is in " + call.what + "; ";
  const auto point_of = [](const position& p) {
    return "operation " + std::to_string(p.number - p.on->base) + " of stream " + std::to_string(p.on->id);
  };
  for (const stream_ptr& on : active_) {
    const operation& front = on->queue.front();
    text += "stream " + std::to_string(on->id) + " is at " + front.action + " " +
            std::to_string(front.number - on->base) + ", which waits for";
    const std::size_t before = text.size();
    if (front.recorded && front.recorded->never) text += " nothing: never_complete() was called for its event";
    if (front.flag) text += " a value in memory";
    if (front.awaited)
      for (const position& p : front.awaited->covers)
        if (!p.done()) text += " " + point_of(p);
    for (const position& p : front.after)
      if (!p.done()) text += " " + point_of(p) + " (legacy stream)";
    if (text.size() == before) text += " nothing";
    text += "; ";
  }
  text.resize(text.size() - std::min<std::size_t>(text.size(), 2));
  return text;
}

} // namespace simulated
