// How a pool that draws pages grows.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <gpumem/pool_options.hpp>
export module gpumem:page_growth;
import :block;
import :chunks;
import :pool_order;
import :pool_request;
import :shards;
import :std;
import :stream;
import :virtual_pages;

namespace gpumem::detail {

/// What to map for a request, in bytes.
export struct growth_plan {
  std::optional<page_extent> hole; ///< in this one; else at the end
  std::size_t bytes;
  std::size_t least;         ///< where the device has not so much
  std::uintptr_t beside = 0; ///< where free memory begins that the request is to have with it; 0: there is none
  bool downwards = false;    ///< that memory is above the hole: what is mapped ends there

  /// Where in the hole so many bytes go.
  inline std::size_t offset(std::size_t mapped) const noexcept {
    return downwards ? hole->end() - mapped : hole->offset;
  }
};

/// How much is mapped for a request, where, and in pages of which size; and when memory is spent so as not to look for
/// what others have freed. Decides, and changes nothing of the pool. Each call but `page_size` is under the locks
/// of the shards that it is given. Sizes are in bytes.
export class page_growth {
public:
  /// Refers to all of them.
  page_growth(pool_options const& options, bool paged, chunk_list const& chunks, shard_list const& shards,
              pool_order const& order) noexcept
      : options_{options}, chunks_{chunks}, shards_{shards}, order_{order}, compact_{options.effort > 0},
        could_spend_{paged && !compact_ && options.cross_stream != reuse::own &&
                     options.release_threshold == SIZE_MAX} {}

  /// Whether nothing presses the pool. Under all locks.
  inline void set_calm(bool calm) noexcept { may_spend_ = could_spend_ && calm; }

  /// Looking for what has completed costs some driver calls for each stream, and where many streams run kernels it
  /// comes again and again. While they are found at work, or it comes often though little of the pool is in use, memory
  /// is spent instead, where nobody has said that it is dear.
  inline bool is_generous(pool_shard const& own) const noexcept {
    return may_spend_ && (own.looks.at_work() || own.looks.often(own.paths.locked_calls)) && has_plenty(own);
  }
  /// Whether what is free may be cut as one finds it, without a look for what would fit better.
  inline bool is_roomy(pool_shard const& own) const noexcept { return may_spend_ && has_plenty(own); }
  /// How many bytes are to be spent so: until each stream could have some times as much of its own.
  std::size_t to_be_spent(pool_request const& what) const noexcept;

  /// Whether it is free, and the stream may use it at once.
  bool usable(block const* range, stream_key const& key) const;
  /// Where and how much to map for a request; if not `exact`, with what those who ask next are to find. At the end,
  /// while there are addresses behind it: there ranges can grow. Else, or where the limit leaves nothing else, in a
  /// hole: what was large before has left one; there too where pages move and clearly less is missing. Nothing: the
  /// addresses come to an end, and no hole is large enough.
  std::optional<growth_plan> plan(pool_request const& what, pool_shard const& in, bool exact) const;
  /// Whether free pages move before others are made.
  inline bool is_compact() const noexcept { return compact_; }
  /// Whether a block lies at the end of the range that it is cut from. Of compact pools the large ones do: beside what
  /// is mapped next, so that there they can grow when they are free again. Not under a limit: there more pages were
  /// partly in use, for which some of a recorded trace failed.
  inline bool lies_at_end(std::size_t bytes, pool_shard const& in) const noexcept {
    return is_compact() && !chunks_.limit() && bytes >= in.reserved / large_part;
  }
  /// The smallest page that is worth moving; from others larger ones are made.
  std::size_t least_moved(virtual_pages const& of) const noexcept { return page_size(of, 0, false) / 4 * 3; }
  /// Of the pages behind so many bytes.
  std::size_t page_size(virtual_pages const& of, std::size_t bytes, bool generous) const noexcept;

private:
  static constexpr std::size_t large_part = 16; // of what is reserved
  block* usable_end(pool_request const& what, pool_shard const& in) const;
  std::size_t missing(pool_request const& what, pool_shard const& in, bool exact) const;
  std::optional<growth_plan> gap_for(pool_request const& what, pool_shard const& in) const;
  bool has_plenty(pool_shard const& own) const noexcept;
  std::size_t least_page(virtual_pages const& of) const noexcept;

  pool_options const& options_;
  chunk_list const& chunks_;
  shard_list const& shards_;
  pool_order const& order_;
  bool const compact_;
  bool const could_spend_;
  bool may_spend_ = false;
};

} // namespace gpumem::detail
