// The base classes of adaptors: adaptor_base, and observed_base, which tells an observer of each allocation and free.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
export module gpumem:adaptor_base;
import :aligned_services;
import :cuda;
import :device;
import :error;
import :holder;
import :memory_watcher;
import :misuse;
import :resource;
import :services;
import :shared_state;
import :std;
import :stream;
import :timeline_registry;
import :waiter;

namespace gpumem {

namespace detail {

// A gpumem resource whose state has a known type. The state is the object that all handles of the resource share. Calls
// to it need no table of function pointers.
template <class R>
concept transparent_resource = requires(R& r) {
  typename R::state_type;
  { r.services() } -> std::same_as<services_handle>;
} && resource_state<typename R::state_type>;

// Holds an upstream and calls it through its services table, a table of function pointers. The specialization below
// calls the state of a transparent_resource directly.
template <class Upstream> class upstream_access {
public:
  explicit upstream_access(Upstream upstream)
      : value_{std::move(upstream)}, calls_{services_of_upstream(value_)}, device_{device_of(calls_.get())} {}

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
    return calls_.try_allocate(key, bytes, alignment);
  }
  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept {
    calls_.deallocate(key, pointer, bytes, alignment);
  }
  inline std::optional<device> where() const noexcept { return device_; }
  // Says that a request on a stream that captures a graph goes to the upstream. If the upstream cannot serve it, the
  // upstream's try_allocate_keyed refuses it.
  static constexpr bool forwards_captures = true;

  // Returns whether requests can wait at the upstream: whether the table has a function for it. admit() lets a request
  // wait at the upstream; it must be called only if can_wait() returns true.
  inline bool can_wait() const noexcept { return table().admit != nullptr; }
  bool admit(waiter& item) noexcept { return table().admit(state(), &item); }
  bool cancel_waiter(waiter& item) noexcept { return table().cancel_waiter && table().cancel_waiter(state(), &item); }
  bool is_too_large(waiter& item) noexcept { return table().is_too_large && table().is_too_large(state(), &item); }
  void on_holder_event(holder& unit, holder_event event) noexcept {
    if (table().on_holder_event) table().on_holder_event(state(), &unit, event);
  }
  bool serves_stream(stream_key const& key) const noexcept { return detail::serves_stream(calls_.get(), key); }
  bool set_label(void const* pointer, unsigned label) noexcept {
    return table().set_label && table().set_label(state(), pointer, label);
  }
  void append_holders(std::size_t bytes, std::string& text) {
    if (table().append_holders) table().append_holders(state(), bytes, &text);
  }
  std::size_t trim(std::size_t keep) { return table().trim(state(), keep); }
  bool watch_memory(memory_watcher& watcher, bool begin) {
    return table().watch_memory && table().watch_memory(state(), &watcher, begin);
  }
  std::optional<statistics> read_statistics() { return statistics_from(calls_.get()); }
  char const* resource_name() noexcept { return name_of(calls_.get()); }

  Upstream& value() noexcept { return value_; }

private:
  inline services_table const& table() const noexcept { return *calls_.get().table; }
  inline void* state() const noexcept { return calls_.get().state; }

  Upstream value_;
  aligned_services calls_;
  std::optional<device> device_;
};

template <transparent_resource Upstream> class upstream_access<Upstream> {
  using state_type = Upstream::state_type;

public:
  explicit upstream_access(Upstream upstream)
      : value_{std::move(upstream)}, state_{static_cast<state_type*>(services_of_upstream(value_).state)} {}

  inline expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes,
                                               std::size_t alignment) noexcept {
    return allocate_keyed(*state_, key, bytes, alignment);
  }
  inline void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept {
    state_->deallocate(key, pointer, bytes, alignment);
  }
  inline auto where() const noexcept { return state_->where(); }
  static constexpr bool forwards_captures = serves_captures<state_type>;
  static constexpr bool can_wait() noexcept { return waiting_state<state_type>; }
  bool admit(waiter& item) noexcept
    requires waiting_state<state_type>
  {
    return state_->admit(item);
  }
  bool cancel_waiter(waiter& item) noexcept
    requires waiting_state<state_type>
  {
    return state_->cancel_waiter(item);
  }
  bool is_too_large(waiter& item) noexcept {
    if constexpr (requires { state_->is_too_large(item); }) return state_->is_too_large(item);
    return false;
  }
  void on_holder_event(holder& unit, holder_event event) noexcept
    requires holding_state<state_type>
  {
    state_->on_holder_event(unit, event);
  }
  bool serves_stream(stream_key const& key) const noexcept
    requires device_bound_state<state_type>
  {
    return state_->serves_stream(key);
  }
  bool set_label(void const* pointer, unsigned label) noexcept {
    if constexpr (requires { state_->set_label(pointer, label); }) return state_->set_label(pointer, label);
    return false;
  }
  void append_holders(std::size_t bytes, std::string& text) {
    if constexpr (requires { state_->append_holders(bytes, text); }) state_->append_holders(bytes, text);
  }
  std::size_t trim(std::size_t keep)
    requires trimmable_state<state_type>
  {
    return state_->trim(keep);
  }
  bool watch_memory(memory_watcher& watcher, bool begin) {
    if constexpr (requires { state_->watch_memory(watcher, begin); }) return state_->watch_memory(watcher, begin);
    return false;
  }
  auto read_statistics()
    requires reporting_state<state_type>
  {
    return state_->read_statistics();
  }
  char const* resource_name() noexcept { return name_of(*state_); }

