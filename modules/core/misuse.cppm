// Misuse: errors of the caller, and the handler to which they are reported.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:misuse;
import :std;

export namespace gpumem {

/// An allocation or a free that a hardened pool or a tracking_adaptor remembers.
struct block_event {
  /// The call that is remembered.
  enum class kind : std::uint8_t { allocated, freed };
  kind what = kind::allocated; ///< allocation or free
  unsigned thread = 0;         ///< number of the calling thread; the number of an ended thread is reused
  std::uint64_t sequence =
      0; ///< number among the pool's allocations and frees, or among the adaptor's allocations, from 1
  std::uint64_t stream = 0;      ///< id; 0: the host
  void const* pointer = nullptr; ///< start of the block
  std::size_t bytes = 0;         ///< of the block
};

/// An error of the caller, with the values of the call.
struct misuse {
  /// The errors that are found.
  enum class kind : std::uint8_t {
    foreign_pointer, ///< the resource never gave out this pointer
    double_free,     ///< the pointer was freed before
    wrong_size,      ///< the size passed to the free is not that of the allocation
    use_after_close, ///< the resource was closed
    bad_stream,      ///< a stream that cannot be identified: its handle is dead
    other_device,    ///< a default stream was given while another device is current
    moved_from,      ///< a free through a handle that was moved from
    // Found by hardened pools, some time after the error:
    overrun,        ///< bytes after the block were overwritten
    underrun,       ///< bytes before the block were overwritten
    use_after_free, ///< bytes of the block were overwritten after its free
  };
  kind what;                     ///< the error
  void const* pointer = nullptr; ///< passed to the call, or start of the overwritten block
  std::size_t given = 0;         ///< bytes passed to the call
  std::size_t expected = 0;      ///< bytes of the block, if known
  std::uint64_t stream = 0;      ///< id of the stream passed to the call, if known
  char const* resource = "";     ///< name of the resource
  // Set by hardened pools; `history` and `events` also by a tracking_adaptor:
  std::ptrdiff_t offset = 0;   ///< from the pointer to the overwritten byte that is nearest to the block's start
  std::size_t overwritten = 0; ///< number of overwritten bytes, of those that were checked
  block_event const* history = nullptr; ///< of the memory, the oldest first; valid until the handler returns
  std::size_t events = 0;               ///< length of `history`
};

/// Returns the name of the enumerator.
char const* to_string(misuse::kind value) noexcept;

/// Writes the text that the default handler prints, with one line for each event of the history. Writes at most `room`
/// bytes, 0-terminated.
void describe(misuse const& what, char* into, std::size_t room) noexcept;

/// Called on the thread of the misuse or on the one that finds it, possibly with locks of the resource held: it must
/// not throw and must not call gpumem. If it returns, the misusing call does nothing.
using misuse_handler = void (*)(misuse const&) noexcept;

/// Sets the process's handler and returns the previous one. Null sets the default, which prints and aborts. Any thread.
misuse_handler set_misuse_handler(misuse_handler handler) noexcept;

namespace extend {
/// Calls the handler with a misuse.
void report_misuse(misuse const& what) noexcept;
} // namespace extend

} // namespace gpumem
