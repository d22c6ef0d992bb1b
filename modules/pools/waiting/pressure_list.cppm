// The functions of a pool that free memory for requests that wait.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:pressure_list;
import :pressure_call;
import :std;

namespace gpumem::detail {

/// The functions of one pool, guarded by the locks of all shards. A function is called when requests have begun to wait
/// since its last call, and as long as calls of it free memory.
export class pressure_list {
public:
  /// Throws std::bad_alloc.
  void add(pressure_call& item) { calls_.push_back(&item); }
  void remove(pressure_call& item) noexcept;
  void on_park() noexcept { ++parks_; }
  /// Whether one runs, or is due.
  bool pending() const noexcept;
  /// Whether one is due.
  bool due() const noexcept;
  /// Returns a function that is due, and marks it as begun; null if none is due.
  pressure_call* begin_next() noexcept;
  /// Notes that a function begins, and that it has ended. The count of changes shows whether it really freed memory.
  void on_begin(pressure_call& item, std::size_t wanted, std::uint64_t change_count) noexcept;
  void on_end(pressure_call& item, std::size_t freed, std::uint64_t change_count) noexcept;

private:
  inline bool is_due(pressure_call const& item) const noexcept {
    return !item.busy_ && (item.freed_some_ || item.parks_ != parks_);
  }
  std::vector<pressure_call*> calls_;
  std::uint64_t parks_ = 0;
};

} // namespace gpumem::detail
