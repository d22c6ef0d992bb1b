// A unit of work as a resource sees it: what it holds, and in which order its requests are served.
// SPDX-License-Identifier: Apache-2.0
module;
#include <string>
#include <utility>
export module gpumem:holder;
import :std;
import :sync;

namespace gpumem::extend {

/// Holds memory of one resource, and may wait for more of it: the base of a scope's state. Of two holders of the same
/// priority the one made earlier is older; its requests go first. Any thread.
export class holder {
public:
  holder(holder const&) = delete;
  holder& operator=(holder const&) = delete;

  inline std::string const& name() const noexcept { return name_; }
  inline int priority() const noexcept { return priority_; }
  /// A number that grows with each holder, and with each request that has none.
  inline std::uint64_t age() const noexcept { return age_; }
  static std::uint64_t next_age() noexcept;

  /// Another holder counts what it holds as well. Before it is added to a list.
  inline bool is_nested() const noexcept { return nested_; }
  void set_nested() noexcept { nested_ = true; }

  /// Requested bytes that were granted to it and are not freed yet.
  inline std::size_t held() const noexcept { return held_.load(std::memory_order_relaxed); }

  /// Whether its work can be rolled back: a request of it that waits may then end with outcome::preempted.
  inline bool may_roll_back() const noexcept { return rollbacks_.load(std::memory_order_relaxed) > 0; }
  void allow_rollback() noexcept { rollbacks_.fetch_add(1, std::memory_order_relaxed); }
  void forbid_rollback() noexcept { rollbacks_.fetch_sub(1, std::memory_order_relaxed); }
  /// A request of it for `bytes` ends with outcome::preempted. Returns the bytes that it holds. Under the lock of its
  /// resource, as end_giving_way().
  std::size_t preempt(std::size_t bytes) noexcept {
    giving_ = held();
    need_.store(giving_ + bytes, std::memory_order_relaxed);
    return giving_;
  }
  /// Whether its work has yet to be rolled back.
  inline bool gives_way() const noexcept { return need_.load(std::memory_order_relaxed) > 0; }
  /// Returns what preempt() has returned.
  std::size_t end_giving_way() noexcept { return std::exchange(giving_, 0); }
  /// Returns what it needed when it gave way last, held or asked for, and 0 from then on.
  std::size_t take_need() noexcept { return need_.exchange(0, std::memory_order_relaxed); }

protected:
  /// Throws nothing; `name` is in reports.
  holder(std::string name, int priority) noexcept : name_{std::move(name)}, priority_{priority}, age_{next_age()} {}
  ~holder() = default;

  // Added after the resource counts the bytes as live, and taken off before it no longer does.
  void add(std::size_t bytes) noexcept { held_.fetch_add(bytes, std::memory_order_relaxed); }
  void remove(std::size_t bytes) noexcept { held_.fetch_sub(bytes, std::memory_order_relaxed); }

private:
  friend class holder_list;
  std::string const name_;
  int const priority_;
  std::uint64_t const age_;
  bool nested_ = false;
  std::atomic<std::size_t> held_{0};
  std::atomic<int> rollbacks_{0};
  std::atomic<std::size_t> need_{0};
  std::size_t giving_ = 0;
  unsigned marks_ = 0; // see holder_list
  holder* next_ = nullptr;
  holder* previous_ = nullptr;
};

/// The holders of a resource, with a lock of its own. Those that wait for something that is not memory are marked,
/// under the lock of the resource as well.
export class holder_list {
public:
  void add(holder& item) noexcept;
  void remove(holder& item) noexcept;
  /// Each `mark` needs one `unmark`. One that was added.
  void mark(holder& item) noexcept;
  void unmark(holder& item) noexcept;
  /// These two under the lock of the resource.
  static inline bool is_marked(holder const& item) noexcept { return item.marks_ > 0; }
  inline bool has_marked() const noexcept { return marked_ > 0; }
  template <class F> void visit(F f) {
    sync::spin_lock const held{mutex_};
    for (auto const* at = first_; at; at = at->next_) f(*at);
  }
  template <class F> void visit_marked(F f) {
    sync::spin_lock const held{mutex_};
    for (auto const* at = first_; at && is_marked(*at); at = at->next_) f(*at);
  }

private:
  void link_first(holder& item) noexcept;
  void link_last(holder& item) noexcept;
  void unlink(holder& item) noexcept;

  sync::spin_mutex mutex_;
  holder* first_ = nullptr; // the marked ones before all others
  holder* last_ = nullptr;
  std::size_t marked_ = 0;
};

} // namespace gpumem::extend
