// Limits what is granted through a resource, and lets requests wait for their part of it.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:limiting_adaptor;
import :adaptor_base;
import :cuda;
import :error;
import :fork;
import :holder;
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
  std::size_t limit;           ///< bytes
  unsigned max_overtakes = 16; ///< how often later requests may get memory before one that waits
};

namespace detail {

// The bytes that are in use, and the requests that wait for some. Bytes are in use from the moment at which a request
// is let through to upstream until upstream refuses it or has taken them back. No lock is held in a call of upstream.
class limiter : public shared_state, protected grant_hook {
public:
  // Throws std::invalid_argument, as set_limit.
  explicit limiter(limiting_options const& options);
  void set_limit(std::size_t bytes);
  void close() noexcept;
  std::size_t limit() noexcept;
  std::size_t in_use() noexcept;

protected:
  ~limiter() override = default;

  // Lets a request through that does not wait, or says why not.
  std::optional<outcome> enter(std::size_t bytes, queueing how) noexcept;
  // Upstream has refused it.
  void leave(std::size_t bytes) noexcept;
  // Upstream has taken the bytes back.
  void end_use(std::size_t bytes) noexcept;

  enum class waiting : std::uint8_t {
    parked,   // it waits here, and may be gone
    answered, // by complete(), or it was stopped
    passed,   // it is let through to upstream, which may let it wait
    turn,     // the caller asks upstream, which cannot let it wait, and then calls end_turn
  };
  // `since`: what was known when the turn began.
  struct turn {
    waiting what;
    std::uint64_t since = 0;
  };
  turn begin_turn(waiter& item, bool upstream_waits) noexcept;
  turn end_turn(waiter& item, turn const& mine, expected<void*, failure> result) noexcept;
  // Whether it was parked here and is not any more; none if it is let through, and upstream's to withdraw.
  std::optional<bool> take_back(waiter& item) noexcept;
  // A request that was let through ends without memory.
  void on_refusal(waiter& item) noexcept final;
  void on_grant(stream_key const&, void*, std::size_t, std::size_t) noexcept final { add_live(); }

  // Upstream's statistics, with what is known here.
  statistics amend(statistics seen) noexcept;

private:
  std::optional<outcome> refusal(std::size_t bytes) const noexcept;
  bool fits(std::size_t bytes, std::size_t its_own = 0) const noexcept;
  void wake_next(woken_waiters& woken) noexcept;
  void wake_ended(woken_waiters& woken) noexcept;
  void give_turn(waiter& item, woken_waiters& woken) noexcept;
  turn wait_again(waiter& item, woken_waiters& woken, sync::spin_lock& held) noexcept;
  turn end(waiter& item, expected<void*, failure> result, woken_waiters& woken, sync::spin_lock& held) noexcept;

  sync::spin_mutex mutex_;
  waiter_list queue_;
  std::size_t limit_;
  std::size_t in_use_ = 0;
  std::uint64_t frees_ = 1; // what upstream refused before it may grant after one
  bool closed_ = false;
};

template <class Upstream> class limiting_state final : public limiter {
public:
  limiting_state(Upstream upstream, limiting_options const& options)
      : limiter{options}, upstream_{std::move(upstream)} {}

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
    if (auto const why = enter(bytes, key.queues())) return unexpected<failure>{failure{*why, 0, bytes}};
    auto const result = upstream_.try_allocate(key, bytes, alignment);
    if (result) {
      this->add_live();
    } else {
      leave(bytes);
    }
    return result;
  }

  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept {
    upstream_.deallocate(key, pointer, bytes, alignment);
    end_use(bytes);
    this->drop_live(); // the state may be gone now
  }

  // A request in a stack of more adaptors than a waiter has hooks for cannot wait.
  bool admit(waiter& item) noexcept {
    if (!item.add_hook(*this)) return false;
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

  void on_holder_event(holder& unit, holder_event what) noexcept
    requires requires(upstream_access<Upstream>& up) { up.on_holder_event(unit, what); }
  {
    upstream_.on_holder_event(unit, what);
  }
  inline auto where() noexcept { return upstream_.where(); }
  std::size_t trim(std::size_t keep)
    requires requires(upstream_access<Upstream>& up) { up.trim(keep); }
  {
    return upstream_.trim(keep);
  }
  statistics read_statistics() {
    if constexpr (requires { upstream_.read_statistics(); }) return amend(upstream_.read_statistics());
    return amend({});
  }

  Upstream& upstream() noexcept { return upstream_.value(); }

private:
  // The attempt for a request that has its turn.
  expected<void*, failure> try_in_turn(waiter& item) noexcept {
    return item.allocate_parts(
        [this](request_part const& one) -> expected<void*, failure> {
          auto const key = one.stream.queueing_as(queueing::admitted);
          if (auto const checked = checked_request(key, where(), one.bytes, one.alignment); !checked) return checked;
          return upstream_.try_allocate(key, one.bytes, one.alignment);
        },
        [this](request_part const& one) { upstream_.deallocate(one.stream, one.pointer, one.bytes, one.alignment); });
  }

  upstream_access<Upstream> upstream_;
};

} // namespace detail

/// Grants at most `limit` bytes of an upstream at a time, as requested, not rounded up. A block counts until the host
/// frees it, whatever the device still does with it.
///
/// A request by `acquire` for which the limit has no room waits, over any upstream: in order of priority and then of
/// arrival. A free sets bytes aside for the first request, which then asks upstream where its executor resumes it. A
/// later request for less may overtake it, at most `max_overtakes` times. `allocate` and `try_allocate` do not queue:
/// they overtake all that wait, which counts, or are `exhausted`. A request for more than the limit is `too_large` at
/// once.
///
/// If upstream is exhausted although the limit has room, a request that may wait does so: at upstream if that lets
/// requests wait, as a pool or another limiting_adaptor does, and its bytes are set aside here meanwhile. Otherwise it
/// waits here until something that was granted through the adaptor is freed. It is `exhausted` once nothing is left to
/// free. Any other failure of upstream ends the request.
///
/// An allocation and a free take one short lock each beside what upstream takes. A wait allocates nothing on the host.
/// A handle; see adaptor_base. A handle must live until its requests have ended. Any thread.
export template <mr::resource Upstream>
class limiting_adaptor : public adaptor_base<limiting_adaptor<Upstream>, detail::limiting_state<Upstream>, Upstream> {
  using base = adaptor_base<limiting_adaptor, detail::limiting_state<Upstream>, Upstream>;

public:
  /// Throws std::invalid_argument for a limit of 0 or beyond PTRDIFF_MAX, std::bad_alloc.
  limiting_adaptor(Upstream upstream, limiting_options options)
      : base{new detail::limiting_state<Upstream>{std::move(upstream), options}} {}

  /// Another limit, bytes. What is granted beyond it stays. Requests that wait here for more end with
  /// outcome::too_large. Throws as the constructor. Any thread.
  void set_limit(std::size_t bytes) { this->shared().set_limit(bytes); }
  std::size_t limit() const noexcept { return this->shared().limit(); }

  /// Bytes that are granted, or asked of upstream at the moment. Any thread.
  std::size_t in_use() const noexcept { return this->shared().in_use(); }

  /// From now on requests are refused with outcome::closed, and those that wait here are answered with it; those that
  /// wait at upstream are upstream's to answer. Frees, `trim` and statistics go on. Any thread.
  void close() noexcept { this->shared().close(); }
};

} // namespace gpumem
