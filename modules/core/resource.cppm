// What a resource is made of: two functions over a state, and everything else from here.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:resource;
import :acquire;
import :cuda;
import :device;
import :driver;
import :error;
import :misuse;
import :services;
import :std;
import :stop_token;
import :stream;

namespace gpumem {

namespace detail {

// False in a process that is exiting, and in a forked child (see `driver_alive`): frees then do nothing.
inline bool may_free() noexcept { return driver_alive(); }
void report_bad_stream(void* pointer, std::size_t bytes) noexcept;

// One property of a resource, found by argument-dependent lookup.
template <class Self, class Property> struct property_of {
  friend constexpr void get_property(Self const&, Property) noexcept {}
};
template <class Self> struct services_property {
  friend services_handle get_property(Self const& self, services) noexcept { return self.services(); }
};

} // namespace detail

namespace extend {
/// Base of every gpumem resource: `Self` has `State& state() const noexcept` and compares equal; `State` is a
/// resource_state. Gives CCCL's concept, the forms that do not throw, the awaitable, the properties and the services.
///
/// Common to all forms: bytes of 0 give nullptr, freeing nullptr does nothing; the alignment is any power of two.
/// Streams of any kind may be passed. Any thread.
export template <class Self, class State, class... Properties>
class resource_base : public mr::memory_resource_base<Self>,
                      public detail::services_property<Self>,
                      public detail::property_of<Self, Properties>... {
public:
  using default_queries = mr::properties_list<Properties...>;
  using state_type = State;
  static constexpr std::size_t default_alignment = 256;

  /// Memory usable by work enqueued on the stream from now on. Before it fails, a pool at its limit waits on the host,
  /// for a second at most, for memory that is free but still in use. Throws as `throw_failure`.
  void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment = default_alignment) {
    auto const result = detail::allocate_outermost(state(), stream, bytes, alignment, detail::waiting_on_host);
    if (!result) detail::throw_failure_of(services(), stream.get(), result.error());
    return *result;
  }

  /// The same without throwing and without waiting. Inlined by force, as the free is: calls of what a pool serves near
  /// its thread took 7 % of recorded traces.
  [[gnu::always_inline]] inline expected<void*, failure>
  try_allocate(stream_ref stream, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
    return detail::allocate_outermost(state(), stream, bytes, alignment, detail::as_it_is);
  }

  /// Frees in the order of the stream: work enqueued on it before may still use the memory. Misuse goes to the handler.
  [[gnu::always_inline]] inline void deallocate(stream_ref stream, void* pointer, std::size_t bytes,
                                                std::size_t alignment = default_alignment) noexcept {
    if (!pointer || !detail::may_free()) [[unlikely]]
      return;
    auto* const timeline = detail::find_owned_timeline(stream.get());
    if (!timeline) return deallocate_foreign(stream, pointer, bytes, alignment);
    state().deallocate(stream_key::of(*timeline, stream.get()), pointer, bytes, alignment);
  }

  /// Memory that the host may hand to any stream, or touch, on return. Throws as `throw_failure`.
  void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
    if (bytes == 0) return nullptr;
    detail::throw_if_child();
    auto const key = stream_key::host().waiting();
    auto result = detail::checked_request(key, state().where(), bytes, alignment);
    if (result) result = state().try_allocate(key, bytes, alignment);
    if (!result) detail::throw_failure_of(services(), nullptr, result.error());
    return *result;
  }

  /// Frees memory of which the caller says that all use is over, as the host has seen.
  void deallocate_sync(void* pointer, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
    if (pointer && detail::may_free()) state().deallocate(stream_key::host(), pointer, bytes, alignment);
  }

  /// `co_await` it for an allocation; see acquire_awaitable.
  template <stoppable_token Token = never_stop_token>
  acquire_awaitable<Token> acquire(stream_ref stream, std::size_t bytes, acquire_options options = {},
                                   Token token = {}) noexcept {
    return gpumem::acquire(self(), stream, bytes, options, std::move(token));
  }

  /// The same for several blocks, of which all are granted or none; see there.
  template <std::size_t N, stoppable_token Token = never_stop_token>
  acquire_awaitable<Token, N> acquire_all(block_request const (&blocks)[N], acquire_options options = {},
                                          Token token = {}) noexcept {
    return gpumem::acquire_all(self(), blocks, options, std::move(token));
  }

  /// This resource erased, without ownership, its services with it: it must outlive what is returned.
  pool_ref ref() noexcept
    requires mr::has_property<Self, mr::device_accessible>
  {
    return pool_ref{self()};
  }

  /// Gives unused memory beyond `keep` reserved bytes back; returns the bytes given back.
  std::size_t trim(std::size_t keep = 0)
    requires trimmable_state<State>
  {
    return state().trim(keep);
  }

  gpumem::statistics statistics() const
    requires reporting_state<State>
  {
    return state().read_statistics();
  }

  /// The device; a std::optional of one where the memory need not be of any.
  auto device() const noexcept { return state().where(); }

  /// The table and state by which allocations and erased types reach this resource; keeps nothing alive.
  services_handle services() const noexcept { return {&detail::table_of<Self, State>, &state()}; }

private:
  // On a stream that is not gpumem's own.
  [[gnu::noinline]] void deallocate_foreign(stream_ref stream, void* pointer, std::size_t bytes,
                                            std::size_t alignment) noexcept {
    if (auto* const timeline = detail::find_seen_timeline(stream.get())) [[likely]] {
      state().deallocate(stream_key::of(*timeline, stream.get()), pointer, bytes, alignment);
    } else if (auto const key = detail::identify_for_free(stream, state().where(), bytes)) {
      state().deallocate(*key, pointer, bytes, alignment);
    } else if (key.error().reason == outcome::device_lost) {
      state().deallocate(stream_key::host(), pointer, bytes, alignment); // nothing runs there any more: bookkeeping
    } else {
      detail::report_bad_stream(pointer, bytes);
    }
  }

  Self& self() noexcept { return static_cast<Self&>(*this); }
  State& state() const noexcept { return static_cast<Self const&>(*this).state(); }
};

} // namespace extend

} // namespace gpumem
