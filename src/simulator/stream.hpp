// Streams of the simulated driver, the operations in their queues, the order between them, and events.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "driver_api.hpp"

namespace simulated {

inline constexpr std::uint32_t host_component = 0;

class vector_clock {
public:
  [[nodiscard]] std::uint64_t at(std::uint32_t component) const noexcept {
    return component < counts_.size() ? counts_[component] : 0;
  }

  [[nodiscard]] bool covers(std::uint32_t component, std::uint64_t number) const noexcept {
    return at(component) >= number;
  }

  void set(std::uint32_t component, std::uint64_t number) {
    if (component >= counts_.size()) counts_.resize(component + 1, 0);
    counts_[component] = number;
  }

  void join(vector_clock const& other) {
    if (counts_.size() < other.counts_.size()) counts_.resize(other.counts_.size(), 0);
    for (std::size_t i = 0; i < other.counts_.size(); ++i)
      if (counts_[i] < other.counts_[i]) counts_[i] = other.counts_[i];
  }

private:
  std::vector<std::uint64_t> counts_;
};

struct stream;
struct context;
struct capture;
struct graph;
using stream_ptr = std::shared_ptr<stream>;

/// All work of a stream up to and including an operation.
struct position {
  stream_ptr stream;
  std::uint64_t number;

  [[nodiscard]] bool done() const noexcept;
};

/// One record of an event. A wait refers to the record that is the newest when the wait is enqueued. A later record of
/// the event is another object.
struct record {
  std::vector<position> covers;
  vector_clock order;
  std::uint64_t time = 0;       // simulated nanoseconds at completion
  std::uint64_t event = 0;      // serial number of the event, for messages
  bool never_completes = false; // injected fault: the operation of the record never completes

  [[nodiscard]] bool done() const noexcept {
    for (position const& p : covers)
      if (!p.done()) return false;
    return !never_completes;
  }
};

/// A wait of a stream for a value in memory; it models a kernel that spins on a flag. The checker of accesses derives
/// no order from such a wait.
struct flag_wait {
  void const* address;
  std::uint64_t value;
  unsigned condition; // of type CUstreamWaitValue_flags
  bool wide;          // whether the value has 64 bits

  [[nodiscard]] bool satisfied() const noexcept;
};

/// Bytes that an operation reads or writes. If `early` is true, the access can happen before earlier work of the
/// stream. `device` is the device that touches the bytes, or -1 for that of the stream.
struct touched {
  std::uint64_t address;
  std::uint64_t bytes;
  bool write;
  bool early = false;
  int device = -1;
};

/// A unit of device work in a stream's queue.
struct operation {
  char const* action = "work";
  std::uint64_t number = 0;
  std::uint64_t duration = 0; // simulated nanoseconds
  std::uint64_t enqueued_at = 0;
  std::vector<position> wait_positions; // positions to wait for because of the legacy stream
  std::shared_ptr<record> awaited;
  std::shared_ptr<record> recorded;
  std::shared_ptr<flag_wait> flag;
  std::function<void()> run;
  std::vector<touched> touches;
  bool is_kernel = false;
  bool may_overlap = false; // programmatic launch: can run together with the kernel before it

  /// Returns whether the operation can run: all for which it waits is done.
  [[nodiscard]] bool ready() const noexcept;
};

enum class stream_kind { own, legacy, per_thread };

struct stream {
  std::uint64_t id = 0; // no other stream ever gets this id
  CUstream handle = nullptr;
  context* home = nullptr;
  stream_kind kind = stream_kind::own;
  unsigned flags = 0;
  int priority = 0;
  bool alive = true;

  std::uint32_t component = 0; // index of the stream in vector clocks; a later stream can get it
  std::uint64_t number = 0;    // number of the newest operation
  std::uint64_t base = 0;      // `number` at the start: the last number of the component's previous stream, or 0
  vector_clock order;          // covers the newest operation, and all work after which it is ordered

  std::deque<operation> queue;
  bool running = false; // whether a function of the front operation runs now, without the lock
  std::uint64_t end_time = 0;

  std::shared_ptr<capture> capturing;
  // Lists to which cuStreamGetCaptureInfo has returned pointers; they are valid until the next call on the stream.
  std::vector<CUgraphNode> returned_dependencies;
  std::vector<CUgraphEdgeData> returned_edges;

  /// Overwrites both lists with zeros, so that a program that still reads them finds nothing.
  void clear_returned_lists();

  [[nodiscard]] bool blocking() const noexcept { return (flags & CU_STREAM_NON_BLOCKING) == 0; }
  [[nodiscard]] bool used() const noexcept { return number > base; }
};

inline void stream::clear_returned_lists() {
  std::fill(returned_dependencies.begin(), returned_dependencies.end(), nullptr);
  std::fill(returned_edges.begin(), returned_edges.end(), CUgraphEdgeData{});
}

inline bool position::done() const noexcept { return stream->queue.empty() || stream->queue.front().number > number; }

struct event {
  CUevent handle = nullptr;
  std::uint64_t serial = 0;
  context* home = nullptr;
  unsigned flags = 0;
  std::shared_ptr<record> last;      // null if the event was never recorded; a query then returns success
  std::shared_ptr<capture> captured; // the capture in which the event was last recorded
  vector_clock captured_order;       // the nodes of that capture that come before the record
  std::vector<CUgraphNode> covered;  // a stream that waits for the event: its next node depends on these nodes
  bool next_never_completes = false; // injected fault: the next record never completes
};

} // namespace simulated
