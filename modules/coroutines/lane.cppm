// What is waited for in one order: the points of one stream, or those of one event.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:lane;
import :cuda;
import :event;
import :std;
import :sync;

namespace gpumem {

/// How soon a wait for the GPU is to end, and what it may cost the host meanwhile.
export enum class latency {
  low,      ///< the device is asked without a pause: one core while such a wait is armed
  balanced, ///< it is asked every ten microseconds or so, less often in a long wait: a quarter of a core at most
};

namespace detail {

class lane;
class lane_list;
class reactor;

// A point that somebody waits for; in place in the waiting operation. Its links are guarded by the reactor's lock.
class armed_point {
public:
  armed_point(armed_point const&) = delete;
  armed_point& operator=(armed_point const&) = delete;

protected:
  explicit armed_point(latency urgency) noexcept : urgency_{urgency} {}
  ~armed_point() = default;

  // Once, on the reactor's thread and without its lock: what the driver said of the event, never "not ready". The last
  // touch.
  virtual void reached(CUresult result) noexcept = 0;

  stream_point where_;
  lane* lane_ = nullptr; // set before it is armed, and stays
  std::atomic<bool> stop_requested_{false};

private:
  friend class lane;
  friend class told_points;
  friend class reactor;
  latency urgency_;
  bool armed_ = false;
  CUresult result_ = CUDA_ERROR_NOT_READY;
  armed_point* next_ = nullptr;
  armed_point* previous_ = nullptr;
};

// Points that are armed no more, on the way to being told.
class told_points {
public:
  void push(armed_point& point, CUresult result) noexcept;
  // What is told may be gone at once, so nothing is kept of it.
  armed_point* pop() noexcept;
  bool empty() const noexcept { return first_ == nullptr; }
  std::size_t size() const noexcept { return size_; }

private:
  armed_point* first_ = nullptr;
  armed_point* last_ = nullptr;
  std::size_t size_ = 0;
};

// What the driver is asked of a lane: its oldest event and, if that is complete, its newest.
struct lane_question {
  lane* of = nullptr;
  CUevent oldest = nullptr;
  CUevent newest = nullptr;
  CUresult oldest_result = CUDA_ERROR_NOT_READY;
  CUresult newest_result = CUDA_ERROR_NOT_READY;
};

// Points that complete in the order in which they were armed, so that however many wait, one or two are asked about.
// Never destroyed, like the streams and the events it is made for. Under the reactor's lock.
class lane {
public:
  explicit lane(reactor& home) noexcept : home_{home} {}
  lane(lane const&) = delete;
  lane& operator=(lane const&) = delete;

  reactor& home() const noexcept { return home_; }
  // Held, without the reactor's lock, from the record of an event until it is armed: else a later event could stand
  // before an earlier one, which would then wait for work that may wait for it.
  sync::mutex& order() noexcept { return order_; }

  void push(armed_point& point) noexcept;
  // While it is being asked about as well: the answer is then nobody's.
  void remove(armed_point& point) noexcept;
  bool empty() const noexcept { return first_ == nullptr; }
  // Somebody wants low latency.
  bool urgent() const noexcept { return urgent_points_ > 0; }

  // Between these two the question is open, and the reactor holds no lock.
  lane_question ask() noexcept;
  void answer(lane_question const& question, told_points& told) noexcept;
  bool asked() const noexcept { return asked_; }
  // Everybody, whatever they wait for.
  void tell_all(CUresult result, told_points& told) noexcept;

private:
  friend class lane_list;
  reactor& home_;
  sync::mutex order_;
  armed_point* first_ = nullptr;
  armed_point* last_ = nullptr;
  std::size_t urgent_points_ = 0;
  bool asked_ = false;
  armed_point* asked_oldest_ = nullptr; // null: disarmed meanwhile
  armed_point* asked_newest_ = nullptr;
  lane_list* listed_in_ = nullptr;
  lane* next_ = nullptr;
  lane* previous_ = nullptr;
};

// Lanes that have points, the one that was asked longest ago first. Under the reactor's lock.
class lane_list {
public:
  // Takes the lane out of the list that it is in and puts it at the end of another; null: of none.
  static void move(lane& item, lane_list* to) noexcept;
  static lane_list* of(lane const& item) noexcept { return item.listed_in_; }
  lane* first() const noexcept { return first_; }
  bool empty() const noexcept { return first_ == nullptr; }
  std::size_t size() const noexcept { return size_; }

private:
  void unlink(lane& item) noexcept;
  void append(lane& item) noexcept;
  lane* first_ = nullptr;
  lane* last_ = nullptr;
  std::size_t size_ = 0;
};

} // namespace detail
} // namespace gpumem
