// tracking_adaptor: records each live block with its label and stack trace, to find leaks and wrong frees.
// SPDX-License-Identifier: Apache-2.0
module;
#include <deque>
#include <iosfwd>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
export module gpumem:tracking_adaptor;
import :adaptor_base;
import :cuda;
import :error;
import :logging_adaptor;
import :misuse;
import :std;
import :stream;
import :sync;
import :waiter;

namespace gpumem {

/// Options of a tracking_adaptor.
export struct tracking_options {
  std::size_t stack_depth = 16;                       ///< most frames of a stack trace; 0: none, at most 256
  std::size_t freed_remembered = 1024;                ///< last freed blocks, by which a double free is known
  std::optional<extend::log_sink> report_at_end = {}; ///< gets the report when the last handle goes; none: no report
};

/// A live block of a tracking_adaptor.
export struct tracked_block {
  void const* pointer;      ///< start of the block
  std::size_t bytes;        ///< as requested
  std::uint64_t stream;     ///< id; 0: the host
  unsigned thread;          ///< number of the thread that requested it; the number of an ended thread is reused
  std::uint64_t sequence;   ///< number among the adaptor's allocations, from 1
  std::string label;        ///< of the tracking_label that was in force; empty without one
  std::vector<void*> stack; ///< return addresses of the request, the innermost first
};

/// Names the allocations that the calling thread requests from any tracking_adaptor while the label lives. The newest
/// label of a thread is in force. Labels end in the reverse order, on their thread: no coroutine may suspend while it
/// holds one. The text must outlive the label.
export class [[nodiscard]] tracking_label {
public:
  /// Makes this label the one in force on the calling thread.
  explicit tracking_label(std::string_view text) noexcept;
  ~tracking_label();
  tracking_label(tracking_label const&) = delete;
  tracking_label& operator=(tracking_label const&) = delete;

  /// Returns the text of the calling thread's newest label; empty without one.
  static std::string_view current() noexcept;

private:
  std::string_view const text_;
  tracking_label const* const outer_;
};

namespace detail {

// The live blocks, the last freed ones, and the requests that wait. Any thread.
class tracked_blocks {
public:
  // Throws std::invalid_argument.
  explicit tracked_blocks(tracking_options options);

  // Records the request of the calling thread. Returns false if the host has no memory.
  bool add(stream_key const& key, void const* pointer, std::size_t bytes) noexcept;
  // Forgets a block that is freed. Returns false if it reported a misuse: the block must not be freed.
  bool remove(stream_key const& key, void const* pointer, std::size_t bytes) noexcept;

  // For a request that waits: records it and makes room for its blocks; adds one of them; forgets it. prepare() returns
  // false if the host has no memory, and does nothing if the request asks again.
  bool prepare(waiter& item) noexcept;
  void add_prepared(waiter const& item, request_part const& part) noexcept;
  void forget(waiter const& item) noexcept;

  std::vector<tracked_block> outstanding();
  std::string report();
  void report_at_end() noexcept;

private:
  using live_map = std::unordered_map<void const*, tracked_block>;
  using node_list = std::vector<live_map::node_type>;

  // Returns a record of the calling thread's request, in a node that can be inserted without host memory.
  live_map::node_type make_node(stream_key const& key, std::size_t bytes) const;
  void reserve(std::size_t more) __attribute__((requires_capability(mutex_)));
  void insert(live_map::node_type node, void const* pointer) noexcept __attribute__((requires_capability(mutex_)));
  void remember(tracked_block const& block, stream_key const& key) noexcept
      __attribute__((requires_capability(mutex_)));
  struct freed_block {
    block_event allocation, free;
  };
  tracking_options const options_;
  sync::mutex mutex_;
  live_map live_ __attribute__((guarded_by(mutex_)));
  std::deque<freed_block> freed_ __attribute__((guarded_by(mutex_))); // the oldest first
  std::unordered_map<waiter const*, node_list> waiting_ __attribute__((guarded_by(mutex_)));
  std::size_t prepared_ __attribute__((guarded_by(mutex_))) = 0; // nodes in waiting_
  std::uint64_t allocations_ __attribute__((guarded_by(mutex_))) = 0;
};

template <class Upstream> class tracking_state final : public adaptor_state<tracking_state<Upstream>, Upstream> {
  using base = adaptor_state<tracking_state, Upstream>;

public:
  tracking_state(Upstream upstream, tracking_options options)
      : base{std::move(upstream)}, blocks_{std::move(options)} {}

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
    auto const result = base::try_allocate(key, bytes, alignment);
    if (!result || blocks_.add(key, *result, bytes)) return result;
    base::deallocate(key, *result, bytes, alignment);
    return unexpected<failure>{failure{outcome::exhausted, 0, bytes}};
  }
  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept {
    if (blocks_.remove(key, pointer, bytes)) base::deallocate(key, pointer, bytes, alignment);
  }

  bool admit(waiter& item) noexcept
    requires requires(base& b) { b.admit(item); }
  {
    if (!blocks_.prepare(item)) return false;
    if (base::admit(item)) return true;
    blocks_.forget(item);
    return false;
  }
  bool cancel_waiter(waiter& item) noexcept
    requires requires(base& b) { b.cancel_waiter(item); }
  {
    if (!base::cancel_waiter(item)) return false;
    blocks_.forget(item);
    return true;
  }

  tracked_blocks& blocks() noexcept { return blocks_; }

private:
  friend class adaptor_state<tracking_state, Upstream>;
  void on_grant(waiter const& item, request_part const& part) noexcept override {
    blocks_.add_prepared(item, part);
    base::on_grant(item, part);
  }
  void on_refusal(waiter& item) noexcept override { blocks_.forget(item); }
  void on_last_handle() noexcept override { blocks_.report_at_end(); }
  void on_granted(stream_key const&, void*, std::size_t) noexcept {}
  void on_free(stream_key const&, void*, std::size_t) noexcept {}
  void on_failure(stream_key const&, std::size_t) noexcept {}

  tracked_blocks blocks_;
};

} // namespace detail

/// Records each live block with the label, the thread and the stack trace of its request. It checks each free. Frees of
/// foreign pointers, second frees and frees with a wrong size go to the misuse handler, not to the upstream. For
/// debugging: an allocation costs microseconds, most of them for the stack trace, and each call takes one lock.
///
/// A request that waits is recorded where it was made, not where it is granted. If the host has no memory for the
/// record, the request fails as `exhausted`. A handle; see adaptor_base. Any thread.
export template <class Upstream>
class tracking_adaptor : public adaptor_base<tracking_adaptor<Upstream>, detail::tracking_state<Upstream>, Upstream> {
  using base = adaptor_base<tracking_adaptor, detail::tracking_state<Upstream>, Upstream>;

public:
  /// Throws std::invalid_argument for a stack_depth above 256, and std::bad_alloc.
  explicit tracking_adaptor(Upstream upstream, tracking_options options = {})
      : base{new detail::tracking_state<Upstream>{std::move(upstream), std::move(options)}} {}

  /// Returns the live blocks in order of their allocation. Throws std::bad_alloc. Any thread.
  std::vector<tracked_block> outstanding() const { return this->shared().blocks().outstanding(); }

  /// Returns a text that lists the live blocks: those of one label and one stack trace together, with their number and
  /// bytes, the most bytes first. Throws std::bad_alloc. Any thread.
  std::string report() const { return this->shared().blocks().report(); }
};

} // namespace gpumem
