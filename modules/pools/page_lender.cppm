// page_lender: lends pages of a pool to a borrower, which maps them at addresses of its own.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <utility>
export module gpumem:page_lender;
import :cuda;
import :device;
import :error;
import :pool_resource;
import :pool_shard;
import :range_search;
import :resource;
import :shared_state;
import :std;
import :stream;
import :waiter;

namespace gpumem::detail {

/// The addresses of one borrower. Closed when no page_lender and no loan is left.
export class lending_state final : public shared_state {
public:
  lending_state(pool_state& pool, std::size_t bytes, std::size_t page)
      : shared_state{false}, pool_{&pool}, range_{pool.engine().open_range(bytes)}, page_{page} {}

  /// Lends pages in a hole of the range, or after its mapped addresses.
  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
    auto const lent = lend_at(std::nullopt, key, bytes, alignment);
    bool const exhausted = !lent && lent.error().reason == outcome::exhausted;
    return exhausted && free_kept(key) ? lend_at(std::nullopt, key, bytes, alignment) : lent;
  }
  /// Lends pages at the offset, where none is lent. Free pages that are still mapped there are lent again. Takes
  /// nothing from the quarantine of a hardened pool: see free_kept().
  expected<void*, failure> lend_at(std::optional<std::size_t> offset, stream_key const& key, std::size_t bytes,
                                   std::size_t alignment) noexcept {
    return lend_at(offset, key, bytes, alignment, page_);
  }
  expected<void*, failure> lend_at(std::optional<std::size_t> offset, stream_key const& key, std::size_t bytes,
                                   std::size_t alignment, std::size_t page) noexcept;
  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t) noexcept;
  /// Divides a loan into two, of which the lower one has `bytes`, whole pages of the smallest size. Each is then freed
  /// alone. Throws std::bad_alloc.
  void divide(void* pointer, std::size_t bytes) {
    pool_->engine().divide(pointer, bytes);
    add_live();
  }
  std::optional<class device> where() noexcept { return pool_->where(); }
  /// Returns whether work of the stream may use the pages.
  bool serves_stream(stream_key const& key) noexcept { return pool_->serves_stream(key); }
  /// Frees blocks that a hardened pool keeps, for a loan that was refused; see block_calls.
  bool free_kept(stream_key const& key) noexcept { return pool_->free_kept(key); }
  bool admit(waiter& item) noexcept;
  /// Parks a request, and calls `attempt()` in its turns.
  template <class Attempt> bool admit_with(waiter& item, Attempt attempt) noexcept {
    return pool_->admit_with(item, attempt);
  }
  bool cancel_waiter(waiter& item) noexcept { return pool_->cancel_waiter(item); }
  /// Wakes the requests that lack nothing any more; see waiter::set_lack().
  void wake_satisfied() noexcept { pool_->engine().requests().wake_satisfied(); }
  statistics read_statistics() { return pool_->read_statistics(); }
  inline char const* resource_name() noexcept { return pool_->resource_name(); }
  inline void* base() const noexcept { return range_.pages.base(); }
  inline std::size_t address_space() const noexcept { return range_.pages.address_space(); }
  inline std::size_t granularity() const noexcept { return range_.pages.granularity(); }
  inline bool set_label(void const* pointer, std::uint32_t label) noexcept {
    return pool_->engine().set_label(pointer, label);
  }

private:
  ~lending_state() override { pool_->engine().close_range(range_); }

  state_ptr<pool_state> pool_;
  address_range& range_;
  std::size_t const page_;
};

/// A resource that lends pages of a pool, for objects that need memory at addresses of their own, such as buffers that
/// grow in place. A loan is a block of whole pages in the lender's address range. It waits in the pool's queue as other
/// requests do, and counts in the pool's limit and statistics. Its free is in the order of a stream. Once all its uses
/// are complete, the pool takes the pages back, as it does with other free memory; until then they stay mapped. A copy
/// is the same lender. Any thread.
export class page_lender : public resource_base<page_lender, lending_state, mr::device_accessible> {
public:
  /// Reserves `bytes` bytes of addresses. `page`: the size of the pages, a multiple of the granularity; 0: the size
  /// follows from the pool's memory. `pool`: a pool over pages. Throws std::invalid_argument, cuda_error and
  /// std::bad_alloc.
  template <class Pool>
  page_lender(Pool const& pool, std::size_t bytes, std::size_t page = 0)
      : state_{new lending_state{*static_cast<pool_state*>(pool.services().state), bytes, page}} {}

  /// Returns the first reserved address.
  void* base() const noexcept { return state_->base(); }
  /// Returns the reserved addresses, in bytes.
  std::size_t address_space() const noexcept { return state_->address_space(); }
  /// Returns pages at the offset from base(), where none is lent. Does not wait on the host. Work of the stream may use
  /// them immediately: if pages that were freed there are still in use by other streams, the stream waits for these on
  /// the device. If it cannot, fails with outcome::exhausted.
  expected<void*, failure> try_allocate_at(stream_ref stream, std::size_t offset, std::size_t bytes) noexcept;

  lending_state& state() const noexcept { return *state_; }
  friend bool operator==(page_lender const& a, page_lender const& b) noexcept { return a.state_ == b.state_; }

private:
  state_ptr<lending_state> state_;
};

} // namespace gpumem::detail
