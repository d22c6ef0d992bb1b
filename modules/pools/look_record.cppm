// What looks for completion have come to.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:look_record;
import :std;

namespace gpumem::detail {

/// What one look has come to.
export struct look {
  unsigned asked = 0; ///< streams whose events were queried
  unsigned early = 0; ///< of these: at long work, so that the next look will come too early too
};

/// The looks of a shard for what the device has completed, each of which costs some driver calls for every stream.
/// Guarded by the shard's lock.
export class look_record {
public:
  /// `now`: locked calls of the shard so far. A look that asked nobody cost nothing.
  inline void note(look const& at, std::uint64_t now) noexcept {
    if (at.asked == 0) return;
    at_work_ = at.early ? std::min(at_work_ + at.early, most) : at_work_ / 2;
    if (often(now)) {
      pause_ = shortest_pause; // it was made all the same: what the pause saves is little
    } else if (now - std::max(last_, paused_till_) > longest_pause) {
      in_succession_ = 0; // of what came long ago nothing follows
    }
    in_succession_ = now - last_ <= soon ? in_succession_ + 1 : in_succession_ / 2;
    last_ = now;
    if (in_succession_ == 0) pause_ = shortest_pause;
    if (in_succession_ >= many) begin_pause(now);
  }
  /// They came one soon after the other, so that for a while none is worth what it costs.
  inline bool often(std::uint64_t now) const noexcept { return now < paused_till_; }
  /// They have lately found streams at long work: memory of others is dear.
  inline bool at_work() const noexcept { return at_work_ >= many; }
  /// There is other memory now.
  inline void note_growth() noexcept { at_work_ /= 2; }
  /// There is none, whatever looks cost.
  inline void note_refusal() noexcept {
    at_work_ = in_succession_ = 0;
    pause_ = shortest_pause;
    paused_till_ = 0;
  }

  /// Whether one for a better fit only is to be left out. After some of which nothing came, or that came too early, the
  /// next are, ever more.
  inline bool leave_out() noexcept {
    if (to_leave_out_ == 0) return false;
    --to_leave_out_;
    return true;
  }
  inline void note_better_fit(bool of_use) noexcept {
    in_vain_ = of_use ? 0 : std::min(2 * in_vain_ + 1, most_left_out);
    to_leave_out_ = in_vain_;
  }

private:
  // Fewer make a pool on 16 streams of short kernels no faster, more keep it slow for longer.
  static constexpr unsigned many = 8;
  static constexpr unsigned most = 4 * many;
  static constexpr unsigned most_left_out = 255;
  static constexpr std::uint64_t soon = 64, shortest_pause = 1024, longest_pause = 1 << 16; // locked calls

  // Two that come soon after each other when it is over begin the next, which is twice as long: where they come as
  // often as ever, to learn that again took 16 streams of short kernels a twentieth of their time.
  inline void begin_pause(std::uint64_t now) noexcept {
    in_succession_ = 2 * (many - 1);
    if (often(now)) return;
    paused_till_ = now + pause_;
    pause_ = std::min(2 * pause_, longest_pause);
  }

  unsigned at_work_ = 0;
  unsigned in_succession_ = 0;
  std::uint64_t pause_ = shortest_pause; // the next; locked calls
  std::uint64_t paused_till_ = 0;        // so many locked calls
  unsigned in_vain_ = 0;
  unsigned to_leave_out_ = 0;
  std::uint64_t last_ = 0;
};

} // namespace gpumem::detail
