// The base of resources, and that of resources that get their memory from an upstream.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/accessibility.hpp>
export module gpumem:resource;
import :acquire;
import :cuda;
import :device;
import :driver;
import :error;
import :misuse;
import :services;
import :std;
import :stream;
import :suspension;

namespace gpumem {

namespace detail {

// Returns false while the process exits, and in a forked child (see `driver_alive`): frees then do nothing.
inline bool may_free() noexcept { return driver_alive(); }
// Reports a free on a stream that could not be identified. `resource` is the resource's name, or null.
void report_bad_stream(char const* resource, void* pointer, failure const& failure) noexcept;

// Frees a block of the state in the order of the stream. The caller does not know the block's size.
template <class State> void deallocate_unsized(State& state, stream_ref stream, void* pointer) noexcept {
  if (!pointer || !may_free()) return;
  if (auto const key = identify_for_free(stream, state.where(), 0)) {
    state.deallocate(*key, pointer);
  } else if (key.error().reason == outcome::device_lost) {
    state.deallocate(stream_key::host(), pointer);
  } else {
    report_bad_stream(state.resource_name(), pointer, key.error());
  }
}

// Gives `Self` one of CCCL's properties. CCCL finds get_property() by argument-dependent lookup.
template <class Self, class Property> struct property_of {
  friend constexpr void get_property(Self const&, Property) noexcept {}
};
template <class Self> struct services_property {
  friend services_handle get_property(Self const& self, services) noexcept { return self.services(); }
  // CCCL's own function would answer by the type of `Self`, which does not know what an erased upstream holds.
  friend accessibility get_property(Self const& self, mr::dynamic_accessibility_property) noexcept {
    auto const traits = traits_of_services(self.services());
    return accessibility_of(traits.device_accessible, traits.host_accessible);
  }
};

} // namespace detail

namespace extend {
/// Base of every gpumem resource. `State` is a resource_state: it has the functions try_allocate(), deallocate() and
/// where(). `Self`, the resource, has operator== and `State& state() const noexcept`. A `Self` that has no state after
/// a move also has `bool has_state() const noexcept`. The base adds the functions that CCCL's concept of a resource
/// asks for, functions that do not throw, and the awaitables. It also adds the properties and the services (a table of
/// functions by which blocks and awaitables use the state).
///
/// For all functions: 0 bytes give nullptr, and freeing nullptr does nothing. The alignment can be any power of two.
/// Any stream, any thread.
export template <class Self, class State, class... Properties>
class resource_base : public mr::memory_resource_base<Self>,
                      public detail::services_property<Self>,
                      public detail::property_of<Self, Properties>... {
public:
  /// The properties of the resource, where CCCL looks for them.
  using default_queries = mr::properties_list<Properties...>;
  /// The type of the state, which adaptors call directly.
  using state_type = State;
  /// The alignment in bytes if the caller passes none.
  static constexpr std::size_t default_alignment = 256;

  /// Returns false after a move from this object, unless `Self` has no has_state(): such a resource is always valid. If
  /// this returns false, functions throw std::invalid_argument, try_allocate fails with outcome::invalid_argument, and
  /// a free is a misuse.
  bool valid() const noexcept {
    if constexpr (requires(Self const& s) { s.has_state(); }) return static_cast<Self const&>(*this).has_state();
    return true;
  }

  /// Returns memory that work enqueued on the stream from now on may use. Before it fails, a pool at its limit waits on
  /// the host, at most one second, for freed memory that work on streams still uses. Throws the exception that belongs
  /// to the failure; see `throw_failure`.
  [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment = default_alignment) {
    if (!valid()) [[unlikely]]
      detail::throw_moved_from("allocate");
    auto const result = detail::allocate_outermost(state(), stream, bytes, alignment, detail::waiting_on_host);
    if (!result) detail::throw_failure_of(services(), stream.get(), result.error());
    return *result;
  }

  /// Does what allocate() does, but returns the failure instead of throwing it, and does not wait. Force-inlined, as
  /// deallocate() is. Without that, calling these functions took 7 % of the time of recorded traces in which a thread
  /// cache serves the requests.
  [[nodiscard, gnu::always_inline]] inline expected<void*, failure>
  try_allocate(stream_ref stream, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
    if (!valid()) [[unlikely]]
      return unexpected<failure>{detail::failure_of(broken_rule::moved_from, bytes)};
    return detail::allocate_outermost(state(), stream, bytes, alignment, detail::as_it_is);
  }

  /// Frees in the order of the stream: work that was enqueued on it earlier may still use the memory. An error of the
  /// caller is reported to the misuse handler.
  [[gnu::always_inline]] inline void deallocate(stream_ref stream, void* pointer, std::size_t bytes,
                                                std::size_t alignment = default_alignment) noexcept {
    if (!pointer || !detail::may_free()) [[unlikely]]
      return;
    if (!valid()) [[unlikely]]
      return detail::report_moved_from(pointer, bytes);
    auto* const timeline = detail::find_owned_timeline(stream.get());
    if (!timeline) return deallocate_foreign(stream, pointer, bytes, alignment);
    state().deallocate(stream_key::of(*timeline, stream.get()), pointer, bytes, alignment);
  }

  /// Returns memory that any stream may use immediately. The host may do so too, if it can access the memory. Throws
  /// the exception that belongs to the failure; see `throw_failure`.
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
    if (!valid()) [[unlikely]]
      detail::throw_moved_from("allocate_sync");
    if (bytes == 0) return nullptr;
    detail::throw_if_child();
    auto const key = stream_key::host().with_waiting();
    auto result = detail::checked_request(key, state().where(), bytes, alignment);
    if (result) result = state().try_allocate(key, bytes, alignment);
    if (!result) detail::throw_failure_of(services(), nullptr, result.error());
    return *result;
  }

