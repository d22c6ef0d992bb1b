// limiting_adaptor: limits the bytes that are allocated through it, and lets requests wait for room.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <string>
export module gpumem:limiting_adaptor;
import :adaptor_base;
import :cuda;
import :deadlock_monitor;
import :error;
import :holder;
import :memory_watcher;
import :misuse;
import :process;
import :resource;
import :services;
import :shared_state;
import :std;
import :stream;
import :sync;
import :waiter;

namespace gpumem {

/// Options of a limiting_adaptor.
export struct limiting_options {
  std::size_t limit;           ///< most bytes of live blocks
  unsigned max_overtakes = 16; ///< how many later requests may get memory before a request that waits
};

namespace detail {

// Counts the bytes in use and parks the requests that wait for room: it keeps them in a queue. A request's bytes are in
// use from the moment at which the request goes to the upstream until the upstream refuses it or has freed its block.
// No lock is held during calls to the upstream.
class limiter : public shared_state, protected grant_hook, private waiting_place {
public:
  // The constructor and set_limit() throw std::invalid_argument if the limit is 0 or above PTRDIFF_MAX.
  explicit limiter(limiting_options const& options);
  void set_limit(std::size_t bytes);
  void close() noexcept;
  std::size_t limit() noexcept;
  std::size_t in_use() noexcept;

protected:
  ~limiter() override;

  // Handles the events of scopes over this adaptor, whose requests can wait here.
  void note_holder_event(holder& unit, holder_event event) noexcept;

  // Called for a request that does not wait here. If it may go to the upstream, counts its bytes as in use and returns
  // none. Otherwise returns the reason of the refusal. `queueing`: whether the request may overtake waiting requests.
  std::optional<outcome> enter(std::size_t bytes, queueing queueing) noexcept;
  // Must be called after the upstream has refused a request for which enter() returned none.
  void leave(std::size_t bytes) noexcept;
  // Must be called after the upstream has freed the bytes.
  void end_use(std::size_t bytes) noexcept;

  enum class waiting : std::uint8_t {
    parked,   // the request waits here; its waiter may already be destroyed by another thread
    answered, // waiter::complete() was called, or the request was stopped
    passed,   // the request goes to the upstream, where it can wait
    turn,     // requests cannot wait at the upstream: the caller tries the upstream once and then calls end_turn()
  };
  // The result of a turn. `since` is the count of frees (`frees_`) when the turn began.
  struct turn_result {
    waiting what;
    std::uint64_t since = 0;
  };
  // Returns whether the request neither waits here nor has passed this adaptor.
  bool is_new(waiter const& item) noexcept;
  // Returns whether the limit has room for the bytes now.
  bool has_room(std::size_t bytes) noexcept;
  // Returns whether the request is larger than the limit.
  bool exceeds_limit(waiter const& item) noexcept;
  turn_result begin_turn(waiter& item, bool upstream_waits) noexcept;
  turn_result end_turn(waiter& item, turn_result const& last, expected<void*, failure> result) noexcept;
  // Removes a parked request and returns true. Returns false if the request is not parked here. Returns false also if
  // the request has its turn, unless its waiter is being destroyed. Returns none if the request went to the upstream;
  // the caller must then withdraw it there.
  std::optional<bool> take_back(waiter& item) noexcept;
  // Runs when a request that went to the upstream ends without memory.
  void on_refusal(waiter& item) noexcept final;
  void on_grant(waiter const&, request_part const&) noexcept final { add_live(); }
  waiting_place* place() noexcept final { return this; }

  // Returns the upstream's statistics, changed to include the limit and the waiting requests of this adaptor.
  statistics amend(statistics statistics) noexcept;

private:
  void show(visitor& visitor) noexcept final;
  void end_wait(waiter& item, woken_waiters& waiters) noexcept final;
  void schedule_look() noexcept GPUMEM_REQUIRES(mutex_);

