// tracking_adaptor: records each live block with its label and stack trace, to find leaks and wrong frees.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
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
  std::size_t stack_depth = 16;                       ///< frames of a stack trace, at most 256; 0: no stack traces
  std::size_t freed_remembered = 1024;                ///< number of freed blocks kept, to recognize double frees
  std::optional<extend::log_sink> report_at_end = {}; ///< gets a report when the last handle is gone; none: no report
};

/// A live block of a tracking_adaptor.
export struct tracked_block {
  void const* pointer;      ///< start of the block
  std::size_t bytes;        ///< requested bytes
  std::uint64_t stream;     ///< id of the stream; 0: the host
  unsigned thread;          ///< index of the requesting thread; later threads may reuse it
  std::uint64_t sequence;   ///< number of the allocation among those of the adaptor, from 1
  std::string label;        ///< text of the tracking_label in force at the request; empty without a label
  std::vector<void*> stack; ///< return addresses of the request, the innermost first
};

/// Labels all allocations that the calling thread requests from any tracking_adaptor while this object lives. If a
/// thread has several labels, the newest one counts. Labels must be destroyed in the reverse order of their
/// construction and on their own thread. So a coroutine must not suspend while it holds a label. The text must outlive
/// the label.
export class [[nodiscard]] tracking_label {
public:
  /// Makes this label the newest one of the calling thread.
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

// Records of the live blocks, of the last freed blocks, and of the requests that wait. Any thread.
class tracked_blocks {
public:
  // Throws std::invalid_argument for a stack_depth above 256.
  explicit tracked_blocks(tracking_options options);

  // Records a block that the calling thread has requested. Returns false if the host has no memory for the record.
  bool add(stream_key const& key, void const* pointer, std::size_t bytes) noexcept;
  // Checks a free and forgets the block. If the free is wrong, reports a misuse and returns false: the block must not
  // be freed.
  bool remove(stream_key const& key, void const* pointer, std::size_t bytes) noexcept;

  // These three functions are for requests that wait. prepare() makes a record for each block of the request. It
  // returns false if the host has no memory for the records. A second call for the same request does nothing and
  // returns true. add_prepared() turns one of these records into the record of a live block. forget() deletes the
  // records of a request that ends without memory.
  bool prepare(waiter& item) noexcept;
  void add_prepared(waiter const& item, request_part const& part) noexcept;
  void forget(waiter const& item) noexcept;

  std::vector<tracked_block> outstanding();
  std::string report();
  void report_at_end() noexcept;

private:
  using live_map = std::unordered_map<void const*, tracked_block>;
  using node_list = std::vector<live_map::node_type>;

  // Makes a record of a request by the calling thread. The record is a node of the map, so that its later insertion
  // allocates no host memory.
  live_map::node_type make_node(stream_key const& key, std::size_t bytes) const;
  void reserve(std::size_t more) GPUMEM_REQUIRES(mutex_);
  void insert(live_map::node_type node, void const* pointer) noexcept GPUMEM_REQUIRES(mutex_);
  void remember(tracked_block const& block, stream_key const& key) noexcept GPUMEM_REQUIRES(mutex_);
  struct freed_block {
    block_event allocation, free;
  };
  tracking_options const options_;
  sync::mutex mutex_;
  live_map live_ GPUMEM_GUARDED_BY(mutex_);
  std::deque<freed_block> freed_ GPUMEM_GUARDED_BY(mutex_); // the first element is the oldest
  std::unordered_map<waiter const*, node_list> waiting_ GPUMEM_GUARDED_BY(mutex_);
  std::size_t prepared_ GPUMEM_GUARDED_BY(mutex_) = 0; // number of nodes in waiting_
  std::uint64_t allocations_ GPUMEM_GUARDED_BY(mutex_) = 0;
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
  void on_grant(waiter const& item, request_part const& part) noexcept override {
    blocks_.add_prepared(item, part);
    base::on_grant(item, part);
  }
  void on_refusal(waiter& item) noexcept override { blocks_.forget(item); }
  void on_last_handle() noexcept override { blocks_.report_at_end(); }

  tracked_blocks blocks_;
};

} // namespace detail

/// Records each live block with the label, the thread and the stack trace of its request. It checks each free. A free
/// of a foreign pointer, a double free, or a free with a wrong size goes to the misuse handler, not to the upstream. It
/// is for debugging: an allocation costs microseconds, most of them for the stack trace, and each call takes one lock.
///
/// For a request that waits, the record shows where the request was made, not where it was granted. If the host has no
/// memory for the record, the request fails as `exhausted`. Copies are handles to the same adaptor; see adaptor_base.
/// Any thread.
export template <class Upstream>
class tracking_adaptor : public adaptor_base<tracking_adaptor<Upstream>, detail::tracking_state<Upstream>, Upstream> {
  using base = adaptor_base<tracking_adaptor, detail::tracking_state<Upstream>, Upstream>;

public:
  /// Throws std::bad_alloc, and std::invalid_argument for a stack_depth above 256.
  explicit tracking_adaptor(Upstream upstream, tracking_options options = {})
      : base{new detail::tracking_state<Upstream>{std::move(upstream), std::move(options)}} {}

  /// Returns the live blocks in order of their allocation. Throws std::bad_alloc. Any thread.
  std::vector<tracked_block> outstanding() const { return this->shared().blocks().outstanding(); }

  /// Returns a text that lists the live blocks. Blocks with the same label and stack trace form one group, which shows
  /// their number and bytes. The group with the most bytes comes first. Throws std::bad_alloc. Any thread.
  std::string report() const { return this->shared().blocks().report(); }
};

} // namespace gpumem
