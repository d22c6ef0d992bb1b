// The quarantine of a hardened pool: keeps freed blocks from reuse for a while, then checks them.
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

/// First in, first out. A block leaves after the host has seen its uses complete and has checked it. Memory that the
/// host cannot touch is copied for the check, on a stream of the quarantine's own. No call waits for the device; only
/// `streams_in_use` allocates memory. Guarded by the lock of the `hardening` that owns it.
export class quarantine {
public:
  /// `where`: the device of the memory; nullopt if only the host can touch it. `by_host`: the host can touch it.
  /// Throws what the constructors of stream and pinned_resource throw, and pinned_resource::allocate_sync().
  quarantine(std::optional<device> where, bool by_host, guard_layout const& layout);
  quarantine(quarantine const&) = delete;
  quarantine& operator=(quarantine const&) = delete;
  ~quarantine();

  /// Returns the bytes of the blocks in quarantine, with their guards.
  inline std::size_t bytes() const noexcept { return bytes_; }

  void put(guarded_block& freed) noexcept;

  /// Polls, poisons and checks complete blocks, and removes the oldest ones while more than `keep` bytes are in
  /// quarantine. Returns the removed blocks, linked by `next`, with their reports. `asking`: the stream of the call;
  /// may be null.
  guarded_block* advance(stream_key const* asking, std::size_t keep) noexcept;
  /// Removes and returns all blocks unchecked: for a lost device, or after the driver's end.
  guarded_block* give_up() noexcept;

  /// Returns whether a later advance() may get further: a block is complete, or polling can show that one is.
  bool may_advance() const noexcept;
  /// Returns the streams with uses of blocks in quarantine that are not complete, each once; with `without_event` only
  /// those with a use that no event covers. Throws std::bad_alloc.
  std::vector<stream_timeline*> streams_in_use(bool without_event) const;

  /// Fills the guards of a block that was allocated without a stream, on the quarantine's own stream. The host has seen
  /// all earlier uses of the memory complete.
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
  std::optional<stream> own_; // for copies, and for fills that no stream of a call can do
  std::optional<pinned_resource> pinned_;
  char* staging_ = nullptr;
  std::size_t staging_bytes_ = 0;

  list unpoisoned_; // to be poisoned when they are complete; then they go to kept_
  list kept_;
  list sent_; // being copied to the host for the check
  std::size_t bytes_ = 0;
  std::size_t sent_bytes_ = 0;
  std::size_t staged_ = 0; // bytes of the staging memory in use
  epoch sent_until_ = 0;
};

} // namespace gpumem::detail
