// logging_adaptor: writes a trace of each allocation and free.
// SPDX-License-Identifier: Apache-2.0
module;
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
export module gpumem:logging_adaptor;
import :adaptor_base;
import :cuda;
import :std;
import :stream;
import :sync;
import :trace;

namespace gpumem::detail {

/// A ring buffer of log rows without a lock. At any time at most one thread may push and at most one may take. Another
/// thread may take over either part later.
export class log_ring {
public:
  static constexpr std::size_t capacity = 1024;
  static constexpr std::size_t bytes = capacity * sizeof(binary_trace_row);

  /// Adds the row. Returns false, and adds nothing, if the ring is full.
  bool push(binary_trace_row const& row) noexcept {
    auto const end = end_.load(std::memory_order_relaxed);
    if (end - seen_begin_ == capacity) {
      seen_begin_ = begin_.load(std::memory_order_acquire);
      if (end - seen_begin_ == capacity) return false;
    }
    rows_[end % capacity] = row;
    end_.store(end + 1, std::memory_order_release);
    return true;
  }

  /// Moves all rows to the end of `text`. The capacity of `text` must leave room for `bytes` more, so that nothing is
  /// allocated.
  void take(std::string& text) noexcept {
    auto const end = end_.load(std::memory_order_acquire);
    for (auto at = begin_.load(std::memory_order_relaxed); at != end;) {
      auto const here = at % capacity;
      auto const count = std::min(end - at, capacity - here); // only up to the end of the array, where the ring wraps
      text.append(reinterpret_cast<char const*>(&rows_[here]), count * sizeof(binary_trace_row));
      at += count;
    }
    begin_.store(end, std::memory_order_release);
  }

private:
  std::atomic<std::size_t> end_{0}; // number of all rows ever pushed
  std::size_t seen_begin_ = 0;      // the pushing thread's copy of begin_, which may be out of date
  std::atomic<std::size_t> begin_{0};
  std::array<binary_trace_row, capacity> rows_;
};

} // namespace gpumem::detail

namespace gpumem {

/// The form of a log; trace_reader and gpumem-replay read both forms.
export enum class log_format : std::uint8_t {
  csv,    ///< RMM's text format; the threads write under one lock
  binary, ///< rows of 40 bytes; each thread has a buffer of its own
};

/// Options of a logging_adaptor.
export struct logging_options {
  log_format format = log_format::csv; ///< text or binary rows
  bool auto_flush = false;             ///< whether each row is written to the sinks and flushed immediately
};

namespace extend {
/// The destination of a log: a file, which is created or truncated, or an ostream, which must outlive the log.
export class log_sink {
public:
  /// Throws std::invalid_argument for an empty path, and std::runtime_error if the file cannot be opened for writing.
  log_sink(std::string const& path);
  log_sink(char const* path) : log_sink{std::string{path}} {}
  log_sink(std::ostream& output) noexcept;

  /// Returns a sink for the file that the environment variable GPUMEM_LOG_FILE names. Throws std::invalid_argument if
  /// the variable is unset or empty, and std::runtime_error if the file cannot be opened.
  static log_sink from_environment();

  /// Returns the std::ostream to which the log is written.
  std::ostream& output() const noexcept { return *output_; }

private:
  std::shared_ptr<std::ostream> output_;
};
} // namespace extend

namespace detail {

// Collects rows in a fixed buffer under a lock, so that writing a row allocates no memory, and rows of different
// threads stay whole. In a binary log up to 64 threads first write to rings (ring buffers) of their own, from which the
// rows are moved to the fixed buffer. A thread has no ring if it is not among these 64, if the host has no memory for a
// ring, or while the thread ends. A thread without a ring writes to the fixed buffer.
class allocation_log {
public:
  allocation_log(std::vector<log_sink> sinks, logging_options options);
  ~allocation_log();
  allocation_log(allocation_log const&) = delete;
  allocation_log& operator=(allocation_log const&) = delete;

  // Does nothing in a call from inside a sink, while this thread writes to the sinks.
  void write(trace_action action, stream_key const& key, void const* pointer, std::size_t bytes) noexcept;
  // Writes all rows to the sinks and flushes them. Returns false if a sink has failed, now or earlier.
  bool flush() noexcept;

private:
  static constexpr unsigned max_rings = 64;

  void write_binary(trace_record const& record) noexcept;
  log_ring* ring_of_thread() noexcept;
  sync::duration passed() const noexcept;
  void append(std::string_view row) noexcept __attribute__((requires_capability(mutex_)));
  void take_rows(log_ring& ring) noexcept __attribute__((requires_capability(mutex_)));
  void drain() noexcept __attribute__((requires_capability(mutex_)));
  bool flush_sinks() noexcept __attribute__((requires_capability(mutex_)));
  bool writes_here() const noexcept;

