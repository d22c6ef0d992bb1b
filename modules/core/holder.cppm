// Holders, their ages, and the resources in which they hold memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <string>
#include <utility>
export module gpumem:holder;
import :intrusive_list;
import :labels;
import :std;
import :stream;
import :sync;

namespace gpumem {

namespace detail {
export class deadlock_monitor;
export class waiting_place;
} // namespace detail

namespace extend {

/// A unit of work, such as that of a gpumem::scope. If two holders have the same priority, the requests of the one that
/// was made earlier go first. Any thread.
///
/// A holder is *nested* if its memory passes through the scope of another holder, its parent. It is a part of the
/// parent's work: it has the age of the parent, and while one of its requests waits, the parent waits too.
export class holder {
public:
  holder(holder const&) = delete;
  holder& operator=(holder const&) = delete;

  /// Returns the name that reports show.
  inline std::string const& name() const noexcept { return name_; }
  // Returns the number of the name, which is the label of the holder's blocks.
  inline std::uint32_t label() const noexcept { return label_.number(); }
  /// Returns the priority; requests of a higher one go first.
  inline int priority() const noexcept { return priority_; }
  /// Returns a number from a counter of all holders and all requests without a holder: a smaller number means older.
  inline std::uint64_t age() const noexcept { return age_; }
  /// Returns a larger number at each call; smaller ages go first.
  static std::uint64_t next_age() noexcept;

  /// Returns the parent; null if this holder is not nested.
  inline holder* parent() const noexcept { return parent_; }
  /// Makes `unit` the parent, unless there is one already. Called during holder_event::begins. The parent must live as
  /// long as this holder.
  void set_parent(holder& unit) noexcept;
  /// Returns whether this holder is `work` or nested in it.
  bool is_part_of(holder const& work) const noexcept;
  /// Returns the holder of the whole work: the last parent.
  holder const& whole() const noexcept;

  /// Returns the requested bytes that the holder was granted and has not freed yet, with those of nested holders.
  inline std::size_t held() const noexcept { return own_bytes_.load(std::memory_order_relaxed) + nested(); }
  /// Returns those bytes of held() that nested holders hold.
  inline std::size_t nested() const noexcept { return nested_.load(std::memory_order_relaxed); }

  /// Returns whether the holder's work can be rolled back: undone, so that it frees its memory, and begun again. If so,
  /// waiting requests of the holder and of those nested in it can be preempted: they end with outcome::preempted, in
  /// favour of older work.
  inline bool may_roll_back() const noexcept { return rollbacks_.load(std::memory_order_relaxed) > 0; }
  /// Allows rollback, until forbid_rollback() has taken back each allow_rollback().
  void allow_rollback() noexcept { rollbacks_.fetch_add(1, std::memory_order_relaxed); }
  /// Takes back one allow_rollback().
  void forbid_rollback() noexcept { rollbacks_.fetch_sub(1, std::memory_order_relaxed); }
  /// Returns the smallest work with this holder that can be rolled back: the holder, or a parent. Null if there is
  /// none.
  holder* rolls_back_with() noexcept;
  /// Notes that a request of the work for `bytes` ends with outcome::preempted. Called under the lock of the monitor.
  void preempt(std::size_t bytes) noexcept;
  /// Returns whether the work was preempted and has not been rolled back yet.
  inline bool gives_way() const noexcept { return need_.load(std::memory_order_relaxed) > 0; }
  /// Returns the holder itself or a parent, whichever gives way; null if none does.
  holder* gives_way_with() noexcept;
  /// Called after the rollback: returns the bytes that the holder held when it was preempted, plus those of its
  /// largest preempted request. Afterwards gives_way() returns false. Further calls return 0, until the next preempt().
  std::size_t take_need() noexcept { return need_.exchange(0, std::memory_order_relaxed); }

  /// Notes that the holder begins to wait for something other than memory. Each mark() needs one unmark().
  void mark() noexcept;
  /// Takes back one mark().
  void unmark() noexcept;
  /// Returns whether the holder waits for something other than memory.
  inline bool is_marked() const noexcept { return marks_.load(std::memory_order_relaxed) > 0; }
  /// Returns whether any holder of the process waits for something other than memory.
  static bool any_marked() noexcept;

  /// Called during holder_event::begins by a resource in which requests can wait: the memory of this holder lies there.
  void add_place(detail::waiting_place& place) noexcept;
  /// Called during holder_event::begins by a resource that sends each request to one of several others, its branches.
  /// Calls `f(number)` for each branch; `f` passes the event on to it. The holder then has a count of bytes for each
  /// branch, which the resource changes by count_at().
  template <class F> void begin_branches(void const* router, std::size_t count, F f) noexcept {
    auto* const outer = counted_;
    auto* const made = add_branches(router, count);
    for (std::size_t i = 0; made && i < count; ++i) {
      counted_ = &made[i];
      f(i);
    }
    counted_ = outer;
  }
  /// Adds to the bytes that the holder has in a branch. Does nothing if the branch was added after the holder began.
  /// `change` is added after the branch has allocated, and subtracted before it frees.
  void count_at(void const* router, std::size_t branch, std::ptrdiff_t change) noexcept;

protected:
  /// `name` appears in reports. Throws std::bad_alloc.
  holder(std::string name, int priority)
      : name_{std::move(name)}, label_{name_}, priority_{priority}, age_{next_age()} {}
  ~holder() = default;

  /// Adds to the bytes that the holder has. `key` is that of the call: it names the holder that counts the bytes as its
  /// own, and for all others they are bytes of a nested holder. A resource counts bytes as live before a holder does,
  /// and stops after it. So no resource has fewer live bytes than its holders count.
  void count_bytes(stream_key const& key, std::ptrdiff_t change) noexcept {
    (key.context().unit() == this ? own_bytes_ : nested_)
        .fetch_add(static_cast<std::size_t>(change), std::memory_order_relaxed);
  }

private:
  friend class detail::deadlock_monitor;
  friend class detail::intrusive_list<holder>;
  using counter = std::atomic<std::size_t>;
  struct place {
    detail::waiting_place* at;
    counter const* bytes;
    std::size_t coming = 0; // guarded by the lock of the deadlock_monitor; see note_coming()
  };
  struct branches {
    void const* router;
    std::size_t count;
    std::unique_ptr<counter[]> bytes;
  };
  counter* add_branches(void const* router, std::size_t count) noexcept;

  std::string const name_;
  detail::label_use const label_;
  int const priority_;
  std::uint64_t age_;
  holder* parent_ = nullptr;
  counter own_bytes_{0}, nested_{0};
  counter const* counted_ = &own_bytes_; // the bytes at the places that are added now
  std::vector<place> places_;            // written only during holder_event::begins
  std::vector<branches> branches_;       // written only during holder_event::begins
  bool incomplete_ = false;              // the host had no memory for all places
  std::atomic<int> rollbacks_{0}, marks_{0};
  std::atomic<std::size_t> need_{0};

  // Guarded by the lock of the deadlock_monitor.
  bool parked_ = false; // a request of the holder or of a nested one is parked
  detail::list_links<holder> links_;
};

} // namespace extend

} // namespace gpumem
