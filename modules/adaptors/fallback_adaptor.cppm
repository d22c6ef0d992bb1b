// fallback_adaptor: gets memory from a second resource when the first has none.
// SPDX-License-Identifier: Apache-2.0
module;
#include <string>
#include <utility>
export module gpumem:fallback_adaptor;
import :adaptor_base;
import :cuda;
import :device;
import :error;
import :holder;
import :memory_watcher;
import :misuse;
import :pointer_set;
import :process;
import :resource;
import :services;
import :shared_state;
import :std;
import :stream;
import :waiter;

namespace gpumem {

namespace detail {

// Returns the device to which the two upstreams belong; none if neither belongs to a device. Throws
// std::invalid_argument if they belong to different devices.
std::optional<device> common_device(std::optional<device> first, std::optional<device> second);
// Returns what holds for the memory of both upstreams. Throws std::invalid_argument if the host or devices can access
// the memory of the first and not that of the second.
memory_traits common_traits(memory_traits first, memory_traits second);
// Returns the statistics of both resources as one.
statistics sum_of(statistics first, statistics const& second) noexcept;
// Throws std::invalid_argument, because a block came from the second resource, which has no record_use().
[[noreturn]] void refuse_use_of_fallback();

template <class First, class Second> class fallback_state final : public shared_state, private grant_hook {
public:
  static constexpr bool forwards_captures =
      upstream_access<First>::forwards_captures && upstream_access<Second>::forwards_captures;

  fallback_state(First first, Second second)
      : first_{std::move(first)}, second_{std::move(second)}, device_{common_device(first_.where(), second_.where())},
        traits_{common_traits(traits_of_resource(first_.value()), traits_of_resource(second_.value()))} {}

  // Tries both resources without waiting on the host. If both fail and the caller may wait, waits at the first
  // resource, or at the second if the request is too large for the first. The last attempt counts as the failure,
  // unless the request may wait in the line of the first.
  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
    auto const now = key.with_waiting(false);
    auto const result = first_.try_allocate(now.as_trial(), bytes, alignment);
    if (result) return counted(result, key, bytes, first_branch);
    auto const why = result.error().reason;
    if (why != outcome::exhausted && why != outcome::too_large) return result;
    bool const last =
        !key.context().may_wait() && (why == outcome::too_large || key.context().queues() != queueing::behind);
    auto const other = allocate_in_second(last ? now : now.as_trial(), bytes, alignment);
    if (other) return other;
    if (why == outcome::too_large) return key.context().may_wait() ? allocate_in_second(key, bytes, alignment) : other;
    return key.context().may_wait() ? counted(first_.try_allocate(key, bytes, alignment), key, bytes, first_branch)
                                    : result;
  }

  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept {
    auto const refused = refused_calls;
    auto in_second = in_second_.take(pointer);
    auto const from = in_second ? second_branch : first_branch;
    count_bytes(key, from, -static_cast<std::ptrdiff_t>(bytes));
    if (in_second) {
      second_.deallocate(key, pointer, bytes, alignment);
    } else {
      first_.deallocate(key, pointer, bytes, alignment);
    }
    if (refused_calls == refused) return drop_live(); // may destroy *this
    count_bytes(key, from, static_cast<std::ptrdiff_t>(bytes));
    in_second_.put_back(std::move(in_second));
  }

  std::optional<device> where() const noexcept { return device_; }

  bool admit(waiter& item) noexcept
    requires requires(upstream_access<First>& upstream) { upstream.admit(item); }
  {
    if (first_.can_wait()) return item.add_hook(*this) && first_.admit(item);
    if (item.asks_for_turn()) item.complete(nullptr);
    return false;
  }
  bool is_too_large(waiter& item) noexcept { return first_.is_too_large(item) && second_.is_too_large(item); }
  bool cancel_waiter(waiter& item) noexcept
    requires requires(upstream_access<First>& upstream) { upstream.cancel_waiter(item); }
  {
    return !forked() && first_.cancel_waiter(item);
  }
  // A holder counts its bytes in each of the two resources, so that each knows whose memory it is.
  void on_holder_event(holder& unit, holder_event event) noexcept {
    if (event == holder_event::begins)
      return unit.begin_branches(this, 2, [&](std::size_t i) { tell(i, unit, event); });
    tell(first_branch, unit, event);
    tell(second_branch, unit, event);
  }
  // Returns true if one of the resources serves the stream, since a block can come from either.
  bool serves_stream(stream_key const& key) noexcept {
    bool first = true, second = true;
    if constexpr (requires { first_.serves_stream(key); }) first = first_.serves_stream(key);
    if constexpr (requires { second_.serves_stream(key); }) second = second_.serves_stream(key);
    return first || second;
  }

