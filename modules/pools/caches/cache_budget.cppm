// The budget of the thread caches of a pool.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:cache_budget;
import :block;
import :std;

namespace gpumem::detail {

/// A budget of bytes for all thread caches of a pool. A cache claims a part of the budget when it needs bytes, mostly
/// `tuning::claimed_bytes` at a time, so that threads rarely write to the unclaimed rest at the same time. A cache
/// keeps its claimed bytes until release(); so there is a bound for each cache. The lock of a cache guards its share;
/// any thread may read the numbers.
export class cache_budget {
public:
  /// The part of the budget that one cache has claimed.
  struct share {
    relaxed_atomic<std::int64_t> allowance; ///< claimed bytes that are not in use
    std::atomic<std::int64_t> claimed{0};   ///< bytes in use and the allowance together
    inline void uncharge(std::size_t bytes) noexcept { allowance += static_cast<std::int64_t>(bytes); }
  };
  /// The sum of shares. If read while threads change them, `in_use` may be too small, but never too large.
  struct usage {
    std::size_t in_use = 0;
    std::int64_t allowance = 0;
    void add(share const& one) noexcept;
  };

  /// Counts `bytes` more bytes of the share as in use, and claims bytes for the share if it has too few. Returns false,
  /// and changes nothing, if the budget has too few bytes left or the share would exceed its bound.
  inline bool charge(share& mine, std::size_t bytes) noexcept {
    auto const need = static_cast<std::int64_t>(bytes) - mine.allowance;
    if (need > 0) [[unlikely]] {
      if (!claim(mine, need)) return false;
    }
    mine.allowance -= static_cast<std::int64_t>(bytes);
    return true;
  }
  /// Gives back all claimed bytes of a share, none of which is in use.
  void release(share& mine) noexcept;

  /// Sets the bytes of the budget, and the most that one share may claim. Bytes that are claimed already stay claimed,
  /// even if they exceed the new numbers. One thread at a time.
  void set_total(std::size_t bytes, std::size_t max_share) noexcept;
  inline std::int64_t unclaimed() const noexcept { return unclaimed_.load(std::memory_order_relaxed); }
  /// Returns whether the bytes in use, the allowances and the unclaimed bytes add up to the total. No thread may claim
  /// bytes during the call.
  inline bool is_balanced(usage const& shares) const noexcept {
    return static_cast<std::int64_t>(shares.in_use) + shares.allowance + unclaimed() == total_;
  }

private:
  inline std::int64_t claimable(share const& mine) const noexcept {
    auto const own = max_share_.load(std::memory_order_relaxed) - mine.claimed.load(std::memory_order_relaxed);
    return std::min(own, unclaimed());
  }
  [[clang::preserve_most, gnu::visibility("hidden")]] bool claim(share& mine, std::int64_t need) noexcept;

  std::int64_t total_ = 0;
  std::atomic<std::int64_t> max_share_{0};
  alignas(64) std::atomic<std::int64_t> unclaimed_{0};
};

} // namespace gpumem::detail