  Upstream& value() noexcept { return value_; }

private:
  Upstream value_;
  state_type* state_;
};

// Returns whether requests can wait at the upstream. A type-erased upstream with services may hold one where they can.
template <class Upstream> consteval bool may_let_wait() {
  if constexpr (transparent_resource<Upstream>) {
    return waiting_state<typename Upstream::state_type>;
  } else {
    return mr::has_property<Upstream, services>;
  }
}

} // namespace detail

namespace extend {
/// Base of the states of adaptors. A state is the object that all handles of an adaptor share; it is deleted when the
/// last handle is gone and the last block is freed. This base allocates and frees at the upstream, counts live blocks,
/// and forwards waiting requests, holders, `trim`, statistics and the resource's name. `Derived` is the adaptor's own
/// class. It may have four noexcept functions, which any thread may call:
/// - `on_granted(stream_key const&, void* pointer, std::size_t bytes)`: the upstream has allocated the block of a
///   request, which may have waited;
/// - `on_free(stream_key const&, void* pointer, std::size_t bytes)`: the upstream is about to free. After the free
///   another thread can get the memory immediately;
/// - `on_failure(stream_key const&, std::size_t bytes)`: the upstream has refused an attempt. More attempts may
///   follow, if the request waits;
/// - `on_refused_free(stream_key const&, std::size_t bytes)`: the upstream has refused a free as misuse. The block is
///   still live, so this takes back what on_free() has counted.
///
/// A derived class that changes requests hides `try_allocate`, `deallocate` or `admit`, and calls those of this base.
export template <class Derived, class Upstream> class adaptor_state : public shared_state, protected grant_hook {
  using link = detail::upstream_access<Upstream>;

public:
  /// Whether requests on a capturing stream go to the upstream, which serves or refuses them.
  static constexpr bool forwards_captures = link::forwards_captures;

  /// If `long_lived` is false, construction and destruction are cheaper and calls are slower, because the threads then
  /// share the counters of live blocks.
  explicit adaptor_state(Upstream upstream, bool long_lived = true)
      : shared_state{long_lived}, upstream_{std::move(upstream)} {}

  /// Allocates at the upstream.
  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
    auto const result = upstream_.try_allocate(key, bytes, alignment);
    if (result) {
      grant(key, *result, bytes);
    } else {
      derived().on_failure(key, bytes);
    }
    return result;
  }

  /// Frees at the upstream. The state may be deleted when this returns.
  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept {
    derived().on_free(key, pointer, bytes);
    auto const refused = detail::refused_calls;
    upstream_.deallocate(key, pointer, bytes, alignment);
    if (detail::refused_calls != refused) [[unlikely]]
      return derived().on_refused_free(key, bytes);
    this->drop_live(); // may destroy *this
  }

  /// Returns the upstream's device, if it has one.
  inline auto where() noexcept { return upstream_.where(); }