  std::size_t trim(std::size_t keep) {
    std::size_t given = 0;
    if constexpr (requires { first_.trim(keep); }) given += first_.trim(keep);
    if constexpr (requires { second_.trim(keep); }) given += second_.trim(keep);
    return given;
  }
  bool set_label(void const* pointer, unsigned label) noexcept {
    return in_second_.contains(pointer) ? second_.set_label(pointer, label) : first_.set_label(pointer, label);
  }
  void append_holders(std::size_t bytes, std::string& text) {
    first_.append_holders(bytes, text);
    second_.append_holders(bytes, text);
  }
  // Tells a watcher of all memory or of none: blocks of a resource that does not tell would lie outside the memory.
  bool watch_memory(memory_watcher& watcher, bool begin) {
    bool told = first_.watch_memory(watcher, begin);
    try {
      told = second_.watch_memory(watcher, begin) && told;
    } catch (...) {
      if (begin) first_.watch_memory(watcher, false);
      throw;
    }
    if (begin && !told) watch_memory(watcher, false);
    return told;
  }
  // Returns the sums of both resources' statistics. If the types of the resources do not tell that both keep
  // statistics, returns a std::optional, which is empty if one of them keeps none.
  auto read_statistics()
    requires requires(upstream_access<First>& first, upstream_access<Second>& second) {
      first.read_statistics();
      second.read_statistics();
    }
  {
    auto const first = first_.read_statistics();
    auto const second = second_.read_statistics();
    if constexpr (std::same_as<decltype(first), statistics const> && std::same_as<decltype(second), statistics const>) {
      return sum_of(first, second);
    } else {
      std::optional<statistics> one{first}, other{second}, sum;
      if (one && other) sum = sum_of(*one, *other);
      return sum;
    }
  }
  char const* resource_name() noexcept { return first_.resource_name(); }

  void record_use(void* pointer, stream_ref stream) {
    if (forked()) return;
    if (!in_second_.contains(pointer)) return first_.value().record_use(pointer, stream);
    if constexpr (requires { second_.value().record_use(pointer, stream); }) {
      second_.value().record_use(pointer, stream);
    } else {
      refuse_use_of_fallback();
    }
  }

  First& first() noexcept { return first_.value(); }
  Second& second() noexcept { return second_.value(); }
  memory_traits traits() const noexcept { return traits_; }
  std::uint64_t fallbacks() const noexcept { return fallbacks_.load(std::memory_order_relaxed); }

private:
  static constexpr std::size_t first_branch = 0, second_branch = 1;

  void on_grant(waiter const& item, request_part const& part) noexcept override {
    static_cast<void>(counted(part.pointer, key_of(item, part), part.bytes, first_branch));
  }
  void tell(std::size_t branch, holder& unit, holder_event event) noexcept {
    if constexpr (requires { first_.on_holder_event(unit, event); }) {
      if (branch == first_branch) first_.on_holder_event(unit, event);
    }
    if constexpr (requires { second_.on_holder_event(unit, event); }) {
      if (branch == second_branch) second_.on_holder_event(unit, event);
    }
  }
  // Changes the bytes that the holder of the call has in one of the resources.
  void count_bytes(stream_key const& key, std::size_t branch, std::ptrdiff_t change) noexcept {
    if (auto* const unit = key.context().unit()) unit->count_at(this, branch, change);
  }
  expected<void*, failure> counted(expected<void*, failure> const& result, stream_key const& key, std::size_t bytes,
                                   std::size_t branch) noexcept {
    if (!result) return result;
    count_bytes(key, branch, static_cast<std::ptrdiff_t>(bytes));
    add_live();
    return result;
  }
  expected<void*, failure> allocate_in_second(stream_key const& key, std::size_t bytes,
                                              std::size_t alignment) noexcept {
    auto const result = second_.try_allocate(key, bytes, alignment);
    if (!result) return result;
    if (!in_second_.insert(*result)) {
      second_.deallocate(key, *result, bytes, alignment);
      return unexpected<failure>{failure{outcome::exhausted, 0, bytes}};
    }
    fallbacks_.fetch_add(1, std::memory_order_relaxed);
    return counted(result, key, bytes, second_branch);
  }

