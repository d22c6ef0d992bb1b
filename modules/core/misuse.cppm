// Misuse: errors of the caller, and the handler to which they are reported.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:misuse;
import :std;

export namespace gpumem {

/// A record of one allocation or free. It is kept by a hardened pool or a tracking_adaptor.
struct block_event {
  /// The two kinds of calls.
  enum class kind : std::uint8_t { allocated, freed };
  kind what = kind::allocated;   ///< allocation or free
  unsigned thread = 0;           ///< number of the calling thread; the number of an ended thread is reused
  std::uint64_t sequence = 0;    ///< in a pool: number of the call; in an adaptor: number of allocations so far; from 1
  std::uint64_t stream = 0;      ///< id of the stream; 0: the host
  void const* pointer = nullptr; ///< start of the block
  std::size_t bytes = 0;         ///< size of the block
};

/// An error of the caller, such as a double free, with the values of the call.
struct misuse {
  /// The errors that gpumem finds.
  enum class kind : std::uint8_t {
    foreign_pointer,   ///< the resource never gave out this pointer
    double_free,       ///< the pointer was freed before
    wrong_size,        ///< the size passed to the free is not that of the allocation
    use_after_close,   ///< an allocation after the last handle of the resource was gone
    bad_stream,        ///< the stream cannot be identified, since its handle is dead
    other_device,      ///< a default stream was passed while another device is current
    moved_from,        ///< the free was called through a handle that was moved from
    moved_from_stream, ///< the stream object was moved from
    unopened_device,   ///< the stream belongs to a device that may not use the pool's memory; see open_to()
    recorded_late,     ///< record_use() was called for a block that was freed before
    // Hardened pools find these some time after the error:
    overrun,        ///< bytes after the block were overwritten
    underrun,       ///< bytes before the block were overwritten
    use_after_free, ///< bytes of the block were overwritten after its free
  };
  kind what;                     ///< the error
  void const* pointer = nullptr; ///< pointer that was passed to the call, or start of the overwritten block
  std::size_t given = 0;         ///< bytes that were passed to the call
  std::size_t expected = 0;      ///< bytes of the block, if known
  std::uint64_t stream = 0;      ///< id of the stream that was passed to the call, if known
  char const* resource = "";     ///< name of the resource
  // Hardened pools set these; a tracking_adaptor sets only `history` and `events`:
  std::ptrdiff_t offset = 0;   ///< bytes from `pointer` to an overwritten byte: the one nearest to the block's start
  std::size_t overwritten = 0; ///< number of overwritten bytes among those that were checked
  block_event const* history = nullptr; ///< calls for this memory, the oldest first; valid until the handler returns
  std::size_t events = 0;               ///< length of `history`
};

/// Returns a description of the error, such as "a double free".
char const* to_string(misuse::kind value) noexcept;

/// Writes the text that the default handler prints: one line, and one more for each record of the history. Writes at
/// most `room` bytes, including the terminating 0.
void describe(misuse const& misuse, char* buffer, std::size_t room) noexcept;

/// A function to which gpumem reports errors of the caller. gpumem calls it on the thread that makes or finds the
/// error. It holds no lock, so the handler may allocate, free and read statistics. The handler must not throw. If it
/// returns, the call with the error does nothing.
using misuse_handler = void (*)(misuse const&) noexcept;

/// Sets the handler of the process and returns the previous one. Null sets the default, which prints the text and
/// aborts. Any thread.
misuse_handler set_misuse_handler(misuse_handler handler) noexcept;

namespace extend {
/// Calls the misuse handler of the process.
void report_misuse(misuse const& misuse) noexcept;
} // namespace extend

namespace detail {
/// How many calls of this thread were refused as misuse. If it changes while a resource below frees a block, that free
/// has done nothing: the block is still live.
inline constinit thread_local unsigned refused_calls = 0;
/// Returns whether the misuse was found later, by a call that itself is right.
bool found_later(misuse::kind kind) noexcept;
/// Returns the misuse of record_use() whose pointer would make that of a free.
inline misuse::kind kind_of_record(misuse::kind free) noexcept {
  return free == misuse::kind::double_free ? misuse::kind::recorded_late : free;
}

/// A misuse that is found under a lock. The destructor reports it, so that the handler runs without the lock if this
/// object is constructed before the lock is taken.
class late_misuse {
public:
  late_misuse() = default;
  late_misuse(late_misuse const&) = delete;
  late_misuse& operator=(late_misuse const&) = delete;
  ~late_misuse() {
    if (misuse_) extend::report_misuse(*misuse_);
  }
  void set(misuse const& misuse) noexcept { misuse_ = misuse; }
  // Says that the call was no free, but record_use().
  void set_recorded() noexcept {
    if (misuse_) misuse_->what = kind_of_record(misuse_->what);
  }

private:
  std::optional<misuse> misuse_;
};
} // namespace detail

} // namespace gpumem
