// Holders: units of work that hold memory of a resource, and the order in which their requests are served.
// SPDX-License-Identifier: Apache-2.0
module;
#include <string>
#include <utility>
export module gpumem:holder;
import :intrusive_list;
import :std;
import :sync;

namespace gpumem::extend {

/// A unit of work that holds memory of one resource and may wait for more, such as the work of a gpumem::scope. If two
/// holders have the same priority, the requests of the one that was made earlier go first. Any thread.
export class holder {
public:
  holder(holder const&) = delete;
  holder& operator=(holder const&) = delete;

  /// Returns the name that reports show.
  inline std::string const& name() const noexcept { return name_; }
  /// Returns the priority; requests of a higher one go first.
  inline int priority() const noexcept { return priority_; }
  /// Returns a number from a counter of all holders and all requests without a holder: a smaller number means older.
  inline std::uint64_t age() const noexcept { return age_; }
  /// Returns the next number of the counter of ages.
  static std::uint64_t next_age() noexcept;

  /// Returns whether another holder also counts the bytes that this holder holds.
  inline bool is_nested() const noexcept { return nested_; }
  /// Sets that another holder also counts the bytes. Called before this holder is added to a list.
  void set_nested() noexcept { nested_ = true; }

  /// Returns the requested bytes that the holder was granted and has not freed yet.
  inline std::size_t held() const noexcept { return held_.load(std::memory_order_relaxed); }

  /// Returns whether the holder's work can be rolled back: undone, so that it frees its memory, and begun again. If so,
  /// a waiting request of the holder can be preempted: it ends with outcome::preempted, in favour of older work.
  inline bool may_roll_back() const noexcept { return rollbacks_.load(std::memory_order_relaxed) > 0; }
  /// Allows rollback, until forbid_rollback() has taken back each allow_rollback().
  void allow_rollback() noexcept { rollbacks_.fetch_add(1, std::memory_order_relaxed); }
  /// Takes back one allow_rollback().
  void forbid_rollback() noexcept { rollbacks_.fetch_sub(1, std::memory_order_relaxed); }
  /// Notes that a request of the holder for `bytes` ends with outcome::preempted. Returns the bytes that the holder
  /// holds. This function and end_giving_way() are called under the lock of the holder's resource.
  std::size_t preempt(std::size_t bytes) noexcept {
    giving_ = held();
    need_.store(giving_ + bytes, std::memory_order_relaxed);
    return giving_;
  }
  /// Returns whether the holder was preempted and its work has not been rolled back yet.
  inline bool gives_way() const noexcept { return need_.load(std::memory_order_relaxed) > 0; }
  /// Called after the rollback: returns the bytes that the last preempt() returned. Further calls return 0, until the
  /// next preempt().
  std::size_t end_giving_way() noexcept { return std::exchange(giving_, 0); }
  /// Returns the bytes that the holder held at the last preempt(), plus those for which the preempted request asked.
  /// Afterwards gives_way() returns false. Further calls return 0, until the next preempt().
  std::size_t take_need() noexcept { return need_.exchange(0, std::memory_order_relaxed); }

protected:
  /// `name` appears in reports.
  holder(std::string name, int priority) noexcept : name_{std::move(name)}, priority_{priority}, age_{next_age()} {}
  ~holder() = default;

  // The resource counts bytes as live before add() counts them, and stops counting them only after remove(). So held()
  // never exceeds the live bytes.
  void add(std::size_t bytes) noexcept { held_.fetch_add(bytes, std::memory_order_relaxed); }
  void remove(std::size_t bytes) noexcept { held_.fetch_sub(bytes, std::memory_order_relaxed); }

private:
  friend class holder_list;
  friend class detail::intrusive_list<holder>;
  std::string const name_;
  int const priority_;
  std::uint64_t const age_;
  bool nested_ = false;
  std::atomic<std::size_t> held_{0};
  std::atomic<int> rollbacks_{0};
  std::atomic<std::size_t> need_{0};
  std::size_t giving_ = 0;
  unsigned marks_ = 0; // mark() calls that were not taken back; see holder_list
  detail::list_links<holder> links_;
};

/// The holders of a resource, guarded by the list's own lock. A holder that waits for something other than memory is
/// marked. The caller of mark() and unmark() holds the lock of the resource.
export class holder_list {
public:
  /// Adds a holder, without a mark.
  void add(holder& item) noexcept;
  /// Removes a holder, which must be in the list.
  void remove(holder& item) noexcept;
  /// Marks a holder, which must be in the list. Each mark() needs one unmark().
  void mark(holder& item) noexcept;
  /// Takes back one mark().
  void unmark(holder& item) noexcept;
  /// Returns whether the holder is marked. Called under the lock of the resource.
  static inline bool is_marked(holder const& item) noexcept { return item.marks_ > 0; }
  /// Returns whether the list has a marked holder. Called under the lock of the resource.
  inline bool has_marked() const noexcept { return marked_ > 0; }
  /// Calls `f(holder)` for each holder, under the lock of the list.
  template <class F> void visit(F f) {
    sync::spin_lock const held{mutex_};
    for (auto const* at = items_.first(); at; at = at->links_.next) f(*at);
  }
  /// Calls `f(holder)` for each marked holder, under the lock of the list.
  template <class F> void visit_marked(F f) {
    sync::spin_lock const held{mutex_};
    for (auto const* at = items_.first(); at && is_marked(*at); at = at->links_.next) f(*at);
  }

private:
  sync::spin_mutex mutex_;
  // Marked holders come before all others.
  detail::intrusive_list<holder> items_ __attribute__((guarded_by(mutex_)));
  std::size_t marked_ = 0; // written under both locks, so the lock of the resource is enough to read it
};

} // namespace gpumem::extend