  upstream_access<First> first_;
  upstream_access<Second> second_;
  std::optional<device> const device_;
  memory_traits const traits_;
  pointer_set in_second_;
  std::atomic<std::uint64_t> fallbacks_{0};
};

} // namespace detail

/// Gets a block from the second resource when the first refuses the request as `exhausted` or `too_large`. For
/// instance, the first is a pool with a limit, and the second has managed or pinned memory. A block goes back to the
/// resource that it came from. While no block of the second resource is live, a free costs one atomic load more than at
/// the first resource.
///
/// If both resources refuse an `acquire`, it waits at the first. If both refuse an `allocate`, the first decides: the
/// call waits on the host for memory of the first, or fails with the failure of the first. If the request is too large
/// for the first, the second decides in the same way. `trim` trims both. If both resources keep statistics,
/// `statistics()` returns the sums. The sums have a limit only if both resources have one.
///
/// Copies are handles to the same adaptor. The adaptor lives until its last handle is gone and its last block is freed.
/// Any thread.
export template <class First, class Second>
  requires(!mr::resource<First> || !mr::resource<Second>) ||
          ((mr::has_property<Second, mr::device_accessible> || !mr::has_property<First, mr::device_accessible>) &&
           (mr::has_property<Second, mr::host_accessible> || !mr::has_property<First, mr::host_accessible>))
class fallback_adaptor
    : public detail::forwarding_base<fallback_adaptor<First, Second>, detail::fallback_state<First, Second>, First> {
  using state_of = detail::fallback_state<First, Second>;
  using base = detail::forwarding_base<fallback_adaptor, state_of, First>;

public:
  static_assert(detail::checked_upstream<Second>::is_resource); // fails with a message if Second is no resource
  /// Whether memory is valid only in the order of the stream on which it was allocated. True if this holds for one of
  /// the resources.
  static constexpr bool stream_ordered = detail::is_stream_ordered<First>() || detail::is_stream_ordered<Second>();

  /// Throws std::invalid_argument if the resources belong to different devices, and std::bad_alloc. Throws
  /// std::invalid_argument also if the host or devices can access the memory of the first and not that of the second.
  /// The compiler refuses that already if the types of the resources tell it.
  fallback_adaptor(First first, Second second) : state_{new state_of{std::move(first), std::move(second)}} {}

  /// Returns the first resource.
  First const& upstream() const { return state_->first(); }
  /// Returns the second resource.
  Second const& fallback() const { return state_->second(); }
  // Returns what holds for the memory of both resources.
  static extend::memory_traits traits_of(state_of& state) noexcept { return state.traits(); }

  /// Returns how many blocks the second resource has given. Any thread.
  std::uint64_t fallbacks() const { return state_->fallbacks(); }

  /// Declares that the block is used on this stream, by work that is enqueued already: the block is not reused before
  /// that work has run. Throws std::invalid_argument if the block came from the second resource and that resource has
  /// no record_use(). See pool_resource::record_use.
  void record_use(void* pointer, stream_ref stream)
    requires requires(First& upstream) { upstream.record_use(pointer, stream); }
  {
    if (pointer) state_->record_use(pointer, stream);
  }

  friend bool operator==(fallback_adaptor const& a, fallback_adaptor const& b) noexcept { return a.state_ == b.state_; }

private:
  friend base;
  bool has_state() const noexcept { return state_.get() != nullptr; }
  state_of& state() const noexcept { return *state_.get(); }
  state_ptr<state_of> state_;
};

} // namespace gpumem