  /// Frees memory. The caller guarantees that all uses of it are complete and that the host has seen that.
  void deallocate_sync(void* pointer, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
    if (!pointer || !detail::may_free()) return;
    if (!valid()) [[unlikely]]
      return detail::report_moved_from(pointer, bytes);
    state().deallocate(stream_key::host(), pointer, bytes, alignment);
  }

  /// Returns an awaitable that gives an allocation; see acquire_awaitable.
  template <stoppable_token Token = never_stop_token>
  acquire_awaitable<Token> acquire(stream_ref stream, std::size_t bytes, acquire_options options = {},
                                   Token token = {}) noexcept {
    return gpumem::acquire(self(), stream, bytes, options, std::move(token));
  }

  /// Returns an awaitable that gives several blocks: all are granted or none. See gpumem::acquire_all.
  template <std::size_t N, stoppable_token Token = never_stop_token>
  acquire_awaitable<Token, N> acquire_all(block_request const (&blocks)[N], acquire_options options = {},
                                          Token token = {}) noexcept {
    return gpumem::acquire_all(self(), blocks, options, std::move(token));
  }

  /// Returns this resource type-erased, with its services. The result does not own the resource, which must outlive it.
  pool_ref ref() noexcept
    requires mr::has_property<Self, mr::device_accessible>
  {
    return pool_ref{self()};
  }

  /// Gives unused memory back to the upstream, as long as the resource has more than `keep` bytes from it. Returns the
  /// number of bytes given back.
  std::size_t trim(std::size_t keep = 0)
    requires trimmable_state<State>
  {
    if (!valid()) detail::throw_moved_from("trim");
    return state().trim(keep);
  }

  /// Returns the statistics. For an adaptor whose upstream may keep none, returns a std::optional of them.
  auto statistics() const
    requires reporting_state<State>
  {
    if (!valid()) detail::throw_moved_from("statistics");
    return state().read_statistics();
  }

  /// Returns the device of the memory. Returns a std::optional if the memory may belong to no device.
  auto device() const {
    if (!valid()) detail::throw_moved_from("device");
    return state().where();
  }

