// The services of a resource: the functions that its author writes, and their type-erased table.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/services.hpp>
#include <string>
#include <typeinfo>
export module gpumem:services;
import :cuda;
import :device;
import :driver;
import :error;
import :holder;
import :memory_watcher;
import :std;
import :stream;
import :waiter;

namespace gpumem::detail {

/// Returns whether the resource allocates in stream order: its constant `stream_ordered`, or true if it has none.
export template <class Resource> consteval bool is_stream_ordered() {
  if constexpr (requires {
                  { Resource::stream_ordered } -> std::convertible_to<bool>;
                }) {
    return Resource::stream_ordered;
  } else {
    return true;
  }
}

} // namespace gpumem::detail

namespace gpumem::extend {

/// The state of a resource: the object that its handles share. The author of a resource writes these three functions,
/// which any thread may call. A stream_key names a stream, or the host if no stream uses the memory.
/// - `try_allocate` returns `bytes` > 0 bytes, aligned to a power of two. They are valid in the order of the key's
///   stream; for the host's key, immediately. If it fails, it changes nothing.
/// - `deallocate` takes back what `try_allocate` returned.
/// - `where` returns a device, or an empty std::optional if the memory belongs to no device. In the latter case the
///   handle of a default stream means the default stream of the current device.
export template <class S>
concept resource_state = requires(S& s, stream_key const& key, void* pointer, std::size_t n) {
  { s.try_allocate(key, n, n) } noexcept -> std::same_as<expected<void*, failure>>;
  { s.deallocate(key, pointer, n, n) } noexcept;
  { s.where() } noexcept -> std::convertible_to<std::optional<device>>;
};

/// A state that can serve requests on capturing streams: these requests call `allocate_in_capture` in place of
/// `try_allocate`. An adaptor that only passes the key on to its upstream's `try_allocate` has the constant
/// `forwards_captures` instead. With any other state, a request on a capturing stream fails with
/// outcome::capture_unsupported.
export template <class S>
concept capturing_state = resource_state<S> && requires(S& s, stream_key const& key, std::size_t n) {
  { s.allocate_in_capture(key, n, n) } noexcept -> std::same_as<expected<void*, failure>>;
};

/// A state that can let requests wait. admit() parks a request (keeps it to answer it later) and returns true, or
/// answers or refuses it and returns false. cancel_waiter() withdraws a parked request. The class `waiter` has the full
/// rules.
export template <class S>
concept waiting_state = resource_state<S> && requires(S& s, waiter& w) {
  { s.admit(w) } noexcept -> std::same_as<bool>;
  { s.cancel_waiter(w) } noexcept -> std::same_as<bool>;
};

/// A state that is told of changes of holders. From these changes the state finds out when no holder can go on.
export template <class S>
concept holding_state = resource_state<S> && requires(S& s, holder& h) {
  { s.on_holder_event(h, holder_event::waits) } noexcept;
};

/// A state that can give unused memory back to its upstream.
export template <class S>
concept trimmable_state = resource_state<S> && requires(S& s, std::size_t n) {
  { s.trim(n) } -> std::same_as<std::size_t>;
};

/// A state that knows which devices may use its memory. serves_stream() returns whether work of the stream may. A
/// request on another stream fails with outcome::invalid_argument, and such a free is a misuse.
export template <class S>
concept device_bound_state = resource_state<S> && requires(S& s, stream_key const& key) {
  { s.serves_stream(key) } noexcept -> std::same_as<bool>;
};

/// A state that keeps statistics. read_statistics() returns a std::optional if not all objects of the type keep them.
export template <class S>
concept reporting_state = resource_state<S> && requires(S& s) {
  { s.read_statistics() } -> std::convertible_to<std::optional<statistics>>;
};

} // namespace gpumem::extend

