// Freed blocks of a hardened pool: kept from reuse for a while, then looked at.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:quarantine;
import :cuda;
import :device;
import :fill_pattern;
import :guarded_block;
import :pinned_resource;
import :std;
import :stream;
import :stream_timeline;
import :stream_uses;

namespace gpumem::detail {

/// First in, first out. What leaves has been seen complete by the host and has been looked at: where the host cannot
/// see it, by copies on a stream of the quarantine's own. Nothing here waits for the device, or allocates but for
/// `streams_in_use`. Guarded by the lock of the pool that keeps it.
export class quarantine {
public:
  /// `where`: the device whose memory it is, none where only the host can touch it; `by_host`: the host can touch it.
  /// Throws what a stream and page-locked memory throw.
  quarantine(std::optional<device> where, bool by_host, guard_layout const& layout);
  quarantine(quarantine const&) = delete;
  quarantine& operator=(quarantine const&) = delete;
  ~quarantine();

  /// With guards and all. Of what has not been taken out.
  inline std::size_t bytes() const noexcept { return bytes_; }

  void put(guarded_block& freed) noexcept;

  /// Does what can be done now: polls, looks at what is complete, and takes out the oldest blocks while more than
  /// `keep` bytes are there; linked by `next`, each with its findings. `asking`: the stream of the call, if any.
  guarded_block* advance(stream_key const* asking, std::size_t keep) noexcept;
  /// Takes out everything as it is: on a device that is lost, or without a driver.
  guarded_block* give_up() noexcept;

  /// Whether a later `advance` may get further: a block is complete, or polling can show that a use of a block is.
  bool may_advance() const noexcept;
  /// Streams that keep blocks in here, only those without events if asked. Throws std::bad_alloc.
  std::vector<stream_timeline*> streams_in_use(bool without_event) const;

  /// Paints the guards of a block that no stream was given for, which the host has seen unused.
  void fill_guards_alone(guarded_block& fresh) noexcept;

private:
  struct list {
    guarded_block* first = nullptr;
    guarded_block* last = nullptr;
    void push(guarded_block& item) noexcept;
    guarded_block* pop() noexcept;
    void prepend(list& others) noexcept;
  };

  static void poll(stream_use const& use, stream_key const* asking) noexcept;
  void poll(list const& oldest, stream_key const* asking) noexcept;
  void poison(guarded_block& complete) noexcept;
  void poison_complete() noexcept;
  void take_complete(std::size_t keep, list& out) noexcept;
  bool send(guarded_block& outgoing) noexcept;
  void finish_sending(list& out) noexcept;
  epoch record_epoch() noexcept;

  guard_layout const layout_;
  bool const by_host_;
  std::optional<stream> own_; // on which is filled and copied what no call's stream can
  std::optional<pinned_resource> pinned_;
  char* staging_ = nullptr;
  std::size_t staging_bytes_ = 0;

  list unpoisoned_; // to be filled when they are complete, and then kept
  list kept_;
  list sent_; // being copied
  std::size_t bytes_ = 0;
  std::size_t sent_bytes_ = 0;
  std::size_t staged_ = 0; // bytes of staging taken
  epoch sent_until_ = 0;
};

} // namespace gpumem::detail
