// The module gpumem.snapshot: a copy of what a pool knows of its memory, written as JSON or in PyTorch's format.
// SPDX-License-Identifier: Apache-2.0
module;
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>
export module gpumem.snapshot;
import gpumem;

export namespace gpumem {

/// The states of a part of a pool's memory: live, free, cached, or pending. A block is pending if it is freed, but a
/// call that still runs, or a later one, completes the free.
using memory_state = detail::memory_state;
/// A block or a free range of a snapshot: `base`, `bytes`, `requested`, `stream`, `age`, `label`, `state`, `in_use` and
/// `begins_region`. `label` is the index of its text in memory_snapshot::labels.
using snapshot_block = detail::copied_block;
/// A page of a snapshot: `base`, `bytes` and `pinned`.
using snapshot_page = detail::copied_page;
/// The counts of a thread cache: `number`, `allocations`, `frees`, and the cached bytes `small`, `medium` and `large`.
using snapshot_cache = detail::copied_cache;
/// A request that waits: `bytes`, `stream`, `priority`, `waited_ns`, and `holder`, the name of its scope.
using snapshot_request = detail::copied_request;

/// A copy of what a pool knows of its memory: `blocks` in the order of their addresses, `pages`, `caches`, `waiting`
/// and `statistics`. The blocks were copied in `pieces` of at most 1,000. Each piece is as the pool was at one moment.
/// Other threads may use the pool between the pieces: `calls_meanwhile` counts their calls. If it is 0 and no call was
/// running, the live blocks have requested as many bytes as the statistics say.
struct memory_snapshot : detail::memory_copy {
  std::string name;                       ///< name of the pool
  int device = -1;                        ///< ordinal of the device; -1: the memory belongs to none
  std::vector<std::string> labels = {""}; ///< the texts of the blocks' labels; the first one is empty
};

/// Copies what a pool knows of its memory. Takes the lock of one shard for at most 1,000 blocks at a time. Only the
/// pages, counts and requests are copied under all locks. In a hardened pool a block includes its guards, and
/// quarantined blocks are live, with the label "(quarantine)". Throws std::bad_alloc. Any thread.
template <class Pool>
  requires requires(Pool const& pool) {
    { pool.copy_memory() } -> std::same_as<detail::memory_copy>;
  }
memory_snapshot take_snapshot(Pool const& pool);

/// Writes a snapshot as a JSON object; the guide's page "Take a snapshot" has the schema. The caller checks the stream
/// for errors.
void write_json(memory_snapshot const& snapshot, std::ostream& stream);

/// Writes a snapshot as the pickle that torch.cuda.memory._dump_snapshot writes, in protocol 2. Each region is a
/// segment. A label is the one frame of its block.
void write_pickle(memory_snapshot const& snapshot, std::ostream& stream);

/// The formats of snapshot files.
enum class snapshot_format : std::uint8_t { json, pickle };

/// Writes a snapshot to a file, in place of an older one. Throws std::runtime_error, with a text that names the file,
/// if it cannot be written.
void write_snapshot(memory_snapshot const& snapshot, std::string const& path,
                    snapshot_format format = snapshot_format::json);

namespace extend {

/// A value of a pickle: None, a truth value, an integer, a number, a text or bytes, a list or tuple, or a dictionary
/// with the text of each key. Copies share a text, a list or a dictionary, and so do the places of a pickle that refer
/// to one. Then all of them together may be far larger than the pickle.
struct pickle_value {
  using list = std::vector<pickle_value>;                              ///< a list or tuple
  using dictionary = std::map<std::string, pickle_value, std::less<>>; ///< values by the text of their key
  std::variant<std::monostate, bool, std::int64_t, double, std::shared_ptr<std::string const>,
               std::shared_ptr<list const>, std::shared_ptr<dictionary const>>
      value; ///< None: monostate

  /// Returns the value of this key. Throws std::invalid_argument if there is none, or this is no dictionary.
  pickle_value const& operator[](std::string_view key) const;
  /// Returns the value if it has this type: bool, std::int64_t, double, std::string, list or dictionary; otherwise
  /// null.
  template <class T> T const* get_if() const noexcept;
  /// Returns the value if it has this type, otherwise throws std::invalid_argument.
  template <class T> T const& as() const;
};

/// Reads a pickle of these values, of protocol 0 to 5. Runs and imports nothing. A pickle that asks for that, or that
/// is malformed, throws std::invalid_argument, whose text says what is wrong at which byte.
pickle_value read_pickle(std::string_view text);

} // namespace extend

/// Returns the snapshot that write_pickle() or PyTorch has written. It has blocks and the sums of their bytes in the
/// statistics. A block's label is its metadata, or the innermost frame of its stack outside PyTorch; only the first 500
/// bytes of a text count. Throws std::invalid_argument.
memory_snapshot snapshot_of_pickle(std::string_view text);

} // namespace gpumem

namespace gpumem::detail {

// Makes a snapshot of a copy: replaces the process's numbers of labels by those of the snapshot.
export memory_snapshot make_snapshot(memory_copy copy, std::string name, int device);
[[noreturn]] void throw_wrong_type();

// Returns the value of this key; null if there is none. Throws std::invalid_argument if `owner` is no dictionary.
export extend::pickle_value const* find_in_pickle(extend::pickle_value const& owner, std::string_view key);
// Returns the number of this key. Throws std::invalid_argument if there is none, or it is no integer from 0.
export std::uint64_t count_in_pickle(extend::pickle_value const& owner, std::string_view key);
// Finds the labels of the blocks and entries of one pickle, which must live meanwhile. Places of the pickle may share a
// stack: its frames are looked at once.
export class pickle_labels {
public:
  // Returns the label of a block, or of an entry of a trace; empty if nothing names it.
  std::string label_of(extend::pickle_value const& block);
  // Returns the number of frames that were looked at.
  std::size_t frames_seen() const noexcept { return frames_seen_; }

private:
  extend::pickle_value const* naming_frame(extend::pickle_value::list const& frames);

  std::map<extend::pickle_value::list const*, extend::pickle_value const*> naming_frames_; // by stack; null: none
  std::size_t frames_seen_ = 0;
};

} // namespace gpumem::detail

namespace gpumem {

template <class Pool>
  requires requires(Pool const& pool) {
    { pool.copy_memory() } -> std::same_as<detail::memory_copy>;
  }
memory_snapshot take_snapshot(Pool const& pool) {
  auto const from = pool.services();
  return detail::make_snapshot(pool.copy_memory(), from.table->name(from.state), from.table->device(from.state));
}

template <class T> T const* extend::pickle_value::get_if() const noexcept {
  if constexpr (std::is_arithmetic_v<T>) {
    return std::get_if<T>(&value);
  } else {
    auto const* const shared = std::get_if<std::shared_ptr<T const>>(&value);
    return shared ? shared->get() : nullptr;
  }
}

template <class T> T const& extend::pickle_value::as() const {
  if (auto const* const held = get_if<T>()) return *held;
  detail::throw_wrong_type();
}

} // namespace gpumem
