// The quarantine of a hardened pool, which checks the blocks that leave it.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:quarantine;
import :block;
import :cuda;
import :cuda_resource;
import :device;
import :guarded_blocks;
import :pool_parts;
import :std;
import :stream;
import :stream_timeline;

namespace gpumem::detail {

/// Freed blocks, first in, first out. A block leaves after the host has seen its uses complete and has checked its
/// bytes. If the host cannot touch the memory, the quarantine copies the bytes for the check, on a stream of its own.
/// No call waits for the device. Only the constructor and `streams_in_use` allocate memory. The caller holds the lock
/// of the `hardening` object that owns the quarantine.
export class quarantine {
public:
  /// `device`: the device of the memory; nullopt if only the host can touch the memory. `by_host`: whether the host can
  /// touch the memory. Throws what the constructors of stream and pinned_resource throw, and
  /// pinned_resource::allocate_sync().
  quarantine(std::optional<device> device, bool by_host, guard_layout const& layout);
  quarantine(quarantine const&) = delete;
  quarantine& operator=(quarantine const&) = delete;
  ~quarantine();

  /// Returns the sum of the sizes of the blocks in quarantine, with their guards.
  inline std::size_t bytes() const noexcept { return bytes_; }

  void put(guarded_block& guarded) noexcept;

  /// Polls the streams that use the oldest blocks. Poisons those blocks whose uses are complete and that are not
  /// poisoned yet. While more than `keep` bytes are in quarantine, checks the oldest complete blocks and removes them.
  /// Returns the removed blocks, linked by `next`, with their reports. `asking`: the stream of the caller's request, on
  /// which an event may be recorded; null if there is none.
  guarded_block* advance(stream_key const* asking, std::size_t keep) noexcept;
  /// Removes and returns all blocks without a check. Called when the driver has ended, or when the pool ends on a lost
  /// device.
  guarded_block* give_up() noexcept;

  /// Returns whether a later advance() may remove blocks: a block is complete, is being copied for its check, or
  /// polling can show that a use of it is complete.
  bool may_advance() const noexcept;
  /// Returns the streams with open uses of blocks in quarantine, each stream once. If `without_event`, returns only
  /// streams with a use that no event covers; polling cannot complete such a use. Throws std::bad_alloc.
  std::vector<stream_timeline*> streams_in_use(bool without_event) const;

  /// For a block that was allocated without a stream: enqueues the fill of its guards on the quarantine's own stream.
  /// The fill is safe because the host has seen all earlier uses of such a block complete.
  void fill_guards_alone(guarded_block& fresh) noexcept;

private:
  struct list {
    guarded_block* first = nullptr;
    guarded_block* last = nullptr;
    void push(guarded_block& item) noexcept;
    guarded_block* pop() noexcept;
    void prepend(list& list) noexcept;
  };

  static void poll(stream_use const& use, stream_key const* asking) noexcept;
  void poll(list const& oldest, stream_key const* asking) noexcept;
  void poison(guarded_block& complete) noexcept;
  void poison_complete() noexcept;
  void take_complete(std::size_t keep, list& list) noexcept;
  bool send(guarded_block& outgoing) noexcept;
  void end_sending(list& list) noexcept;
  epoch record_epoch() noexcept;

  guard_layout const layout_;
  bool const by_host_;
  std::optional<stream> copy_stream_; // for copies, and for fills that no stream of a caller can do
  std::optional<pinned_resource> pinned_;
  char* staging_ = nullptr;
  std::size_t staging_bytes_ = 0;

  list unpoisoned_; // blocks to poison once their uses are complete; they then move to kept_
  list kept_;
  list sent_; // blocks whose bytes are being copied to the host for the check
  std::size_t bytes_ = 0;
  std::size_t sent_bytes_ = 0;
  std::size_t staged_ = 0; // number of bytes of the staging memory in use
  // An epoch of `copy_stream_`: once it is complete, all copies of `sent_` have ended. 0: no epoch is recorded for them
  // yet.
  epoch sent_until_ = 0;
};

} // namespace gpumem::detail
