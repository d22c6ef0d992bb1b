// Bytes that threads may keep together.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:cache_budget;
import :relaxed_atomic;
import :std;

namespace gpumem::detail {

/// So many bytes, of which each thread takes a part when it needs one: in quanta, so that threads rarely meet at what
/// is left, and not beyond its share, since what a part has taken it keeps. Parts belong to the holders of their locks;
/// any thread reads what they count.
export class cache_budget {
public:
  struct share {
    relaxed_atomic<std::int64_t> allowance; ///< taken, and not in use
    std::atomic<std::int64_t> claimed{0};   ///< for what is in use or may be
    inline void uncharge(std::size_t bytes) noexcept { allowance += static_cast<std::int64_t>(bytes); }
  };
  /// What parts have, as one finds it while threads go on: never more in use than is.
  struct usage {
    std::size_t in_use = 0;
    std::int64_t allowance = 0;
    void add(share const& one) noexcept;
  };

  /// From now on so many are in use; false: there is not so much.
  inline bool charge(share& mine, std::size_t bytes) noexcept {
    auto const need = static_cast<std::int64_t>(bytes) - mine.allowance;
    if (need > 0) [[unlikely]] {
      if (!claim(mine, need)) return false;
    }
    mine.allowance -= static_cast<std::int64_t>(bytes);
    return true;
  }
  /// Nothing of a part is in use any more.
  void release(share& mine) noexcept;

  /// In all, bytes, and of these at most for one part; what is in use beyond stays. One thread at a time.
  void set_total(std::size_t bytes, std::size_t max_share) noexcept;
  inline std::int64_t unclaimed() const noexcept { return unclaimed_.load(std::memory_order_relaxed); }
  /// What is in use, in reserve and left is the total. While nobody takes any.
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
