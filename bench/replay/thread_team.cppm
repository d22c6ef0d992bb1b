// Threads that start a pass together and live across passes.
// SPDX-License-Identifier: Apache-2.0
module;

#include <barrier>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

export module replay:thread_team;

namespace replay {

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

} // namespace replay