  // Calls that a thread makes after it has released the lock.
  struct later {
    woken_waiters woken;
    std::optional<expected<void*, failure>> answer; // the argument of waiter::complete(), if the request is answered
  };
  std::optional<outcome> refusal(std::size_t bytes) const noexcept GPUMEM_REQUIRES(mutex_);
  std::optional<outcome> refusal(waiter const& item) const noexcept GPUMEM_REQUIRES(mutex_);
  std::size_t size_of(waiter const& item) const noexcept GPUMEM_REQUIRES(mutex_);
  bool fits(std::size_t bytes, std::size_t own_bytes = 0) const noexcept GPUMEM_REQUIRES(mutex_);
  void wake_next(woken_waiters& waiters) noexcept GPUMEM_REQUIRES(mutex_);
  void wake_ended(woken_waiters& waiters) noexcept GPUMEM_REQUIRES(mutex_);
  void give_turn(waiter& item, woken_waiters& waiters) noexcept GPUMEM_REQUIRES(mutex_);
  turn_result begin(waiter& item, bool upstream_waits, later& calls) noexcept GPUMEM_REQUIRES(mutex_);
  turn_result go_on(waiter& item, turn_result const& last, expected<void*, failure> const& result,
                    later& calls) noexcept GPUMEM_REQUIRES(mutex_);
  turn_result wait_again(waiter& item, later& calls) noexcept GPUMEM_REQUIRES(mutex_);
  turn_result end(waiter& item, expected<void*, failure> const& result, later& calls) noexcept GPUMEM_REQUIRES(mutex_);

  sync::spin_mutex mutex_;
  waiter_list queue_ GPUMEM_GUARDED_BY(mutex_);
  std::size_t limit_ GPUMEM_GUARDED_BY(mutex_);
  std::size_t in_use_ GPUMEM_GUARDED_BY(mutex_) = 0;
  std::uint64_t frees_ GPUMEM_GUARDED_BY(mutex_) =
      1; // count of frees, beginning at 1; a refused request tries the upstream again once this has changed
  bool closed_ GPUMEM_GUARDED_BY(mutex_) = false;
};

template <class Upstream> class limiting_state final : public limiter {
public:
  static constexpr bool forwards_captures = upstream_access<Upstream>::forwards_captures;

  limiting_state(Upstream upstream, limiting_options const& options)
      : limiter{options}, upstream_{std::move(upstream)} {}

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
    if (auto const why = enter(bytes, key.context().queues())) return unexpected<failure>{failure{*why, 0, bytes}};
    auto const result = upstream_.try_allocate(key, bytes, alignment);
    if (result) {
      this->add_live();
    } else {
      leave(bytes);
    }
    return result;
  }

  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept {
    auto const refused = refused_calls;
    upstream_.deallocate(key, pointer, bytes, alignment);
    if (refused_calls != refused) return; // the block is still live
    end_use(bytes);
    this->drop_live(); // may destroy *this
  }

  // Parks the request, answers it, or passes it to the upstream. Adds this adaptor to the waiter's hooks: the objects
  // that are told when the request is granted or refused. If the host has no memory for that, returns false, and the
  // request ends as exhausted.
  bool admit(waiter& item) noexcept {
    if (!item.add_hook(*this)) return false;
    if (is_new(item) && upstream_.is_too_large(item)) {
      item.complete(unexpected<failure>{failure{outcome::too_large, 0, item.bytes()}});
      return false;
    }
    auto now = begin_turn(item, upstream_.can_wait());
    while (now.what == waiting::turn) now = end_turn(item, now, try_in_turn(item));
    if constexpr (requires { upstream_.admit(item); }) {
      if (now.what == waiting::passed) return upstream_.admit(item);
    }
    return now.what == waiting::parked;
  }

  bool cancel_waiter(waiter& item) noexcept {
    if (forked()) return false;
    if (auto const taken = take_back(item)) return *taken;
    if constexpr (requires { upstream_.cancel_waiter(item); }) {
      if (!upstream_.cancel_waiter(item)) return false;
      on_refusal(item);
      return true;
    }
    return false;
  }

  bool is_too_large(waiter& item) noexcept { return exceeds_limit(item) || upstream_.is_too_large(item); }

