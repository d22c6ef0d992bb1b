// A session: the device, the threads of all passes over one resource, their streams, and a progress line.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>
export module replay:replay_session;
import gpumem;
import :options;
import :pass;
import :plan;

namespace replay {

/// One line that is overwritten at each step and cleared at the end. Not thread-safe.
export class progress {
public:
  /// Shows the line on `terminal` if that is a terminal; null shows nothing.
  progress(std::size_t steps, std::FILE* terminal);
  progress(progress const&) = delete;
  progress& operator=(progress const&) = delete;
  ~progress();

  /// Starts the next step; `what` describes it.
  void step(std::string_view what);

private:
  void show(std::string const& line);

  std::FILE* terminal_;
  std::size_t steps_;
  std::size_t begun_ = 0;
  std::size_t width_ = 0;
};

export struct chosen_device {
  gpumem::device device;
  bool simulated = false;
  std::string name; ///< product name, for people
};

/// Loads the simulated driver if it is chosen. Call it before any other use of a driver. Throws cuda_error,
/// std::runtime_error.
export chosen_device choose_device(device_choice choice);

/// Takes the findings of the simulated device and throws std::runtime_error with the first one that the calls do not
/// explain. Traces and workloads have no events: a free on another stream than the allocation is unordered in them,
/// and with such `frees_elsewhere` so is the reuse of the block. No work touches the memory.
export void accept_unordered(bool frees_elsewhere);

/// The streams of one thread: gpumem's own, or raw driver handles. Must outlive the resources used on them.
export class stream_set {
public:
  /// Throws cuda_error.
  stream_set(gpumem::device device, std::uint32_t count, bool foreign);
  stream_set(stream_set&& other) noexcept = default;
  stream_set& operator=(stream_set&&) = delete;
  ~stream_set();

  std::span<gpumem::stream_ref const> refs() const noexcept { return refs_; }

  /// Waits until all work on them is complete; throws cuda_error.
  void synchronize() const;

private:
  std::vector<gpumem::stream> own_;
  std::vector<CUstream> foreign_;
  std::vector<gpumem::stream_ref> refs_;
};

/// `size` members; the thread that owns the team is the first.
export class thread_team {
public:
  using member_setup = std::function<void(std::function<void()> const& member)>;
  /// `setup` runs in each member's thread except the first. It must call the function that it gets, which is the
  /// member's life.
  thread_team(unsigned size, member_setup const& setup);
  thread_team(thread_team const&) = delete;
  thread_team& operator=(thread_team const&) = delete;
  ~thread_team();

  unsigned size() const noexcept { return static_cast<unsigned>(spans_.size()); }

  /// Runs `body(member)` in all members at once. Returns nanoseconds from the first start to the last end. Rethrows an
  /// exception of a member after all have ended. Call it from the owner's thread.
  double run(std::function<void(unsigned)> const& body);

private:
  using clock = std::chrono::steady_clock;
  struct span {
    clock::time_point begin;
    clock::time_point end;
    std::exception_ptr error;
  };

  void serve(unsigned member);
  void run_one(unsigned member) noexcept;

  std::vector<span> spans_;
  std::barrier<> start_;
  std::barrier<> finish_;
  std::function<void(unsigned)> const* body_ = nullptr; // null at `start_`: the members end
  std::vector<std::thread> threads_;
};

/// A trace with its plan.
export struct loaded_trace {
  std::string name;
  std::string file;
  plan operations;
};

/// One trace over one resource, with the options. The objects that it points to must outlive it.
export struct run_config {
  loaded_trace const* trace = nullptr;
  std::string_view resource;
  options const* chosen = nullptr;
  unsigned threads = 1;
  chosen_device const* where = nullptr;
  progress* shown = nullptr;
};

/// The cost of one pass.
export struct pass_cost {
  double nanoseconds = 0; ///< from the first start to the last end, by the host's clock
  std::uint64_t driver_calls = 0;
};

/// Must outlive the resources that are used on its streams. Not thread-safe: only the thread that made it, which is the
/// first member of the team, calls it.
export class replay_session {
public:
  /// Throws cuda_error.
  explicit replay_session(run_config const& what);

  /// The streams and the state of one thread of the team.
  struct member {
    unsigned number = 0;
    std::span<gpumem::stream_ref const> streams;
    pass_state& state;
  };

  /// Runs `body` in all threads at once; progress shows `step`. Rethrows an exception of a thread. Throws
  /// std::runtime_error for a failure other than a lack of memory.
  pass_cost run(std::string_view step, std::function<void(member)> const& body);

  std::span<stream_set const> sets() const noexcept { return sets_; }
  /// Calls `visit` for each member in turn, on the calling thread.
  void each_member(std::function<void(member)> const& visit);
  /// Waits for all streams. Throws cuda_error.
  void synchronize() const;
  /// Returns the number of failed allocations since the last call.
  std::uint64_t take_failures();

private:
  void check_fatal() const;

  run_config what_;
  gpumem::device_guard here_; // makes the device current in the owner's thread, as programs do
  std::vector<stream_set> sets_;
  std::vector<pass_state> states_;
  thread_team team_;
};

} // namespace replay