  /// Lets a request wait at the upstream; on_granted() runs when the request gets memory there. Returns whether the
  /// request waits now. If requests cannot wait at the upstream, a request for memory ends as outcome::exhausted, and
  /// one that asks only for a turn is answered immediately. If the host has no memory, the request ends as exhausted.
  bool admit(waiter& item) noexcept
    requires requires(link& upstream) { upstream.admit(item); }
  {
    if (upstream_.can_wait()) return item.add_hook(*this) && upstream_.admit(item);
    if (item.asks_for_turn()) item.complete(nullptr);
    return false;
  }
  /// Withdraws a request that waits at the upstream. Returns false if it does not wait there any more.
  bool cancel_waiter(waiter& item) noexcept
    requires requires(link& upstream) { upstream.cancel_waiter(item); }
  {
    return upstream_.cancel_waiter(item);
  }
  /// Returns whether the upstream knows that it can never serve the request.
  bool is_too_large(waiter& item) noexcept { return upstream_.is_too_large(item); }
  /// Tells the upstream of a change of a holder.
  void on_holder_event(holder& unit, holder_event event) noexcept
    requires requires(link& upstream) { upstream.on_holder_event(unit, event); }
  {
    upstream_.on_holder_event(unit, event);
  }
  /// Returns whether work of the stream may use the upstream's memory.
  bool serves_stream(stream_key const& key) noexcept
    requires requires(link& upstream) { upstream.serves_stream(key); }
  {
    return upstream_.serves_stream(key);
  }
  /// Names a live block of the upstream, if the upstream names blocks.
  bool set_label(void const* pointer, unsigned label) noexcept { return upstream_.set_label(pointer, label); }
  /// Appends the holders of the upstream's memory, if the upstream knows them.
  void append_holders(std::size_t bytes, std::string& text) { upstream_.append_holders(bytes, text); }
  /// Trims the upstream.
  std::size_t trim(std::size_t keep)
    requires requires(link& upstream) { upstream.trim(keep); }
  {
    return upstream_.trim(keep);
  }
  /// Begins or ends to tell the watcher of the upstream's memory. Returns whether the upstream tells watchers.
  bool watch_memory(detail::memory_watcher& watcher, bool begin) { return upstream_.watch_memory(watcher, begin); }
  /// Returns the upstream's statistics.
  auto read_statistics()
    requires requires(link& upstream) { upstream.read_statistics(); }
  {
    return upstream_.read_statistics();
  }
  /// Returns the upstream's name for messages; null if it has none.
  char const* resource_name() noexcept { return upstream_.resource_name(); }

  Upstream& upstream() noexcept { return upstream_.value(); }

protected:
  void on_granted(stream_key const&, void*, std::size_t) noexcept {}
  void on_free(stream_key const&, void*, std::size_t) noexcept {}
  void on_failure(stream_key const&, std::size_t) noexcept {}
  void on_refused_free(stream_key const&, std::size_t) noexcept {}
  void on_grant(waiter const& item, request_part const& part) noexcept override {
    grant(key_of(item, part), part.pointer, part.bytes);
  }
  link& access() noexcept { return upstream_; }

private:
  void grant(stream_key const& key, void* pointer, std::size_t bytes) noexcept {
    this->add_live();
    derived().on_granted(key, pointer, bytes);
  }
  Derived& derived() noexcept { return static_cast<Derived&>(*this); }

  link upstream_;
};

/// Base of every adaptor: a handle of 8 bytes to a shared state that holds the upstream. Copies refer to the same
/// adaptor and compare equal. The adaptor lives until its last handle is gone and its last block is freed. Beyond
/// allocation and free it forwards all that the upstream supports: waiting, trim, statistics, record_use, find, and
/// frees without size. It has the accessibility properties of the upstream. Any thread may call its functions.
///
/// The upstream may be any resource: of gpumem, type-erased, or of another library. Some resources of other libraries
/// align to 256 bytes only. For a larger alignment, the adaptor requests `alignment` - 256 bytes more from such a
/// resource and returns an aligned pointer inside the block. Over a type-erased upstream, `statistics()` returns a
/// std::optional. The functions of a handle that was moved from throw std::invalid_argument, and so does the
/// construction of an adaptor over that handle.
///
/// `State` is a class that derives from adaptor_state. Any other resource_state will do that has `admit` and
/// `cancel_waiter`, if requests can wait at the upstream.
export template <class Self, class State, class Upstream>
class adaptor_base : public detail::forwarding_base<Self, State, Upstream> {
  using base = detail::forwarding_base<Self, State, Upstream>;

public:
  /// Whether memory is valid only in the order of the stream on which it was allocated, as the upstream says. If this
  /// is false, every stream can use the memory immediately after the allocation.
  static constexpr bool stream_ordered = detail::is_stream_ordered<Upstream>();

  /// Returns the upstream. A copy of it is another handle to the same resource.
  Upstream const& upstream() const { return state_->upstream(); }