  void on_holder_event(holder& unit, holder_event event) noexcept {
    note_holder_event(unit, event);
    if constexpr (requires { upstream_.on_holder_event(unit, event); }) upstream_.on_holder_event(unit, event);
  }
  bool serves_stream(stream_key const& key) noexcept
    requires requires(upstream_access<Upstream>& upstream) { upstream.serves_stream(key); }
  {
    return upstream_.serves_stream(key);
  }
  inline auto where() noexcept { return upstream_.where(); }
  std::size_t trim(std::size_t keep)
    requires requires(upstream_access<Upstream>& upstream) { upstream.trim(keep); }
  {
    return upstream_.trim(keep);
  }
  bool set_label(void const* pointer, unsigned label) noexcept { return upstream_.set_label(pointer, label); }
  // Names only the holders if it is this limit that refuses the request: what the upstream lacks is another question.
  void append_holders(std::size_t bytes, std::string& text) {
    upstream_.append_holders(has_room(bytes) ? bytes : 0, text);
  }
  bool watch_memory(memory_watcher& watcher, bool begin) { return upstream_.watch_memory(watcher, begin); }
  statistics read_statistics() {
    std::optional<statistics> seen;
    if constexpr (requires { upstream_.read_statistics(); }) seen = upstream_.read_statistics();
    return amend(seen.value_or(statistics{}));
  }
  char const* resource_name() noexcept { return upstream_.resource_name(); }

  Upstream& upstream() noexcept { return upstream_.value(); }

private:
  // Requests all parts of a waiting request from the upstream. If a part fails, frees the parts that it got before.
  expected<void*, failure> try_in_turn(waiter& item) noexcept {
    return item.allocate_parts(
        [this, &item](request_part const& one) -> expected<void*, failure> {
          auto const key = key_of(item, one).queueing_as(queueing::admitted);
          if (auto const checked = checked_request(key, where(), one.bytes, one.alignment); !checked) return checked;
          return upstream_.try_allocate(key, one.bytes, one.alignment);
        },
        [this, &item](request_part const& one) {
          upstream_.deallocate(key_of(item, one), one.pointer, one.bytes, one.alignment);
        });
  }

  upstream_access<Upstream> upstream_;
};

} // namespace detail

/// Limits the bytes of the live blocks that were allocated through this adaptor to `limit`. Requested bytes count, not
/// rounded ones. A block counts until the host frees it, even if the device still uses it.
///
/// A request by `acquire` that does not fit under the limit waits here, in order of priority and then of arrival,
/// whether or not requests can wait at the upstream. A free sets bytes aside for the first request. That request then
/// tries the upstream, on the thread on which its executor resumes it. At most `max_overtakes` later, smaller requests
/// may overtake it. `allocate` and `try_allocate` do not wait here. Each of them either overtakes all waiting requests
/// or fails as `exhausted`; `max_overtakes` limits these overtakes as well. A request for more than the limit fails
/// immediately as `too_large`.
///
/// If the upstream is exhausted although the limit has room, a request by `acquire` waits. If requests can wait at the
/// upstream, as in a pool or another limiting_adaptor, the request waits there, and its bytes count here meanwhile.
/// Otherwise it waits here until a block of the adaptor is freed. If no block is left to free, it fails as `exhausted`.
/// Any other failure of the upstream ends the request.
///
/// An allocation and a free each take one short lock, besides the locks of the upstream. Waiting allocates no host
/// memory, unless the request waits through more than eight adaptors. Copies are handles to the same adaptor; see
/// adaptor_base. A handle must live until its requests have ended. Any thread.
export template <class Upstream>
class limiting_adaptor : public adaptor_base<limiting_adaptor<Upstream>, detail::limiting_state<Upstream>, Upstream> {
  using base = adaptor_base<limiting_adaptor, detail::limiting_state<Upstream>, Upstream>;

public:
  /// Throws std::bad_alloc, and std::invalid_argument if the limit is 0 or above PTRDIFF_MAX.
  limiting_adaptor(Upstream upstream, limiting_options options)
      : base{new detail::limiting_state<Upstream>{std::move(upstream), options}} {}

  /// Sets another limit, in bytes. Live blocks stay, even if they exceed it. Requests that wait here for more than the
  /// limit end with outcome::too_large. Throws std::invalid_argument if the limit is 0 or above PTRDIFF_MAX. Any
  /// thread.
  void set_limit(std::size_t bytes) { this->shared().set_limit(bytes); }
  /// Returns the limit, in bytes. Any thread.
  std::size_t limit() const { return this->shared().limit(); }

  /// Returns the bytes of live blocks plus those of requests that the upstream is serving now. Any thread.
  std::size_t in_use() const { return this->shared().in_use(); }

  /// Ends the requests that wait here, and refuses all later requests, with outcome::closed. Requests that wait at the
  /// upstream are not ended. Frees, `trim` and statistics still work. Any thread.
  void close() { this->shared().close(); }
};

} // namespace gpumem