  std::vector<log_sink> const sinks_;
  logging_options const options_;
  std::uint64_t const began_; // time of the construction, in microseconds since midnight
  sync::time_point const began_at_;
  sync::mutex mutex_;
  std::string gathered_ __attribute__((guarded_by(mutex_)));
  bool failed_ __attribute__((guarded_by(mutex_))) = false;
  std::atomic<void const*> writer_{nullptr}; // while a thread writes to the sinks, the address of its `refused_calls`
  std::array<std::atomic<log_ring*>, max_rings> rings_{}; // by thread index; a ring is made at its thread's first row
};

template <class Upstream> class logging_state final : public adaptor_state<logging_state<Upstream>, Upstream> {
public:
  logging_state(Upstream upstream, std::vector<log_sink> sinks, logging_options options)
      : adaptor_state<logging_state, Upstream>{std::move(upstream)}, log_{std::move(sinks), options} {}
  allocation_log& log() noexcept { return log_; }

private:
  friend class adaptor_state<logging_state, Upstream>;
  void on_granted(stream_key const& key, void* pointer, std::size_t bytes) noexcept {
    log_.write(trace_action::allocate, key, pointer, bytes);
  }
  void on_free(stream_key const& key, void* pointer, std::size_t bytes) noexcept {
    log_.write(trace_action::free, key, pointer, bytes);
  }
  void on_failure(stream_key const& key, std::size_t bytes) noexcept {
    log_.write(trace_action::allocate_failure, key, nullptr, bytes);
  }

  allocation_log log_;
};

} // namespace detail

/// Logs in RMM's format, which trace_reader and gpumem-replay read. Writes a row for each allocation after the
/// upstream has allocated, for each free before the upstream frees, and for each failure. So the row of a free comes
/// before the row of the next allocation at that address. A request that has to wait writes a failure row, and an
/// allocation row when it is granted. Column Thread is the thread id of the system. Column Time is the local time;
/// after midnight its hours go on from 24. Column Stream is the handle of the stream, 0 for allocate_sync and
/// deallocate_sync.
///
/// A binary log (log_format::binary) has the same rows; trace_reader sorts them by time. The time per row is little
/// more than one reading of the clock: 30 ns on a host where that takes 20 ns, 47 ns where it takes 28. Threads do not
/// wait for each other. Each thread needs 40 KiB of host memory.
///
/// Rows reach the sinks when 64 KiB are buffered, at flush(), and when the last handle is gone and the last block is
/// freed. With auto_flush each row reaches them immediately. A sink may call the adaptor; such calls write no rows. A
/// free that the upstream refuses as misuse has a row too. A binary log also writes when 1,024 rows of one thread are
/// buffered. Rows that a sink cannot write are lost; flush() then returns false. A child process after fork() writes
/// nothing. Copies are handles to the same adaptor.
export template <class Upstream>
class logging_adaptor : public adaptor_base<logging_adaptor<Upstream>, detail::logging_state<Upstream>, Upstream> {
  using state_of = detail::logging_state<Upstream>;
  using base = adaptor_base<logging_adaptor, state_of, Upstream>;

public:
  /// Logs to the file that the environment variable GPUMEM_LOG_FILE names. Throws as log_sink::from_environment() does.
  /// `auto_flush` is constrained to bool, because a path (char const*) would convert to bool otherwise.
  template <std::same_as<bool> Flag = bool>
  explicit logging_adaptor(Upstream upstream, Flag auto_flush = false)
      : logging_adaptor{std::move(upstream), logging_options{.auto_flush = auto_flush}} {}
  logging_adaptor(Upstream upstream, logging_options options)
      : logging_adaptor{std::move(upstream), log_sink::from_environment(), options} {}

  /// Logs to a file or an ostream.
  template <std::same_as<bool> Flag = bool>
  logging_adaptor(Upstream upstream, log_sink sink, Flag auto_flush = false)
      : logging_adaptor{std::move(upstream), std::move(sink), logging_options{.auto_flush = auto_flush}} {}
  logging_adaptor(Upstream upstream, log_sink sink, logging_options options)
      : logging_adaptor{std::move(upstream), std::vector<log_sink>{std::move(sink)}, options} {}

  /// Logs to several sinks. Throws std::invalid_argument if `sinks` is empty, and std::runtime_error if a sink cannot
  /// be written.
  template <std::same_as<bool> Flag = bool>
  logging_adaptor(Upstream upstream, std::vector<log_sink> sinks, Flag auto_flush = false)
      : logging_adaptor{std::move(upstream), std::move(sinks), logging_options{.auto_flush = auto_flush}} {}
  logging_adaptor(Upstream upstream, std::vector<log_sink> sinks, logging_options options)
      : base{new state_of{std::move(upstream), std::move(sinks), options}} {}

  /// Writes all rows to the sinks and flushes them. Returns false if a sink has failed, now or earlier. Any thread.
  bool flush() { return this->shared().log().flush(); }

  /// Returns the first line of a log in RMM's format.
  static constexpr std::string_view header() noexcept { return trace_header; }
};

} // namespace gpumem
