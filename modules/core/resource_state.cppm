// The states of resources: the functions that the author of a resource writes.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/services.hpp>
export module gpumem:resource_state;
import :cuda;
import :device;
import :error;
import :holder;
import :std;
import :stream;
import :waiter;

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
