// Writes each allocation and free that goes through a resource as a row of a trace.
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

namespace gpumem {

namespace extend {
/// Where a log goes: a file, which is made anew, or an ostream, which has to outlive the log.
export class log_sink {
public:
  /// Throws std::runtime_error if the file cannot be written.
  log_sink(std::string const& path);
  log_sink(char const* path) : log_sink{std::string{path}} {}
  log_sink(std::ostream& output) noexcept;

  /// The file that the environment variable GPUMEM_LOG_FILE names. Throws std::invalid_argument if it names none.
  static log_sink from_environment();

  std::ostream& output() const noexcept { return *output_; }

private:
  std::shared_ptr<std::ostream> output_;
};
} // namespace extend

namespace detail {

// Rows gather in a fixed buffer, under a lock, so that a row costs no allocation and lines are never mixed.
class allocation_log {
public:
  allocation_log(std::vector<log_sink> sinks, bool auto_flush);
  ~allocation_log();
  allocation_log(allocation_log const&) = delete;
  allocation_log& operator=(allocation_log const&) = delete;

  void write(trace_action action, stream_key const& key, void const* pointer, std::size_t bytes) noexcept;
  // False if a sink has failed.
  bool flush() noexcept;

private:
  void drain() noexcept;
  bool flush_sinks() noexcept;

  std::vector<log_sink> const sinks_;
  bool const auto_flush_;
  std::uint64_t const began_; // microseconds since midnight
  sync::time_point const began_at_;
  sync::mutex mutex_;
  std::string gathered_;
  bool failed_ = false;
};

template <class Upstream> class logging_state final : public adaptor_state<logging_state<Upstream>, Upstream> {
public:
  logging_state(Upstream upstream, std::vector<log_sink> sinks, bool auto_flush)
      : adaptor_state<logging_state, Upstream>{std::move(upstream)}, log_{std::move(sinks), auto_flush} {}
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

/// Logs in RMM's format, which trace_reader and gpumem-replay read: a row for each allocation (after the upstream
/// gave), each free (before the upstream has it) and each failure, in an order in which no address is given twice. A
/// request that has to wait leaves a failure, and a row of its own once it is granted. The column Thread is the
/// system's thread index; Time goes on counting hours after midnight; Stream is the handle, 0 for the `_sync` forms.
///
/// Rows reach the sinks when 64 KiB have gathered, at flush(), when the last handle and block are gone, and at once
/// with auto_flush. Rows that a sink cannot take are lost; flush() tells. A handle; see adaptor_base.
export template <mr::resource Upstream>
class logging_adaptor : public adaptor_base<logging_adaptor<Upstream>, detail::logging_state<Upstream>, Upstream> {
  using state_of = detail::logging_state<Upstream>;
  using base = adaptor_base<logging_adaptor, state_of, Upstream>;

public:
  /// To the file that GPUMEM_LOG_FILE names. Throws as log_sink.
  explicit logging_adaptor(Upstream upstream, bool auto_flush = false)
      : logging_adaptor{std::move(upstream), log_sink::from_environment(), auto_flush} {}

  /// To a file or an ostream.
  logging_adaptor(Upstream upstream, log_sink sink, bool auto_flush = false)
      : logging_adaptor{std::move(upstream), std::vector<log_sink>{std::move(sink)}, auto_flush} {}

  /// To several of them. Throws std::invalid_argument for none.
  logging_adaptor(Upstream upstream, std::vector<log_sink> sinks, bool auto_flush = false)
      : base{new state_of{std::move(upstream), std::move(sinks), auto_flush}} {}

  /// Hands all rows to the sinks and flushes them; false if a sink has failed so far. Any thread.
  bool flush() noexcept { return this->shared().log().flush(); }

  /// The first line of the log.
  static constexpr std::string_view header() noexcept { return trace_header; }
};

} // namespace gpumem
