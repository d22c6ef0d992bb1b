// checker: keeps the last accesses to all bytes and reports accesses that are not ordered after them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "report.hpp"
#include "stream.hpp"

namespace simulated {

class memory;
class virtual_memory;
struct mapping;
struct physical;
struct run;

/// The point of a stream, or of the host, at which memory is touched.
struct actor {
  std::uint32_t component;   // the stream, or the host, as a number in vector clocks
  std::uint64_t number;      // which of the component's points this is
  party name;                // as messages show it
  vector_clock const* order; // how many points of each component are ordered before this point
  int device = -1;           // the device that reads or writes; -1: the host
};

/// A happens-before checker. Virtual memory is tracked by physical location: accesses through two addresses of one page
/// are accesses to the same bytes.
class checker {
public:
  checker(report& findings, memory const& allocations, virtual_memory& mappings, vector_clock const& host)
      : findings_(findings), allocations_(allocations), mappings_(mappings), host_(host) {}

  /// Forgets all accesses and blocks.
  void clear();
  /// With `all_memory` the devices can access all memory of the host; accesses to any address are then checked.
  void check_all_memory(bool all_memory) noexcept { all_memory_ = all_memory; }

  /// Checks work that reads or writes bytes. `own_access` means work of a resource on its own memory, which needs no
  /// grant: then neither a missing grant nor a use after a free is reported.
  void touch(actor const& actor, std::uint64_t address, std::uint64_t bytes, bool write, bool own_access = false);

  /// Called when a checked resource (one that reports its blocks here) has granted a block. The grant counts as a write
  /// to the whole block. `owner` is the number of the resource.
  void granted(actor const& actor, std::uint64_t owner, std::uint64_t address, std::uint64_t bytes);

  /// Called before a checked resource frees a block.
  void returned(actor const& actor, std::uint64_t owner, std::uint64_t address, std::uint64_t bytes);

  /// Reports a free of an address that is not a live block: a double free, or a free of an unknown address.
  void reject_free(actor const& actor, std::uint64_t address, std::uint64_t bytes);

  /// Called before a block returns to the driver pool with the number `owner`, which had lent it. Reports live blocks
  /// of other owners in it.
  void lent_back(actor const& actor, std::uint64_t owner, std::uint64_t address, std::uint64_t bytes);

  /// Declares all uses of the block at `address` up to the point `actor`, as record_use() does. The free of the block
  /// need not be ordered after them.
  void use_declared(actor const& actor, std::uint64_t address);

  /// Called when the driver has allocated (fresh()) or is about to free (removed()) memory: drops the accesses to it.
  /// removed() also drops the live blocks in the memory, and reports them if `report_live` is true.
  void fresh(std::uint64_t address, std::uint64_t bytes);
  void removed(actor const& actor, std::uint64_t address, std::uint64_t bytes, bool report_live);

  /// Called before an unmap, or before a device loses access. Reports uses of the mapping that the host has not seen
  /// complete.
  void check_unmap(actor const& actor, mapping const& mapping);
  /// Called before an unmap. Reports the live blocks in the mapping.
  void unmapped(actor const& actor, mapping const& mapping);
  /// Drops the accesses to physical memory that was released.
  void forget(physical const& memory);

  std::uint64_t next_block_number() noexcept { return ++blocks_made_; }

private:
  struct access {
    std::uint32_t component;
    bool write;
    std::uint64_t number;
    party name;
  };
  enum class segment_state : unsigned char { untracked, granted, freed };
  struct segment {
    std::uint64_t end;
    segment_state state = segment_state::untracked;
    block_name block;
    party ended; // the free of the block
    std::vector<access> accesses;
  };
  using segment_map = std::map<std::uint64_t, segment>;

  struct declared_use {
    std::uint32_t component;
    std::uint64_t number;
  };
  struct block {
    block_name name;
    std::vector<declared_use> declared;
  };
  using block_map = std::map<std::uint64_t, block>;

  /// The allocation or mapping of a run of bytes, and its id in `tracked_`.
  struct holder {
    block_name name;
    std::uint64_t tracked = 0;
  };

  static std::uint64_t tracking_id(physical const& memory) noexcept;
  segment_map::iterator split_at(std::uint64_t key);
  template <class Visit> void over(run const& run, Visit&& visit);
  template <class Visit> void runs(std::uint64_t address, std::uint64_t bytes, Visit&& visit);
  [[nodiscard]] holder holder_of(run const& run) const;
  void touch_run(actor const& actor, run const& run, bool write, bool& reported);
  void grant_run(actor const& actor, run const& run, block_name const& block);
  static void count_use(actor const& actor, run const& run);
  void prune(segment& part) const;
  void check_order(segment& part, actor const& actor, bool write, finding_kind kind, block_name const& block,
                   std::vector<declared_use> const* declared);
  void report_finding(finding_kind kind, party const& earlier, party const& later, block_name const& block,
                      std::string const& text);
  void report_unordered(finding_kind kind, party const& earlier, party const& later, block_name const& block,
                        std::string const& text_before, std::string const& text_after);
  void check_bounds(actor const& actor, std::uint64_t address, std::uint64_t bytes, bool write);
  void check_mapped(actor const& actor, std::uint64_t address, std::uint64_t bytes, bool write);
  void check_overlap(actor const& actor, block_map const& blocks, block_name const& block);
  block_map* map_of(std::uint64_t owner, std::uint64_t address);
  bool tracked(std::uint64_t address) const;

  report& findings_;
  memory const& allocations_;
  virtual_memory& mappings_;
  vector_clock const& host_;
  // By key: the address; for virtual memory the physical location. Accesses that the host has seen complete are
  // removed.
  segment_map segments_;
  std::unordered_map<std::uint64_t, block_map> blocks_; // by owner
  std::unordered_set<std::uint64_t> tracked_;           // allocations of the driver in which blocks were granted
  std::uint64_t blocks_made_ = 0;
  bool all_memory_ = false;
};

} // namespace simulated
