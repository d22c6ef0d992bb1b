// logging_adaptor: writes a trace of each allocation and free.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
export module gpumem:logging_adaptor;
import :adaptor_base;
import :cuda;
import :error;
import :holder;
import :memory_watcher;
import :std;
import :stream;
import :sync;
import :trace;
import :waiter;

namespace gpumem::detail {

/// A ring buffer of log rows without a lock. At any time at most one thread may push and at most one may take. Another
/// thread may take over either part later.
export class log_ring {
public:
  static constexpr std::size_t capacity = 256; // 10 KiB: more would push the program's data out of the first cache
  static constexpr std::size_t bytes = capacity * sizeof(binary_trace_row);

  /// Adds the row. Returns false, and adds nothing, if the ring is full.
  inline bool push(binary_trace_row const& row) noexcept {
    auto const end = end_.load(std::memory_order_relaxed);
    if (end - seen_begin_ == capacity) {
      seen_begin_ = begin_.load(std::memory_order_acquire);
      if (end - seen_begin_ == capacity) return false;
    }
    rows_[end % capacity] = row;
    end_.store(end + 1, std::memory_order_release);
    return true;
  }

  /// Returns the row that push() has added last; null if there is none. Only the thread that pushes may call it.
  inline binary_trace_row const* last() const noexcept {
    auto const end = end_.load(std::memory_order_relaxed);
    return end == 0 ? nullptr : &rows_[(end - 1) % capacity];
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

/// Numbers the labels of a log, since the process gives a label that ends and begins again another number. Any thread.
export class log_labels {
public:
  /// Returns the number in the log of a label of the process; 0 for none, and if the host has no memory for its text.
  inline std::uint16_t number_of(std::uint32_t label) noexcept {
    if (label == 0) return 0;
    auto const known = known_[label % known_.size()].load(std::memory_order_acquire);
    return known >> 32 == label ? static_cast<std::uint16_t>(known) : find_or_add(label);
  }
  /// Removes and returns the text rows of all labels that are new since the last call, with their texts.
  std::string take_rows() noexcept;

private:
  std::uint16_t find_or_add(std::uint32_t label) noexcept;

  std::array<std::atomic<std::uint64_t>, 256> known_{}; // a label of the process, and its number in the lower 32 bits
  sync::mutex mutex_;
  std::unordered_map<std::string, std::uint16_t> numbers_ GPUMEM_GUARDED_BY(mutex_);
  std::string rows_ GPUMEM_GUARDED_BY(mutex_);
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
  /// The number of rows of a binary log to keep in memory, 80 bytes each; 0: all go to the sinks. The log writes the
  /// newest rows when a request fails, and at flush().
  std::size_t keep_last = 0;
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
//
// Rows of memory that the pool gets or gives back lie in a list of their own. The lock of that list is held for moments
// only: a thread that tells a watcher may hold what a sink needs that calls the pool.
class allocation_log final : public memory_watcher {
public:
  allocation_log(std::vector<log_sink> sinks, logging_options options);
  ~allocation_log();
  allocation_log(allocation_log const&) = delete;
  allocation_log& operator=(allocation_log const&) = delete;

  // Both do nothing in a call from inside a sink, while this thread writes to the sinks.
  void write(trace_action action, stream_key const& key, void const* pointer, std::size_t bytes,
             served_by served = served_by::unknown) noexcept;
  // Writes no row directly after that of the allocation, by the same thread, if that has the label.
  void write_label(void const* pointer, std::uint32_t label) noexcept;
  // Writes all rows to the sinks and flushes them. Returns false if a sink has failed, now or earlier.
  bool flush() noexcept;
  // Writes all rows if the log keeps its last rows in memory.
  inline void show_kept() noexcept {
    if (keeps()) flush();
  }
  inline bool binary() const noexcept { return options_.format == log_format::binary; }
  void on_mapped(void const* base, std::size_t bytes) noexcept override;
  void on_unmapping(void const* base, std::size_t bytes) noexcept override;
  void on_moved(void const* source, void const* target, std::size_t bytes) noexcept override;

private:
  static constexpr unsigned max_rings = 64;

  void write_binary(log_ring* ring, binary_trace_row const& row) noexcept;
  void write_memory(trace_action action, void const* pointer, std::size_t bytes, void const* source) noexcept;
  std::uint64_t ticks() const noexcept;
  std::uint64_t ticks_after(log_ring const& ring) const noexcept;
  log_ring* ring_of_thread() noexcept;
  sync::duration passed() const noexcept;
  void append(std::string_view row) noexcept GPUMEM_REQUIRES(mutex_);
  void take_rows(log_ring& ring) noexcept GPUMEM_REQUIRES(mutex_);
  void drain() noexcept GPUMEM_REQUIRES(mutex_);
  void add_clock_row() noexcept GPUMEM_REQUIRES(mutex_);
  binary_trace_row clock_row() const noexcept;
  void keep(std::string_view rows) noexcept GPUMEM_REQUIRES(mutex_);
  void drop_old_rows() noexcept GPUMEM_REQUIRES(mutex_);
  void write_kept() noexcept GPUMEM_REQUIRES(mutex_);
  void write_to_sinks(std::string_view text) noexcept GPUMEM_REQUIRES(mutex_);
  bool flush_sinks() noexcept GPUMEM_REQUIRES(mutex_);
  bool writes_here() const noexcept;
  inline bool keeps() const noexcept { return options_.keep_last > 0; }

  std::vector<log_sink> const sinks_;
  logging_options const options_;
  std::uint64_t const began_; // time of the construction, in microseconds since midnight
  sync::time_point const began_at_;
  bool const counts_cycles_; // the times of rows are the processor's count of cycles, which takes less than the clock
  sync::mutex mutex_;
  std::string gathered_ GPUMEM_GUARDED_BY(mutex_);
  bool failed_ GPUMEM_GUARDED_BY(mutex_) = false;
  std::uint64_t last_clock_ GPUMEM_GUARDED_BY(mutex_) = 0;
  std::vector<binary_trace_row> kept_ GPUMEM_GUARDED_BY(mutex_); // since they were last written, by time
  sync::mutex memory_mutex_;
  std::vector<binary_trace_row> memory_rows_ GPUMEM_GUARDED_BY(memory_mutex_);
  bool lost_memory_row_ GPUMEM_GUARDED_BY(memory_mutex_) = false;
  log_labels labels_;
  std::atomic<void const*> writer_{nullptr}; // while a thread writes to the sinks, the address of its `refused_calls`
  std::array<std::atomic<log_ring*>, max_rings> rings_{}; // by thread index; a ring is made at its thread's first row
};

template <class Upstream> class logging_state final : public adaptor_state<logging_state<Upstream>, Upstream> {
  using base = adaptor_state<logging_state, Upstream>;

public:
  logging_state(Upstream upstream, std::vector<log_sink> sinks, logging_options options)
      : base{std::move(upstream)}, log_{std::move(sinks), options} {
    if (log_.binary() && this->watch_memory(log_, true)) usual_ = served_by::thread_cache;
  }
  ~logging_state() {
    if (usual_ == served_by::thread_cache) this->watch_memory(log_, false);
  }
  allocation_log& log() noexcept { return log_; }

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
    last_served = usual_;
    auto const result = base::try_allocate(key, bytes, alignment);
    if (result) return result;
    if (key.context().ends_if(result.error().reason, this->access().can_wait())) log_.show_kept();
    return result;
  }
  bool set_label(void const* pointer, std::uint32_t label) noexcept {
    bool const named = base::set_label(pointer, label);
    if (named) log_.write_label(pointer, label);
    return named;
  }
  // A request that comes again after a wait has a mark. One that asks for a turn alone has no rows.
  bool admit(waiter& item) noexcept
    requires requires(base& upstream) { upstream.base::admit(item); }
  {
    if (log_.binary() && !item.asks_for_turn() && item.add_hook(*this) && !item.has_passed(*this)) {
      item.mark_passed(*this);
      write(trace_action::wait, item);
    }
    return base::admit(item);
  }
  bool cancel_waiter(waiter& item) noexcept
    requires requires(base& upstream) { upstream.base::cancel_waiter(item); }
  {
    bool const cancelled = base::cancel_waiter(item);
    if (cancelled) on_refusal(item);
    return cancelled;
  }

private:
  friend class adaptor_state<logging_state, Upstream>;
  void write(trace_action action, waiter const& item) noexcept {
    for (std::size_t i = 0; i < item.parts(); ++i) {
      auto const& one = item.part(i);
      if (one.bytes > 0) log_.write(action, key_of(item, one), nullptr, one.bytes);
    }
  }
  void on_grant(waiter const& item, request_part const& part) noexcept override {
    last_served = served_by::turn;
    base::on_grant(item, part);
  }
  void on_refusal(waiter& item) noexcept override {
    if (!log_.binary() || !item.has_passed(*this)) return;
    write(trace_action::refusal, item);
    log_.show_kept();
  }
  void on_granted(stream_key const& key, void* pointer, std::size_t bytes) noexcept {
    log_.write(trace_action::allocate, key, pointer, bytes, last_served);
  }
  void on_free(stream_key const& key, void* pointer, std::size_t bytes) noexcept {
    log_.write(trace_action::free, key, pointer, bytes);
  }
  void on_failure(stream_key const& key, std::size_t bytes) noexcept {
    log_.write(trace_action::allocate_failure, key, nullptr, bytes);
  }

  allocation_log log_;
  served_by usual_ = served_by::unknown; // a pool's allocation whose thread does not set `last_served`
};

} // namespace detail

/// Logs in RMM's format, which trace_reader and gpumem-replay read. Writes a row for each allocation after the
/// upstream has allocated, for each free before the upstream frees, and for each failure. So the row of a free comes
/// before the row of the next allocation at that address. A request that has to wait writes a failure row, and an
/// allocation row when it is granted. Column Thread is the thread id of the system. Column Time is the local time;
/// after midnight its hours go on from 24. Column Stream is the handle of the stream, 0 for allocate_sync and
/// deallocate_sync.
///
/// A binary log (log_format::binary) has the same rows; trace_reader sorts them by time. Threads do not wait for each
/// other. Each thread needs 10 KiB of host memory. Over a pool the log also says how each allocation was served, and
/// has rows of pages and chunks that the pool has at first, gets, moves and gives back. For each block of a request
/// that waits it has a row when the request begins to wait, and one if that ends without memory. The row of an
/// allocation has the name of its scope. A label that the block gets later, through a resource over this adaptor, has a
/// row. A log has at most 65,534 labels; all further ones are "(other labels)".
///
/// Rows reach the sinks when 64 KiB are buffered, at flush(), and when the last handle is gone and the last block is
/// freed. With auto_flush each row reaches them immediately. A sink may call the adaptor; such calls write no rows. A
/// free that the upstream refuses as misuse has a row too. A thread of a binary log adds its
/// rows to those 64 KiB when it has 256. Rows that a sink cannot write are lost; flush() then returns false. A child
/// process after fork() writes nothing. Copies are handles to the same adaptor.
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
