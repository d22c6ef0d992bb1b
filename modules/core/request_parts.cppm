// The parts of one request for memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <utility>
export module gpumem:request_parts;
import :error;
import :std;
import :stream;

namespace gpumem::extend {

/// The request for one block. There are also requests for a turn, which ask for no memory. Such a request waits until
/// the resource has set bytes aside for it.
export struct request_part {
  stream_key stream;       ///< the stream in whose order the memory is valid
  std::size_t bytes;       ///< the requested bytes; 0 in a request for a turn
  std::size_t alignment;   ///< the alignment of the memory, in bytes; a power of two
  void* pointer = nullptr; ///< the memory; set when the part is granted
};

/// The parts of one request, which gets all of them or none. There is one part, unless acquire_all made the request.
export class request_parts {
public:
  request_parts(request_parts const&) = delete;
  request_parts& operator=(request_parts const&) = delete;

  /// Returns the stream of the first part.
  inline stream_key const& stream() const noexcept { return first_.stream; }
  /// Returns the alignment of the first part, in bytes.
  inline std::size_t alignment() const noexcept { return first_.alignment; }
  /// Returns the sum of the bytes of all parts; in a request for a turn, the bytes to set aside.
  inline std::size_t bytes() const noexcept { return bytes_; }
  /// Returns the sum of `round(part)` of all parts that ask for bytes; at most PTRDIFF_MAX.
  template <class Round> std::size_t bytes_by(Round round) const noexcept {
    std::size_t total = 0;
    for (std::size_t i = 0; i < parts(); ++i) {
      if (part(i).bytes > 0) total += std::min<std::size_t>(round(part(i)), PTRDIFF_MAX - total);
    }
    return total;
  }
  /// Returns whether there is more than one part.
  inline bool has_parts() const noexcept { return !more_.empty(); }
  /// Returns the number of parts.
  inline std::size_t parts() const noexcept { return 1 + more_.size(); }
  /// Returns the part number `i`, from 0.
  inline request_part& part(std::size_t i) noexcept { return i == 0 ? first_ : more_[i - 1]; }
  inline request_part const& part(std::size_t i) const noexcept { return i == 0 ? first_ : more_[i - 1]; }
  /// Returns whether this is a request for a turn: it asks for no memory, but waits until bytes() are set aside for it.
  inline bool asks_for_turn() const noexcept { return first_.bytes == 0 && bytes_ > 0 && more_.empty(); }

  /// Allocates all parts or none. A resource calls this in its admit(), which decides a request that may wait.
  /// `allocate(part)` returns expected<void*, failure>; `deallocate(part)` takes a part back. Returns the first part's
  /// pointer, or the failure.
  template <class Allocate, class Deallocate>
  expected<void*, failure> allocate_parts(Allocate allocate, Deallocate deallocate) noexcept {
    for (std::size_t i = 0; i < parts(); ++i) {
      auto& one = part(i);
      if (one.bytes == 0) continue;
      auto const result = allocate(std::as_const(one));
      if (result) {
        one.pointer = *result;
        continue;
      }
      while (i-- > 0) {
        if (part(i).pointer) deallocate(std::as_const(part(i)));
        part(i).pointer = nullptr;
      }
      return unexpected<failure>{failure{result.error().reason, result.error().code, bytes_}};
    }
    return first_.pointer;
  }

protected:
  /// `stream`, `bytes` and `alignment` describe the first part, and `more` holds the other parts, which must live as
  /// long as the request. If the sum of the bytes exceeds PTRDIFF_MAX, bytes() is PTRDIFF_MAX, or `bytes` if that is
  /// more.
  request_parts(stream_key const& stream, std::size_t bytes, std::size_t alignment,
                std::span<request_part> more = {}) noexcept;
  ~request_parts() = default;

  /// Makes this a request for a turn.
  void ask_for_turn() noexcept { first_.bytes = 0; }

private:
  request_part first_;
  std::span<request_part> more_;
  std::size_t bytes_;
};

} // namespace gpumem::extend
