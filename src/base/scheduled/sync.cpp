// The scheduler for tests: a form of `sync` in which only one thread runs at a time. One participant (a thread) holds
// the baton, the right to run; all others sleep on a futex. The holder of the baton picks the next participant by
// random numbers from a seed, or by a function of the test (the chooser).
// SPDX-License-Identifier: Apache-2.0
module;
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>
module gpumem:sync.scheduled;
import :locks;
import :sync;

namespace gpumem::detail::sync {
namespace {

inline constexpr auto no_deadline = time_point::max();
inline constexpr auto mark_cost = std::chrono::nanoseconds{100};

// A thread that takes part in the schedule. `turn` is 1 from when the thread is given the baton until it takes it.
struct participant {
  std::atomic<std::uint32_t> turn{0};
  std::function<bool()> const* ready = nullptr; // null: the participant may run
  time_point deadline = no_deadline;
  char const* waits_for = "";
  unsigned number = 0;

  void take() {
    while (turn.load(std::memory_order_acquire) == 0) {
      syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
    }
    turn.store(0, std::memory_order_relaxed);
  }
  void give() {
    turn.store(1, std::memory_order_release);
    syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
};

// Only the holder of the baton uses this state, with one exception: a new thread adds itself to the participants under
// `joining`, and takes its number there.
struct baton {
  native_mutex joining;
  std::vector<participant*> participants;
  std::vector<unsigned> free_numbers;
  std::vector<participant*> candidates;
  std::minstd_rand random;
  schedule::chooser choose; // if set, picks the next participant instead of `random`
  std::uint64_t seed = 0;
  unsigned switch_one_in = 1;
  time_point now{};
  std::uint64_t marks = 0;
  std::uint64_t switches = 0;
  std::uint64_t progress = 0;

