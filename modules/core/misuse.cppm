// What happens when a caller breaks the contract of a resource.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:misuse;
import :std;

export namespace gpumem {

/// A broken contract: what was done, and with what.
struct misuse {
  enum class kind : std::uint8_t {
    foreign_pointer, ///< the resource never gave out this pointer
    double_free,     ///< the pointer was freed before
    wrong_size,      ///< freed with other bytes than it was allocated with
    use_after_close, ///< the resource was closed
    bad_stream,      ///< a stream that cannot be identified: a dead handle, or a default stream of another device
  };
  kind what;
  void const* pointer = nullptr;
  std::size_t given = 0;    ///< bytes passed with the call
  std::size_t expected = 0; ///< bytes of the block, if known
  std::uint64_t stream = 0; ///< id of the stream given, if known
  char const* resource = "";
};

char const* to_string(misuse::kind value) noexcept;

/// Called on the misusing thread, possibly with locks of the resource held: it may not throw and may not call into
/// gpumem. If it returns, the call that misused does nothing.
using misuse_handler = void (*)(misuse const&) noexcept;

/// Sets the process's handler and returns the one before; null: the default, which prints and aborts. Any thread.
misuse_handler set_misuse_handler(misuse_handler handler) noexcept;

/// Hands a misuse to the handler.
void report_misuse(misuse const& what) noexcept;

} // namespace gpumem
