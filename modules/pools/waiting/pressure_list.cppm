// The pressure callbacks of a pool.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:pressure_list;
import :pressure_call;
import :shard_roles;
import :std;

namespace gpumem::detail {

/// The pressure callbacks of one pool, guarded by the locks of all shards. A callback is due if requests have begun to
/// wait since its last run, or if that run freed memory.
export class pressure_list {
public:
  /// Throws std::bad_alloc.
  [[clang::requires_capability(all_shards)]] void add(pressure_call& item) { calls_.push_back(&item); }
  [[clang::requires_capability(all_shards)]] void remove(pressure_call& item) noexcept;
  [[clang::requires_capability(all_shards)]] void on_park() noexcept { ++parks_; }
  /// Returns whether a function runs or is due.
  [[clang::requires_shared_capability(all_shards)]] bool pending() const noexcept;
  /// Returns whether a function is due.
  [[clang::requires_shared_capability(all_shards)]] bool due() const noexcept;
  /// Returns a function that is due, and marks it as begun; null if none is due.
  [[clang::requires_capability(all_shards)]] pressure_call* begin_next() noexcept;
  /// on_begin() notes that a run of the function begins, on_end() that it has ended. With 0 wanted bytes the function
  /// does not run, and stays due. `change_count`: the pool's count of changes, which grows with each free. If the count
  /// has not grown during the run, the function freed nothing in this pool.
  [[clang::requires_capability(all_shards)]] void on_begin(pressure_call& item, std::size_t wanted,
                                                           std::uint64_t change_count) noexcept;
  [[clang::requires_capability(all_shards)]] void on_end(pressure_call& item, std::size_t freed,
                                                         std::uint64_t change_count) noexcept;

private:
  [[clang::requires_shared_capability(all_shards)]] inline bool is_due(pressure_call const& item) const noexcept {
    return !item.busy_ && (item.freed_some_ || item.parks_ != parks_);
  }
  std::vector<pressure_call*> calls_ __attribute__((guarded_by(all_shards)));
  std::uint64_t parks_ __attribute__((guarded_by(all_shards))) = 0;
};

} // namespace gpumem::detail
