// The settings that all thread caches of a pool share, and the bytes that they may hold together.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:cache_limits;
import :block;
import :std;

namespace gpumem::detail {

/// The number of freed bytes of a stream after which a free records an event, so that other streams can reuse them.
export class event_threshold {
public:
  /// No free records an event, and freed bytes are not counted: one stream alone uses the pool.
  static constexpr event_threshold never() noexcept { return event_threshold{~std::size_t{0}}; }
  constexpr explicit event_threshold(std::size_t bytes) noexcept : bytes_{bytes} {}
  /// Returns whether freed bytes are counted: more than one stream uses the pool.
  constexpr bool counts_frees() const noexcept { return bytes_ != ~std::size_t{0}; }
  /// Returns the bytes. For never() it is a number that no stream reaches.
  constexpr std::size_t bytes() const noexcept { return bytes_; }

private:
  std::size_t bytes_;
};

/// A budget of bytes for all thread caches of a pool. A cache claims a part of the budget when it needs bytes: mostly
/// 64 KiB, so that threads rarely write to the unclaimed rest at the same time. A cache keeps its claimed bytes until
/// give_back(); so there is a bound for each cache. The lock of a cache guards its share; any thread may read the
/// numbers.
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
    void add(share const& share) noexcept;
  };

  /// Counts `bytes` more bytes of the share as in use, and claims bytes for the share if it has too few. Returns false,
  /// and changes nothing, if the budget has too few bytes left or the share would exceed its bound.
  inline bool charge(share& share, std::size_t bytes) noexcept {
    auto const need = static_cast<std::int64_t>(bytes) - share.allowance;
    if (need > 0) [[unlikely]] {
      if (!claim(share, need)) return false;
    }
    share.allowance -= static_cast<std::int64_t>(bytes);
    return true;
  }
  /// Gives back all claimed bytes of a share, none of which is in use.
  void give_back(share& share) noexcept;

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
  inline std::int64_t claimable(share const& share) const noexcept {
    auto const rest = max_share_.load(std::memory_order_relaxed) - share.claimed.load(std::memory_order_relaxed);
    return std::min(rest, unclaimed());
  }
  [[clang::preserve_most, gnu::visibility("hidden")]] bool claim(share& share, std::int64_t need) noexcept;

  std::int64_t total_ = 0;
  std::atomic<std::int64_t> max_share_{0};
  alignas(64) std::atomic<std::int64_t> unclaimed_{0};
};

/// Says which blocks threads may cache, how many bytes of them, and after how many freed bytes a stream records an
/// event. Any thread may read the settings and take bytes from the budgets.
export class cache_limits {
public:
  /// For each kind of size: the bytes in use by all caches, and the bytes of the budget that caches have claimed but do
  /// not use.
  using usage = std::array<cache_budget::usage, size_class::kinds>;

  /// Sets whether blocks are cached, the budget of each kind in bytes, and what threshold() returns.
  /// One thread gets at most the budget divided by `threads`, both of small and of medium blocks. Called by one thread
  /// at a time.
  void set(bool enabled, std::array<std::size_t, size_class::kinds> const& limits, std::size_t threads,
           event_threshold threshold) noexcept;

  inline bool enabled() const noexcept { return enabled_.load(std::memory_order_relaxed); }
  /// Returns after how many freed bytes of a stream a block is not cached, so that its free can record an event.
  inline event_threshold threshold() const noexcept { return threshold_.load(std::memory_order_relaxed); }
  /// Returns whether work of the device is known to be allowed to use the pool's memory, so that blocks that its
  /// streams free may be cached. `device`: an ordinal; -1: the host.
  inline bool serves(int device) const noexcept {
    return device < 0 || (devices_.load(std::memory_order_relaxed) & bit_of(device)) != 0;
  }
  /// Sets these devices, as a sum of bit_of(). Initially all devices.
  inline void set_devices(std::uint64_t devices) noexcept { devices_.store(devices, std::memory_order_relaxed); }
  inline void add_devices(std::uint64_t devices) noexcept { devices_.fetch_or(devices, std::memory_order_relaxed); }
  /// Returns the bit that stands for a device. All devices from 63 on share one bit.
  static constexpr std::uint64_t bit_of(int device) noexcept { return std::uint64_t{1} << std::min(device, 63); }
  /// Returns the bytes of the largest block that is cached.
  inline std::size_t largest_block() const noexcept { return largest_block_.load(std::memory_order_relaxed); }

  /// Returns the budget of a kind of size.
  inline cache_budget& budget(std::size_t kind) noexcept { return budgets_[kind]; }
  /// Returns whether for each kind the bytes of `sum` and the unclaimed bytes add up to the budget. No thread may
  /// claim bytes meanwhile.
  bool is_balanced(usage const& sum) const noexcept;

  /// Returns whether a cache has called note_exhausted() since the last reset_exhausted().
  inline bool exhausted() const noexcept { return exhausted_.load(std::memory_order_relaxed); }
  /// Notes that a cache has often had no budget for a freed block: other caches use up the budget with blocks that no
  /// request takes.
  inline void note_exhausted() noexcept {
    if (!exhausted()) exhausted_.store(true, std::memory_order_relaxed);
  }
  inline void reset_exhausted() noexcept { exhausted_.store(false, std::memory_order_relaxed); }

private:
  std::atomic<bool> enabled_{false};
  std::atomic<bool> exhausted_{false};
  std::atomic<std::uint64_t> devices_{~std::uint64_t{0}};
  std::atomic<event_threshold> threshold_{event_threshold{0}};
  std::atomic<std::size_t> largest_block_{0};
  std::array<cache_budget, size_class::kinds> budgets_;
};

} // namespace gpumem::detail
