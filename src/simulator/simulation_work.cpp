// simulation: enqueues device work, chooses the next operation and runs it; host calls that wait, and deadlocks.
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

bool flag_wait::satisfied() const noexcept {
  std::uint64_t const mask = wide ? ~std::uint64_t{0} : 0xffffffffu;
  std::uint64_t const value_in_memory =
      wide ? __atomic_load_n(static_cast<std::uint64_t const*>(address), __ATOMIC_ACQUIRE)
           : __atomic_load_n(static_cast<std::uint32_t const*>(address), __ATOMIC_ACQUIRE);
  std::uint64_t const wanted = value & mask;
  switch (condition & 3u) {
  case CU_STREAM_WAIT_VALUE_EQ: return value_in_memory == wanted;
  case CU_STREAM_WAIT_VALUE_AND: return (value_in_memory & wanted) != 0;
  case CU_STREAM_WAIT_VALUE_NOR: return (~(value_in_memory | wanted) & mask) != 0;
  default:
    return wide ? static_cast<std::int64_t>(value_in_memory - wanted) >= 0
                : static_cast<std::int32_t>(static_cast<std::uint32_t>(value_in_memory) -
                                            static_cast<std::uint32_t>(wanted)) >= 0;
  }
}

bool operation::ready() const noexcept {
  if (recorded && recorded->never_completes) return false;
  if (awaited && !awaited->done()) return false;
  if (flag && !flag->satisfied()) return false;
  return std::all_of(wait_positions.begin(), wait_positions.end(), [](position const& p) { return p.done(); });
}

/// Advances the stream's vector clock to a new point, the place of `work` or of a call in the stream's order. The point
/// is ordered after the host, and after the event record for which `work` waits. By the rules of the legacy stream, it
/// can also be ordered after other streams.
void simulation::add_point(stream& stream, operation* work) {
  stream.order.join(host);
  auto const join_stream = [&](stream_ptr const& other) {
    stream.order.join(other->order);
    if (work != nullptr && !other->queue.empty()) work->wait_positions.push_back({other, other->number});
  };
  if (stream.kind == stream_kind::legacy) {
    stream.order.join(stream.home->ended_order);
    for (stream_ptr const& other : stream.home->streams)
      if (other.get() != &stream && other->blocking() && other->used()) join_stream(other);
  } else if (stream.blocking() && stream.home->legacy && stream.home->legacy->used()) {
    join_stream(stream.home->legacy);
  }
  if (work != nullptr && work->awaited) stream.order.join(work->awaited->order);
  stream.order.set(stream.component, ++stream.number);
}