namespace gpumem {

export {
  using gpumem::statistics;

  /// An owning, type-erased, device-accessible resource with gpumem's services. `acquire`, `trim` and `statistics_of`
  /// work on it, and on erased types with fewer properties that are made from it. Empty only after a move from it. A
  /// copy may allocate on the host. With clang 19, a translation unit that includes CCCL's headers, imports gpumem and
  /// calls try_get_property must include <gpumem/services.hpp> (llvm-project#126373).
  using gpumem::any_pool;

  /// A type-erased reference to a resource, with the properties of any_pool: 16 bytes. The resource must outlive the
  /// reference.
  using gpumem::pool_ref;
}

namespace extend {
export {
  using gpumem::extend::holder_event;
  using gpumem::extend::memory_traits;
  using gpumem::extend::services;
  using gpumem::extend::services_handle;
  using gpumem::extend::services_table;
}
using gpumem::extend::find_services;
using gpumem::extend::traits_by_property;
} // namespace extend

namespace detail {

// Whether a request on a capturing stream may reach the state: the state serves such requests or forwards them.
template <class S>
inline constexpr bool serves_captures = capturing_state<S> || requires { requires S::forwards_captures; };

// The checks of each request. They are made once, in the call of the user; upstreams do not repeat them.
// plain_request() returns whether all is right and the stream does not capture. explain_request() is the slow form: it
// returns the failure, if there is one. With `may_capture` a capturing stream is no failure.
expected<void*, failure> explain_request(stream_key const& key, std::optional<device> device, std::size_t bytes,
                                         std::size_t alignment, bool may_capture = false) noexcept;
inline bool plain_request(stream_key const& key, std::optional<device> device, std::size_t bytes,
                          std::size_t alignment) noexcept {
  return std::has_single_bit(alignment) && bytes <= PTRDIFF_MAX && alignment <= PTRDIFF_MAX - bytes && driver_alive() &&
         !(device && device->lost()) && !key.identity().capturing();
}
inline expected<void*, failure> checked_request(stream_key const& key, std::optional<device> device, std::size_t bytes,
                                                std::size_t alignment, bool may_capture = false) noexcept {
  if (plain_request(key, device, bytes, alignment)) return nullptr;
  return explain_request(key, device, bytes, alignment, may_capture);
}

// If the key's stream is capturing and the state has `allocate_in_capture`, calls that; otherwise calls `try_allocate`.
// Refuses a capturing stream if the state serves none.
template <resource_state S>
[[gnu::always_inline]] inline expected<void*, failure>
allocate_keyed(S& state, stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
  if constexpr (capturing_state<S>) {
    if (key.identity().capturing()) [[unlikely]]
      return state.allocate_in_capture(key, bytes, alignment);
  } else if constexpr (!serves_captures<S>) {
    if (key.identity().capturing()) [[unlikely]]
      return unexpected<failure>{failure{outcome::capture_unsupported, 0, bytes}};
  }
  return state.try_allocate(key, bytes, alignment);
}
// Returns the key of a stream that find_owned_timeline() does not find, or the failure.
expected<stream_key, failure> identify_other(stream_ref stream, std::optional<device> device,
                                             std::size_t bytes) noexcept;
// Returns the key of a stream for a free. Since a free must not fail, this waits for the stream and returns the host's
// key if the host has no memory to keep track of the stream.
expected<stream_key, failure> identify_for_free(stream_ref stream, std::optional<device> device,
                                                std::size_t bytes) noexcept;
inline expected<stream_key, failure> try_identify(stream_ref stream, std::optional<device> device,
                                                  std::size_t bytes) noexcept {
  if (auto* const timeline = find_owned_timeline(stream.get())) return stream_key::of(*timeline, stream.get());
  return identify_other(stream, device, bytes);
}
expected<stream_key, failure> try_identify(stream_ref stream, services_handle const& services,
                                           std::size_t bytes) noexcept;
// Adds the figures of `statistics` to `sum`. The longest wait and the largest free range become the larger of both.
// Does not change the limits and peaks of `sum`.
void add_statistics(statistics& sum, statistics const& statistics) noexcept;
// Returns the statistics of the resource; none if it keeps none.
inline std::optional<statistics> statistics_from(services_handle const& services) {
  statistics seen;
  if (!services.table->read_statistics(services.state, seen)) return std::nullopt;
  return seen;
}
// Returns whether work of the stream may use the resource's memory.
inline bool serves_stream(services_handle const& services, stream_key const& key) noexcept {
  return !services.table->serves_stream || services.table->serves_stream(services.state, &key);
}
// Returns the name of a state or of a resource for messages; null if it has none.
template <class S> char const* name_of(S& state) noexcept {
  if constexpr (requires {
                  { state.resource_name() } -> std::convertible_to<char const*>;
                }) {
    return state.resource_name();
  }
  return nullptr;
}
inline char const* name_of(services_handle const& services) noexcept {
  return services.table->name ? services.table->name(services.state) : nullptr;
}
// Returns the failure that belongs to the exception being handled.
export failure current_failure(std::size_t bytes) noexcept;

// Throws the exception that belongs to the failure; out_of_memory carries the resource's statistics.
[[noreturn]] void throw_failure_of(services_handle const& services, CUstream stream, failure const& failure);

// Returns the current device's ordinal; -1 without a driver.
int current_ordinal() noexcept;
// Returns the device of the resource's memory, if it has one. Throws cuda_error.
std::optional<device> device_of(services_handle const& services);
// Returns the device's ordinal; -1 without a device.
inline int ordinal_of(std::optional<device> device) noexcept { return device ? device->ordinal() : -1; }

template <class Allocate> expected<void*, failure> allocate_external(Allocate allocate, std::size_t bytes) noexcept {
  try {
    return allocate();
  } catch (...) { return unexpected<failure>{current_failure(bytes)}; }
}

// Serves a request that fails a check, or whose stream has not been seen before.
template <resource_state State, class Adjust>
[[gnu::noinline]] expected<void*, failure> allocate_unusual(State& state, stream_ref stream, std::size_t bytes,
                                                            std::size_t alignment, Adjust adjust) noexcept {
  if (bytes == 0) return nullptr;
  auto const key = try_identify(stream, state.where(), bytes);
  if (!key) return unexpected<failure>{key.error()};
  auto const checked = checked_request(*key, state.where(), bytes, alignment, serves_captures<State>);
  return checked ? allocate_keyed(state, adjust(*key), bytes, alignment) : checked;
}

// Serves a request on a stream that is neither gpumem's own nor adopted.
template <resource_state State, class Adjust>
[[gnu::noinline]] expected<void*, failure> allocate_foreign(State& state, stream_ref stream, std::size_t bytes,
                                                            std::size_t alignment, Adjust adjust) noexcept {
  auto* const timeline = bytes > 0 ? find_seen_timeline(stream.get()) : nullptr;
  if (!timeline) [[unlikely]]
    return allocate_unusual(state, stream, bytes, alignment, adjust);
  auto const key = stream_key::of(*timeline, stream.get());
  if (!plain_request(key, state.where(), bytes, alignment)) [[unlikely]]
    return explain_request(key, state.where(), bytes, alignment);
  return state.try_allocate(adjust(key), bytes, alignment);
}

// Checks a request of the user and passes it to the state. `adjust` gets the stream's key and returns the key to pass
// on. It can allow a wait on the host, or set how the request treats requests that wait.
template <resource_state State, class Adjust>
[[gnu::always_inline]] inline expected<void*, failure>
allocate_outermost(State& state, stream_ref stream, std::size_t bytes, std::size_t alignment, Adjust adjust) noexcept {
  auto* const timeline = find_owned_timeline(stream.get());
  if (!timeline) return allocate_foreign(state, stream, bytes, alignment, adjust);
  if (bytes == 0) [[unlikely]]
    return nullptr;
  auto const key = stream_key::of(*timeline, stream.get());
  if (!plain_request(key, state.where(), bytes, alignment)) [[unlikely]]
    return allocate_unusual(state, stream, bytes, alignment, adjust);
  return state.try_allocate(adjust(key), bytes, alignment);
}
inline constexpr auto as_it_is = [](stream_key const& key) noexcept { return key; };
inline constexpr auto waiting_on_host = [](stream_key const& key) noexcept { return key.with_waiting(); };

// The part of a request that services_table::try_allocate_behind reads and writes.
struct attempt_behind {
  std::optional<stream_key> key;
  failure why{};
  queueing place = queueing::behind; // or `once`
};

// Makes the table of the gpumem resource `Type`. Its function traits_of() tells what holds for the memory of a state.
template <class Type, resource_state S> constexpr services_table make_table() noexcept {
  services_table table{};
  table.type = &typeid(Type);
  table.try_allocate = [](void* s, stream_ref stream, std::size_t n, std::size_t a) noexcept {
    return allocate_outermost(*static_cast<S*>(s), stream, n, a, as_it_is);
  };
  table.try_allocate_behind = [](void* s, stream_ref stream, std::size_t n, std::size_t a, void* of) noexcept -> void* {
    auto& attempt = *static_cast<attempt_behind*>(of);
    auto const result = allocate_outermost(*static_cast<S*>(s), stream, n, a, [&](stream_key const& key) noexcept {
      attempt.key = key;
      return key.queueing_as(key.identity().capturing() ? queueing::once : attempt.place); // a capture cannot wait
    });
    if (result) return *result;
    attempt.why = result.error();
    return nullptr;
  };
  table.try_allocate_keyed = [](void* s, void const* key, std::size_t n, std::size_t a) noexcept {
    return allocate_keyed(*static_cast<S*>(s), *static_cast<stream_key const*>(key), n, a);
  };
  table.deallocate_keyed = [](void* s, void const* key, void* p, std::size_t n, std::size_t a) noexcept {
    static_cast<S*>(s)->deallocate(*static_cast<stream_key const*>(key), p, n, a);
  };
  table.device = [](void* s) noexcept { return ordinal_of(static_cast<S*>(s)->where()); };
  if constexpr (waiting_state<S>) {
    table.admit = [](void* s, void* w) noexcept { return static_cast<S*>(s)->admit(*static_cast<waiter*>(w)); };
    table.cancel_waiter = [](void* s, void* w) noexcept {
      return static_cast<S*>(s)->cancel_waiter(*static_cast<waiter*>(w));
    };
  }
  if constexpr (requires(S& s, waiter& w) { s.is_too_large(w); }) {
    table.is_too_large = [](void* s, void* w) noexcept {
      return static_cast<S*>(s)->is_too_large(*static_cast<waiter*>(w));
    };
  }
  if constexpr (holding_state<S>) {
    table.on_holder_event = [](void* s, void* h, holder_event what) noexcept {
      static_cast<S*>(s)->on_holder_event(*static_cast<holder*>(h), what);
    };
  }
  if constexpr (device_bound_state<S>) {
    table.serves_stream = [](void* s, void const* key) noexcept {
      return static_cast<S*>(s)->serves_stream(*static_cast<stream_key const*>(key));
    };
  }
  if constexpr (requires(S& s, memory_watcher& watcher) { s.watch_memory(watcher, true); }) {
    table.watch_memory = [](void* s, void* watcher, bool begin) -> bool {
      return static_cast<S*>(s)->watch_memory(*static_cast<memory_watcher*>(watcher), begin);
    };
  }
  table.trim = [](void* s, std::size_t keep) -> std::size_t {
    if constexpr (trimmable_state<S>) return static_cast<S*>(s)->trim(keep);
    return 0;
  };
  table.read_statistics = [](void* s, statistics& seen) {
    if constexpr (reporting_state<S>) {
      std::optional<statistics> const now = static_cast<S*>(s)->read_statistics();
      if (now) seen = *now;
      return now.has_value();
    }
    return false;
  };
  table.name = [](void* s) noexcept { return name_of(*static_cast<S*>(s)); };
  table.traits = [](void* s) noexcept { return Type::traits_of(*static_cast<S*>(s)); };
  if constexpr (requires(S& s, std::size_t n, std::string& text) { s.append_holders(n, text); }) {
    table.append_holders = [](void* s, std::size_t n, void* text) {
      static_cast<S*>(s)->append_holders(n, *static_cast<std::string*>(text));
    };
  }
  if constexpr (requires(S& s, void const* p, unsigned label) { s.set_label(p, label); }) {
    table.set_label = [](void* s, void const* p, unsigned label) noexcept {
      return static_cast<S*>(s)->set_label(p, label);
    };
  }
  return table;
}

// Reports to the misuse handler that a free was called through a handle that was moved from.
void report_moved_from(void* pointer, std::size_t bytes) noexcept;

// Returns the table of a handle that was moved from. The failures of its functions name this cause.
constexpr services_table make_moved_from_table() noexcept {
  services_table table{};
  table.type = &typeid(void);
  table.try_allocate = [](void*, stream_ref, std::size_t n, std::size_t) noexcept {
    return expected<void*, failure>{unexpect, failure_of(broken_rule::moved_from, n)};
  };
  table.try_allocate_keyed = [](void*, void const*, std::size_t n, std::size_t) noexcept {
    return expected<void*, failure>{unexpect, failure_of(broken_rule::moved_from, n)};
  };
  table.deallocate_keyed = [](void*, void const*, void* pointer, std::size_t n, std::size_t) noexcept {
    report_moved_from(pointer, n);
  };
  table.device = [](void*) noexcept { return -1; };
  table.trim = [](void*, std::size_t) -> std::size_t { throw_moved_from("trim"); };
  table.read_statistics = [](void*, statistics&) -> bool { throw_moved_from("statistics"); };
  table.name = [](void*) noexcept { return "acquire"; };
  table.traits = [](void*) noexcept { return memory_traits{}; };
  return table;
}
inline constexpr services_table moved_from_table = make_moved_from_table();

// The functions below make the table of a resource that is not gpumem's. The resource is its own state and must outlive
// its allocations. A free uses the handle of the block's stream, so the stream must live until the free.
template <class R> R& as(void* state) noexcept { return *static_cast<R*>(state); }
inline stream_ref stream_of(stream_key const& key) noexcept { return stream_ref{key.identity().timeline().handle()}; }

template <class R> constexpr services_table make_external_table() noexcept {
  services_table table{};
  table.type = &typeid(R);
  table.try_allocate = [](void* s, stream_ref stream, std::size_t n, std::size_t a) noexcept {
    return allocate_external([&] { return as<R>(s).allocate(stream, n, a); }, n);
  };
  table.try_allocate_keyed = [](void* s, void const* k, std::size_t n, std::size_t a) noexcept {
    auto const& key = *static_cast<stream_key const*>(k);
    if (key.identity().capturing())
      return expected<void*, failure>{unexpect, failure{outcome::capture_unsupported, 0, n}};
    return allocate_external(
        [&] {
          return key.identity().is_host() ? as<R>(s).allocate_sync(n, a) : as<R>(s).allocate(stream_of(key), n, a);
        },
        n);
  };
  table.deallocate_keyed = [](void* s, void const* k, void* p, std::size_t n, std::size_t a) noexcept {
    auto const& key = *static_cast<stream_key const*>(k);
    if (key.identity().is_host()) {
      as<R>(s).deallocate_sync(p, n, a);
    } else {
      as<R>(s).deallocate(stream_of(key), p, n, a);
    }
  };
  table.device = [](void* s) noexcept {
    auto const traits = traits_by_property(as<R>(s));
    return traits.host_accessible && !traits.device_accessible ? -1 : current_ordinal();
  };
  table.trim = [](void*, std::size_t) -> std::size_t { return 0; };
  table.read_statistics = [](void*, statistics&) { return false; };
  table.traits = [](void* s) noexcept {
    auto traits = traits_by_property(as<R>(s));
    traits.stream_ordered = is_stream_ordered<R>();
    return traits;
  };
  return table;
}

template <class Type, class State> inline constexpr services_table table_of = make_table<Type, State>();
template <class R> inline constexpr services_table external_table_of = make_external_table<R>();

} // namespace detail

namespace extend {
/// Returns the services of any resource. A gpumem resource has its own. A type-erased resource carries those of the
/// type that it holds. Any other resource gets a table over its public functions. The result keeps nothing alive.
export template <class R> services_handle services_of(R& resource) noexcept {
  if constexpr (requires { resource.services(); }) {
    return resource.services();
  } else {
    if constexpr (requires {
                    { resource.has_value() } -> std::convertible_to<bool>;
                  }) {
      if (!resource.has_value()) return {&detail::moved_from_table, nullptr};
    }
    if constexpr (requires {
                    try_get_property(resource, services{});
                    resource.type();
                  }) {
      if (auto const found = find_services(resource); found.table) return found;
    }
    return {&detail::external_table_of<R>, std::addressof(resource)};
  }
}
} // namespace extend

namespace detail {
// Returns the services of an upstream. Throws rule_error if the upstream was moved from.
template <class R> services_handle services_of_upstream(R& upstream) {
  auto const found = services_of(upstream);
  if (found.table == &moved_from_table) throw_moved_from("the upstream");
  return found;
}
// Returns what holds for the memory of the resource.
inline memory_traits traits_of_services(services_handle const& services) noexcept {
  return services.table->traits(services.state);
}
// Returns whether host and devices can access memory with the traits `traits` wherever they can access `other`.
bool has_access_of(memory_traits const& traits, memory_traits const& other) noexcept;
// Returns what holds for the memory of a resource, also if its type is erased.
template <class R> memory_traits traits_of_resource(R& resource) noexcept {
  return traits_of_services(services_of(resource));
}
} // namespace detail

/// Gives unused memory back to the upstream, as long as the resource has more than `keep` bytes from it. Returns the
/// number of bytes given back. Does not wait for streams. Any thread.
export template <class R> std::size_t trim(R& resource, std::size_t keep = 0) {
  auto const s = services_of(resource);
  return s.table->trim(s.state, keep);
}

/// Returns the resource's statistics; empty if it keeps none. A resource of another library keeps none. A gpumem
/// resource that is erased to a type without gpumem's services cannot return them. Any thread.
export template <class R> std::optional<statistics> statistics_of(R& resource) {
  return detail::statistics_from(services_of(resource));
}

} // namespace gpumem
