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

/// A unit of work that holds memory of one resource and may wait for more: the base of a scope's state. If two holders
/// have the same priority, the one made earlier is older and its requests go first. Any thread.
export class holder {
public:
  holder(holder const&) = delete;
  holder& operator=(holder const&) = delete;

  /// Returns the name that reports show.
  inline std::string const& name() const noexcept { return name_; }
  /// Returns the priority; requests of a higher one go first.
  inline int priority() const noexcept { return priority_; }
  /// Returns a number from one counter for all holders and all requests without a holder: a smaller one is older.
  inline std::uint64_t age() const noexcept { return age_; }
  /// Returns the next number of that counter.
  static std::uint64_t next_age() noexcept;

  /// Whether another holder also counts the bytes that this one holds. Set before the holder is added to a list.
  inline bool is_nested() const noexcept { return nested_; }
  /// Notes that another holder counts the bytes too.
  void set_nested() noexcept { nested_ = true; }

  /// Returns the requested bytes that were granted to it and are not freed yet.
  inline std::size_t held() const noexcept { return held_.load(std::memory_order_relaxed); }

  /// Whether its work can be rolled back: its waiting requests may then end with outcome::preempted.
  inline bool may_roll_back() const noexcept { return rollbacks_.load(std::memory_order_relaxed) > 0; }
  /// Allows rollback until forbid_rollback() was called as often.
  void allow_rollback() noexcept { rollbacks_.fetch_add(1, std::memory_order_relaxed); }
  /// Takes back one allow_rollback().
  void forbid_rollback() noexcept { rollbacks_.fetch_sub(1, std::memory_order_relaxed); }
  /// Notes that its request for `bytes` ends with outcome::preempted. Returns the bytes that it holds. Called under the
  /// lock of its resource, as is end_giving_way().
  std::size_t preempt(std::size_t bytes) noexcept {
    giving_ = held();
    need_.store(giving_ + bytes, std::memory_order_relaxed);
    return giving_;
  }
  /// Whether it was preempted and its work has not been rolled back yet.
  inline bool gives_way() const noexcept { return need_.load(std::memory_order_relaxed) > 0; }
  /// Returns the result of the last preempt(), and 0 from then on.
  std::size_t end_giving_way() noexcept { return std::exchange(giving_, 0); }
  /// Returns the bytes that it held plus the bytes that it asked for at the last preempt(), and 0 from then on.
  std::size_t take_need() noexcept { return need_.exchange(0, std::memory_order_relaxed); }

protected:
  /// `name` appears in reports.
  holder(std::string name, int priority) noexcept : name_{std::move(name)}, priority_{priority}, age_{next_age()} {}
  ~holder() = default;

  // Bytes are added after the resource counts them as live, and removed before it stops counting them: held() never
  // exceeds the live bytes.
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
  unsigned marks_ = 0; // see holder_list
  detail::list_links<holder> links_;
};

/// The holders of a resource, guarded by a lock of its own. Holders that wait for something other than memory are
/// marked; mark() and unmark() need the lock of the resource as well.
export class holder_list {
public:
  /// Adds a holder, without a mark.
  void add(holder& item) noexcept;
  /// Removes a holder of the list.
  void remove(holder& item) noexcept;
  /// The holder must be in the list. Each mark() needs one unmark().
  void mark(holder& item) noexcept;
  /// Takes back one mark().
  void unmark(holder& item) noexcept;
  /// Whether the holder is marked. Called under the lock of the resource.
  static inline bool is_marked(holder const& item) noexcept { return item.marks_ > 0; }
  /// Whether a holder is marked. Called under the lock of the resource.
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
  std::size_t marked_ = 0; // the lock of the resource is enough to read it
};

} // namespace gpumem::extend