CUresult simulation::enqueue(stream_ptr const& stream, operation&& work) {
  if (legacy_breaks_capture(*stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (stream->capturing) return add_to_capture(stream, std::move(work));
  add_point(*stream, &work);
  work.number = stream->number;
  work.enqueued_at = host_time;
  if (work.recorded) {
    work.recorded->covers.push_back({stream, stream->number});
    work.recorded->order = stream->order;
  }
  actor const current = newest_point(stream, work.action);
  actor early = current;
  early.order = &host;
  bool const own_access = this_host_thread().own_work;
  for (touched const& range : work.touches) {
    actor toucher = range.early ? early : current;
    if (range.device >= 0) toucher.device = range.device;
    order.touch(toucher, range.address, range.bytes, range.write, own_access);
  }
  if (stream->queue.empty()) active_.push_back(stream);
  stream->queue.push_back(std::move(work));
  ++progress_;
  changed_.notify_all();
  return CUDA_SUCCESS;
}

actor simulation::point(stream_ptr const& stream, char const* action) {
  add_point(*stream, nullptr);
  return newest_point(stream, action);
}

actor simulation::newest_point(stream_ptr const& stream, char const* action) {
  return {stream->component,
          stream->number,
          {stream->id, stream->number - stream->base, action},
          &stream->order,
          stream->home->device};
}

actor simulation::host_point(char const* action) {
  std::uint64_t const tick = host.at(host_component) + 1;
  host.set(host_component, tick);
  return {host_component, tick, {0, tick, action}, &host};
}

stream* simulation::choose() {
  std::size_t const count = active_.size();
  if (count == 0) return nullptr;
  std::size_t const first = chance_.below(count);
  for (std::size_t i = 0; i < count; ++i) {
    stream* candidate = active_[(first + i) % count].get();
    if (candidate->queue.front().ready()) return candidate;
  }
  return nullptr;
}

bool simulation::step() {
  if (executing_) return false;
  stream* stream = choose();
  if (stream == nullptr) return false;
  if (auto const& run = stream->queue.front().run) {
    executing_ = stream->running = true;
    {
      unlocked const meanwhile(simulation_mutex);
      host_thread& self = this_host_thread();
      self.in_function = true;
      run();
      self.in_function = false;
    }
    executing_ = stream->running = false;
  }
  end_operation(*stream);
  return true;
}

/// Ends the front operation of the stream: sets its end time and the time of its event record, and wakes waiting
/// threads.
void simulation::end_operation(stream& stream) {
  if (stream.queue.empty()) return; // the context was destroyed while the operation ran
  operation work = std::move(stream.queue.front());
  std::uint64_t begin = std::max(stream.end_time, work.enqueued_at);
  for (position const& p : work.wait_positions) begin = std::max(begin, p.stream->end_time);
  if (work.awaited) begin = std::max(begin, work.awaited->time);
  stream.end_time = begin + work.duration;
  if (work.recorded) work.recorded->time = stream.end_time;
  stream.queue.pop_front();
  ++operations_run;
  ++progress_;
  if (stream.queue.empty()) {
    auto const place = std::find_if(active_.begin(), active_.end(), [&](auto const& s) { return s.get() == &stream; });
    stream_ptr const keep = std::move(*place);
    *place = std::move(active_.back());
    active_.pop_back();
    if (!stream.alive) retire(keep);
  }
  changed_.notify_all();
}

void simulation::advance() {
  host_time += 1000;
  if (options_.stepping == GPUMEM_STEPPING_MANUAL || active_.empty()) return;
  if (options_.stepping == GPUMEM_STEPPING_IMMEDIATE) {
    while (step()) {}
    return;
  }
  if (calls_at_this_pace_-- == 0) {
    eagerness_ = static_cast<unsigned>(chance_.below(4));
    calls_at_this_pace_ = 16 + static_cast<unsigned>(chance_.below(64));
  }
  constexpr std::uint64_t most[] = {2, 3, 6, 48};
  std::uint64_t steps = chance_.below(most[eagerness_]);
  if (eagerness_ == 0 && chance_.below(4) != 0) steps = 0;
  while (steps-- > 0 && step()) {}
}

bool simulation::idle(stream const& stream) const {
  if (!stream.queue.empty()) return false;
  if (stream.kind != stream_kind::legacy) return true;
  return std::all_of(stream.home->streams.begin(), stream.home->streams.end(),
                     [](stream_ptr const& other) { return !other->blocking() || other->queue.empty(); });
}

vector_clock simulation::order_now(stream const& stream) const {
  vector_clock all = stream.order;
  if (stream.kind == stream_kind::legacy)
    for (stream_ptr const& other : stream.home->streams)
      if (other->blocking()) all.join(other->order);
  return all;
}

std::uint64_t simulation::pending() const {
  std::uint64_t count = 0;
  for (stream_ptr const& stream : active_) count += stream->queue.size();
  return count;
}

CUresult simulation::wait_for(stream_ptr const& stream, char const* call) {
  std::vector<position> ends{{stream, stream->number}};
  if (stream->kind == stream_kind::legacy)
    for (stream_ptr const& other : stream->home->streams)
      if (other->blocking()) ends.push_back({other, other->number});
  vector_clock const order_at_call = order_now(*stream);
  auto const done = [&] { return std::all_of(ends.begin(), ends.end(), [](position const& p) { return p.done(); }); };
  if (!done()) {
    std::string const what = std::string(call) + " for stream " + std::to_string(stream->id);
    std::uint64_t const id = stream->home->id;
    if (CUresult const result = block_until(what, done); result != CUDA_SUCCESS) return result;
    if (CUresult const result = after_wait(*stream->home, id); result != CUDA_SUCCESS) return result;
  }
  for (position const& p : ends) host_time = std::max(host_time, p.stream->end_time);
  host.join(order_at_call);
  return CUDA_SUCCESS;
}

CUresult simulation::wait_for_all(context& home, char const* call) {
  std::vector<position> ends;
  for (stream_ptr const& stream : home.streams)
    if (!stream->queue.empty()) ends.push_back({stream, stream->number});
  auto const done = [&] { return std::all_of(ends.begin(), ends.end(), [](position const& p) { return p.done(); }); };
  if (done()) return CUDA_SUCCESS;
  std::string const what = std::string(call) + " for all work of device " + std::to_string(home.device);
  std::uint64_t const id = home.id;
  CUresult const result = block_until(what, done);
  return result == CUDA_SUCCESS ? after_wait(home, id) : result;
}

CUresult simulation::block_until(std::string const& text, std::function<bool()> const& done) {
  using clock = std::chrono::steady_clock;
  std::uint64_t const thread = this_host_thread().number;
  blocked_.push_back({thread, text});
  auto const leave = [&](CUresult result) {
    std::erase_if(blocked_, [&](blocked_call const& call) { return call.thread == thread; });
    return result;
  };
  std::uint64_t value_in_memory = progress_;
  auto last_progress = clock::now();
  while (!done()) {
    if (step()) continue;
    if (on_block != nullptr) {
      if (unlocked const meanwhile(simulation_mutex); on_block(on_block_context)) continue;
      if (done() || step()) continue;
      return leave(deadlocked(text));
    }
    if (!executing_ && alone()) return leave(deadlocked(text));
    changed_.wait_for(simulation_mutex, std::chrono::milliseconds(1));
    if (value_in_memory != progress_) {
      value_in_memory = progress_;
      last_progress = clock::now();
    } else if (!executing_ && clock::now() - last_progress > std::chrono::milliseconds(options_.stall_timeout_ms)) {
      return leave(deadlocked(text));
    }
  }
  return leave(CUDA_SUCCESS);
}

/// Called if a query finds work not done. Warns once if no work has run for the stall timeout: the program may hang,
/// because a thread waits for that work outside the driver, as in sync_wait.
void simulation::queried_in_vain() {
  if (options_.stepping != GPUMEM_STEPPING_MANUAL || vain_.reported) return;
  auto const now = std::chrono::steady_clock::now();
  if (vain_.progress != progress_) {
    vain_.progress = progress_;
    vain_.first_time = now;
  } else if (now - vain_.first_time >= std::chrono::milliseconds(options_.stall_timeout_ms)) {
    vain_.reported = true;
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
  std::filesystem::directory_iterator const threads("/proc/self/task", failed);
  if (failed) return false;
  return std::cmp_less_equal(std::distance(begin(threads), end(threads)), blocked_.size());
}

CUresult simulation::deadlocked(std::string const& call) {
  std::string const text = "deadlock: " + call + " cannot complete, since no device work can run; " + describe_waits();
  std::fprintf(stderr, "gpumem simulator: %s\n", text.c_str());
  report_finding(finding_kind::deadlock, text);
  return CUDA_ERROR_TIMEOUT;
}

std::string simulation::describe_waits() const {
  std::string text;
  for (blocked_call const& call : blocked_)
    text += "host thread " + std::to_string(call.thread) + " is in " + call.call + "; ";
  auto const point_of = [](position const& p) {
    return "operation " + std::to_string(p.number - p.stream->base) + " of stream " + std::to_string(p.stream->id);
  };
  for (stream_ptr const& stream : active_) {
    operation const& front = stream->queue.front();
    text += "stream " + std::to_string(stream->id) + " is at " + front.action + " " +
            std::to_string(front.number - stream->base) + ", which waits for";
    std::size_t const before = text.size();
    if (front.recorded && front.recorded->never_completes)
      text += " nothing: never_complete() was called for its event";
    if (front.flag) text += " a value in memory";
    if (front.awaited)
      for (position const& p : front.awaited->covers)
        if (!p.done()) text += " " + point_of(p);
    for (position const& p : front.wait_positions)
      if (!p.done()) text += " " + point_of(p) + " (legacy stream)";
    if (text.size() == before) text += " nothing";
    text += "; ";
  }
  text.resize(text.size() - std::min<std::size_t>(text.size(), 2));
  return text;
}

} // namespace simulated