  // Returns what holds for the memory of the upstream.
  static memory_traits traits_of(State& state) noexcept { return detail::traits_of_resource(state.upstream()); }

  using base::deallocate;
  /// Frees the block at `pointer`. The caller names no size: find() of the upstream returns it.
  void deallocate(stream_ref stream, void* pointer) noexcept
    requires requires(Upstream& upstream) { upstream.find(pointer)->bytes, upstream.deallocate(stream, pointer); }
  {
    if (!has_state()) return detail::report_moved_from(pointer, 0);
    auto const found = state_->upstream().find(pointer);
    if (found && found->live && found->base == pointer) {
      base::deallocate(stream, pointer, found->bytes);
    } else {
      state_->upstream().deallocate(stream, pointer); // the upstream reports the misuse
    }
  }

  /// Calls record_use() of the upstream.
  void record_use(void* pointer, stream_ref stream)
    requires requires(Upstream& upstream) { upstream.record_use(pointer, stream); }
  {
    state_->upstream().record_use(pointer, stream);
  }
  /// Calls find() of the upstream: returns its description of the block that holds the address.
  auto find(void const* pointer) const
    requires requires(Upstream const& up) { up.find(pointer); }
  {
    return upstream().find(pointer);
  }

  friend bool operator==(Self const& a, Self const& b) noexcept {
    adaptor_base const &left = a, &right = b;
    return left.state_ == right.state_;
  }

protected:
  explicit adaptor_base(State* state) noexcept : state_{state} {
    static_assert(
        waiting_state<State> || !detail::may_let_wait<Upstream>(),
        "gpumem: the adaptor loses waiting: derive its state from extend::adaptor_state, or write admit() and "
        "cancel_waiter()");
  }
  // Throws std::invalid_argument if this handle was moved from.
  State& shared() const { return *state_; }

private:
  friend base;
  bool has_state() const noexcept { return state_.get() != nullptr; }
  State& state() const noexcept { return *state_.get(); }
  state_ptr<State> state_;
};

} // namespace extend

} // namespace gpumem

namespace gpumem::detail {

// `Observer` has two functions that do not throw, granted() and freed(), with the same four parameters: the stream's
// handle; a bool, which is true if the host and not a stream allocates or frees; the pointer; and the bytes. granted()
// is called after the upstream has allocated, freed() before it frees.
template <class Upstream, class Observer>
class observed_state final : public adaptor_state<observed_state<Upstream, Observer>, Upstream> {
  using base = adaptor_state<observed_state, Upstream>;

public:
  // While this object lives, each call asks the driver whether the stream captures. So a capture that was begun on a
  // raw handle is seen also where the resource would ask nothing.
  observed_state(Upstream upstream, Observer observer) : base{std::move(upstream)}, observer_{std::move(observer)} {
    timeline_registry::instance().begin_asking();
  }
  ~observed_state() { timeline_registry::instance().end_asking(); }

private:
  friend class adaptor_state<observed_state, Upstream>;
  void on_granted(stream_key const& key, void* pointer, std::size_t bytes) noexcept {
    observer_.granted(handle_of(key), key.identity().is_host(), pointer, bytes);
  }
  void on_free(stream_key const& key, void* pointer, std::size_t bytes) noexcept {
    observer_.freed(handle_of(key), key.identity().is_host(), pointer, bytes);
  }

  // Returns the handle of the stream that the key names. If the key has no handle, the stream may have been destroyed:
  // returns the handle that it had last.
  static CUstream handle_of(stream_key const& key) noexcept {
    return key.identity().has_handle() ? key.identity().handle() : key.identity().timeline().handle();
  }

  Observer observer_;
};

/// The base class of an adaptor `Self` that tells `Observer` of each allocation and free.
export template <class Self, class Upstream, class Observer>
class observed_base : public adaptor_base<Self, observed_state<Upstream, Observer>, Upstream> {
  using base = adaptor_base<Self, observed_state<Upstream, Observer>, Upstream>;

protected:
  observed_base(Upstream upstream, Observer observer)
      : base{new observed_state<Upstream, Observer>{std::move(upstream), std::move(observer)}} {}
};

// A header cannot import this module, but it can name observed_base as the return type of this function.
// Argument-dependent lookup finds the function in a namespace of the upstream's base classes. The function is only
// declared.
export template <class Self, class Upstream, class Observer>
observed_base<Self, Upstream, Observer> observed_base_of(std::type_identity<Self>, Upstream const&, Observer const&);

} // namespace gpumem::detail