  // Returns what holds for the memory of a state, for the table of services. A resource with an upstream has a function
  // of the same name, which asks the upstream.
  static constexpr memory_traits traits_of(State&) noexcept {
    return {(std::same_as<Properties, mr::device_accessible> || ...),
            (std::same_as<Properties, mr::host_accessible> || ...), detail::is_stream_ordered<Self>()};
  }

  /// Returns the state, and the table of functions by which allocations and erased types use it. Keeps nothing alive.
  services_handle services() const noexcept {
    if (!valid()) [[unlikely]]
      return {&detail::moved_from_table, nullptr};
    return {&detail::table_of<Self, State>, &state()};
  }

private:
  // Frees on a stream that is neither gpumem's own nor adopted.
  [[gnu::noinline]] void deallocate_foreign(stream_ref stream, void* pointer, std::size_t bytes,
                                            std::size_t alignment) noexcept {
    if (auto* const timeline = detail::find_seen_timeline(stream.get())) [[likely]] {
      state().deallocate(stream_key::of(*timeline, stream.get()), pointer, bytes, alignment);
    } else if (auto const key = detail::identify_for_free(stream, state().where(), bytes)) {
      state().deallocate(*key, pointer, bytes, alignment);
    } else if (key.error().reason == outcome::device_lost) {
      state().deallocate(stream_key::host(), pointer, bytes,
                         alignment); // a lost device runs no work: only the counts matter
    } else {
      detail::report_bad_stream(detail::name_of(state()), pointer, key.error());
    }
  }

  Self& self() noexcept { return static_cast<Self&>(*this); }
  State& state() const noexcept { return static_cast<Self const&>(*this).state(); }
};

} // namespace extend

} // namespace gpumem

namespace gpumem::detail {

template <class Self, class State, bool Device, bool Host> struct accessible_base {
  using type = resource_base<Self, State>;
};
template <class Self, class State> struct accessible_base<Self, State, true, false> {
  using type = resource_base<Self, State, mr::device_accessible>;
};
template <class Self, class State> struct accessible_base<Self, State, false, true> {
  using type = resource_base<Self, State, mr::host_accessible>;
};
template <class Self, class State> struct accessible_base<Self, State, true, true> {
  using type = resource_base<Self, State, mr::device_accessible, mr::host_accessible>;
};

// The properties of an upstream. Each static_assert names the function that a type lacks. A constraint of a class would
// not do that: where the compiler deduces the class's arguments, its message does not say which part of the constraint
// failed.
template <class Upstream> struct checked_upstream {
  static_assert(mr::has_allocate<Upstream>, "gpumem: the upstream is no resource: it lacks the function "
                                            "void* allocate(stream_ref, std::size_t bytes, std::size_t alignment)");
  static_assert(mr::has_deallocate<Upstream>,
                "gpumem: the upstream is no resource: it lacks the function "
                "void deallocate(stream_ref, void*, std::size_t bytes, std::size_t alignment)");
  static_assert(mr::has_allocate_sync<Upstream>, "gpumem: the upstream is no resource: it lacks the function "
                                                 "void* allocate_sync(std::size_t bytes, std::size_t alignment)");
  static_assert(mr::has_deallocate_sync<Upstream>,
                "gpumem: the upstream is no resource: it lacks the function "
                "void deallocate_sync(void*, std::size_t bytes, std::size_t alignment)");
  static_assert(mr::has_equality<Upstream>, "gpumem: the upstream is no resource: it lacks operator==");
  static constexpr bool is_resource = mr::resource<Upstream>;
  static constexpr bool for_device = mr::has_property<Upstream, mr::device_accessible>;
  static constexpr bool for_host = mr::has_property<Upstream, mr::host_accessible>;
};

/// The resource_base that has the same accessibility properties as the upstream.
export template <class Self, class State, class Upstream>
using forwarding_base =
    accessible_base<Self, State, checked_upstream<Upstream>::for_device, checked_upstream<Upstream>::for_host>::type;

} // namespace gpumem::detail