  unsigned take_index() {
    if (free_numbers.empty()) return static_cast<unsigned>(participants.size());
    auto const lowest = std::min_element(free_numbers.begin(), free_numbers.end());
    auto const number = *lowest;
    free_numbers.erase(lowest);
    return number;
  }
};

// Never freed, because gpumem's own threads still use it when static destruction joins them.
baton& the_baton() {
  static auto* const instance = new baton;
  return *instance;
}

thread_local participant* self = nullptr;
thread_local void (*exit_function)() noexcept = nullptr;

// Returns the calling thread's participant. A thread that the schedule did not start (usually the main thread) takes
// part from its first call on.
participant& this_participant() {
  if (!self) {
    auto& b = the_baton();
    scoped_lock const held{b.joining};
    self = new participant;
    self->number = b.take_index();
    b.participants.push_back(self);
  }
  return *self;
}

bool can_run(participant const& p, time_point now) { return !p.ready || p.deadline <= now || (*p.ready)(); }

// Fills `candidates` with the participants that can run. If no thread can run, advances the clock to the next deadline.
// Returns false if still none can run.
bool find_candidates() {
  auto& b = the_baton();
  for (bool advanced = false;; advanced = true) {
    b.candidates.clear();
    auto next = no_deadline;
    for (auto* p : b.participants) {
      if (can_run(*p, b.now)) b.candidates.push_back(p);
      next = std::min(next, p->deadline);
    }
    if (!b.candidates.empty()) return true;
    if (advanced || next == no_deadline) return false;
    b.now = next;
  }
}

[[noreturn]] void report_deadlock() {
  auto& b = the_baton();
  std::fprintf(stderr, "gpumem schedule: all threads wait, seed %llu\n", static_cast<unsigned long long>(b.seed));
  for (auto const* p : b.participants) std::fprintf(stderr, "  thread %u waits for %s\n", p->number, p->waits_for);
  std::abort();
}

participant* pick(participant const* holder) {
  auto& b = the_baton();
  auto& among = b.candidates;
  if (!b.choose) return among[b.random() % among.size()];
  if (among.size() == 1) return among[0];
  auto const current = std::ranges::find(among, holder);
  bool const may_stay = current != among.end();
  if (may_stay) std::rotate(among.begin(), current, current + 1);
  return among[b.choose(among.size(), may_stay)];
}

// Passes the baton on and returns when it comes back.
void pass(participant& participant) {
  auto& b = the_baton();
  if (!find_candidates()) report_deadlock();
  auto* const next = b.candidates.size() == 1 ? b.candidates[0] : pick(&participant);
  if (next == &participant) return;
  ++b.switches;
  next->give();
  participant.take();
}

void wait_for(std::function<bool()> const& ready, char const* text, time_point deadline = no_deadline) {
  auto& me = this_participant();
  me.ready = &ready;
  me.deadline = deadline;
  me.waits_for = text;
  pass(me);
  me.ready = nullptr;
  me.deadline = no_deadline;
}

void leave(participant* p) {
  auto& b = the_baton();
  std::erase(b.participants, p);
  b.free_numbers.push_back(p->number);
  if (!find_candidates()) report_deadlock();
  pick(nullptr)->give();
}

} // namespace

time_point clock::now() noexcept {
  auto& b = the_baton();
  this_participant();
  return b.now;
}

void schedule_point() noexcept {
  auto& me = this_participant();
  auto& b = the_baton();
  ++b.marks;
  ++b.progress;
  b.now += mark_cost;
  if (b.participants.size() > 1 && (b.switch_one_in == 1 || b.random() % b.switch_one_in == 0)) pass(me);
}

void mutex::lock() {
  schedule_point();
  if (locked_) wait_for([this] { return !locked_; }, "a mutex");
  locked_ = true;
}

bool mutex::try_lock() {
  schedule_point();
  return !std::exchange(locked_, true);
}

void mutex::unlock() { locked_ = false; }

void mutex::assert_held() const noexcept {
  if (!locked_) std::abort();
}

void condition::wait(mutex& mutex) { wait_until(mutex, no_deadline); }

void condition::wait_until(mutex& mutex, time_point deadline) {
  auto const ticket = ++tickets_;
  mutex.locked_ = false;
  wait_for([this, ticket, &mutex] { return served_ >= ticket && !mutex.locked_; }, "a condition", deadline);
  served_ = std::max(served_, std::min(ticket, tickets_));
  if (mutex.locked_) wait_for([&mutex] { return !mutex.locked_; }, "a mutex after a condition");
  mutex.locked_ = true;
}

void condition::notify_one() noexcept {
  if (served_ < tickets_) ++served_;
}

void condition::notify_all() noexcept { served_ = tickets_; }

void spin_condition::wait_for(std::uint64_t ticket) {
  sync::wait_for([this, ticket] { return served_ >= ticket; }, "a condition");
}

struct thread::running {
  std::thread native;
  participant identity;
  bool finished = false;
};

thread::thread(std::function<void()> body) : running_{std::make_unique<running>()} {
  this_participant();
  auto& b = the_baton();
  auto* const state = running_.get();
  state->identity.number = b.take_index();
  b.participants.push_back(&state->identity);
  state->native = std::thread{[state, body = std::move(body)] {
    self = &state->identity;
    self->take();
    body();
    if (exit_function) exit_function();
    state->finished = true;
    leave(self);
  }};
}

thread::thread() noexcept = default;
thread::thread(thread&& other) noexcept = default;

thread& thread::operator=(thread&& other) noexcept {
  if (running_) std::abort(); // join before assigning
  running_ = std::move(other.running_);
  return *this;
}

thread::~thread() {
  if (running_) std::abort(); // join before destroying
}

void thread::join() {
  auto* const state = running_.get();
  wait_for([state] { return state->finished; }, "a thread to finish");
  state->native.join();
  running_.reset();
}

unsigned thread_index() noexcept { return this_participant().number; }

void at_thread_exit(void (*function)() noexcept) { exit_function = function; }

void sleep_for(duration span) {
  auto const deadline = now() + span;
  wait_for([] { return false; }, "a sleep", deadline);
}

} // namespace gpumem::detail::sync

namespace gpumem::detail::schedule {
namespace {

// Runs the bodies on one processor until all have returned.
result run_all(std::vector<std::function<void()>>& bodies) {
  auto& b = sync::the_baton();
  sync::this_participant();
  cpu_set_t previous_cpus, one;
  bool const pinned = sched_getaffinity(0, sizeof previous_cpus, &previous_cpus) == 0;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  if (pinned) sched_setaffinity(0, sizeof one, &one);
  auto const marks = b.marks, switches = b.switches;
  // The calling thread goes on only when all bodies have returned.
  std::size_t running = bodies.size();
  std::vector<sync::thread> threads;
  threads.reserve(bodies.size());
  for (auto& body : bodies) {
    threads.emplace_back([&body, &running] {
      body();
      --running;
    });
  }
  sync::wait_for([&running] { return running == 0; }, "its threads to finish");
  for (auto& thread : threads) thread.join();
  if (pinned) sched_setaffinity(0, sizeof previous_cpus, &previous_cpus);
  return {b.marks - marks, b.switches - switches};
}

} // namespace

result run(std::uint64_t seed, std::vector<std::function<void()>> bodies, unsigned switch_one_in) {
  auto& b = sync::the_baton();
  b.seed = seed;
  b.switch_one_in = switch_one_in;
  b.random.seed(static_cast<std::uint32_t>(seed * 0x9e3779b97f4a7c15u >> 32));
  auto const done = run_all(bodies);
  b.switch_one_in = 1;
  return done;
}

result run(chooser choose, std::vector<std::function<void()>> bodies) {
  auto& b = sync::the_baton();
  b.choose = std::move(choose);
  auto const done = run_all(bodies);
  b.choose = nullptr;
  return done;
}

bool blocked() noexcept {
  auto& b = sync::the_baton();
  auto const seen = b.progress;
  auto& me = sync::this_participant();
  std::function<bool()> const ready = [&b, seen] { return b.progress != seen; };
  me.ready = &ready;
  me.waits_for = "the device";
  bool const others = sync::find_candidates();
  if (others) sync::pass(me);
  me.ready = nullptr;
  return others;
}

} // namespace gpumem::detail::schedule
