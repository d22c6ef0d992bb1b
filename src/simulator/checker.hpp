// Happens-before: who touched which bytes last, and whether whoever touches them next is ordered after that.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "report.hpp"
#include "vector_clock.hpp"

namespace simulated {

class memory;
class virtual_memory;
struct mapping;
struct physical;
struct run;

/// Someone who touches memory: a point of a stream, or the host.
struct actor {
  std::uint32_t component;
  std::uint64_t number;      // as the clocks count
  party name;                // as people count
  const vector_clock* order; // all that is ordered before it
  int device = -1;           // that reads and writes; -1: the host
};

/// Bytes of virtual memory are told apart by where they physically are: work through two addresses of one page is work
/// on the same bytes.
class checker {
public:
  checker(report& findings, const memory& allocations, virtual_memory& mappings, const vector_clock& host)
      : findings_(findings), allocations_(allocations), mappings_(mappings), host_(host) {}

  void clear();

  /// Work reads or writes bytes; of a resource's `own` work only the order is judged, since to itself it grants
  /// nothing.
  void touch(const actor& who, std::uint64_t address, std::uint64_t bytes, bool write, bool own = false);

  /// A checked resource granted a block: a write of the whole of it.
  void granted(const actor& who, std::uint64_t owner, std::uint64_t address, std::uint64_t bytes);

  /// A checked resource is about to take a block back.
  void returned(const actor& who, std::uint64_t owner, std::uint64_t address, std::uint64_t bytes);

  /// A free of what nobody granted: of something that was freed before, or of nothing.
  void reject_free(const actor& who, std::uint64_t address, std::uint64_t bytes);

  /// A block of the driver's is about to go back: whoever granted out of it has to have taken all back.
  void lent_back(const actor& who, std::uint64_t owner, std::uint64_t address, std::uint64_t bytes);

  /// All uses so far at `who` of the block at `address` are declared to the resource: its free need not be
  /// after them.
  void use_declared(const actor& who, std::uint64_t address);

  /// The driver gave out, or took back, memory: what was known of it is void.
  void fresh(std::uint64_t address, std::uint64_t bytes);
  void gone(const actor& who, std::uint64_t address, std::uint64_t bytes, bool report_live);

  /// A mapping is about to go, or a device's right to it: the host has to have seen every use through it complete.
  void left(const actor& who, const mapping& which);
  /// A mapping is about to go: no block may live in it any more.
  void unmapped(const actor& who, const mapping& which);
  /// Physical memory is no more.
  void forget(const physical& which);

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
    party ended; // who freed the block
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

  /// What a run of bytes was allocated as, and by what `tracked_` knows it.
  struct holder {
    block_name name;
    std::uint64_t tracked = 0;
  };

  static std::uint64_t tracking_id(const physical& which) noexcept;
  segment_map::iterator split_at(std::uint64_t key);
  template <class Visit> void over(const run& at, Visit&& visit);
  template <class Visit> void runs(std::uint64_t address, std::uint64_t bytes, Visit&& visit);
  [[nodiscard]] holder holder_of(const run& at) const;
  void touch_run(const actor& who, const run& at, bool write, bool& spoken);
  void grant_run(const actor& who, const run& at, const block_name& made);
  static void count_use(const actor& who, const run& at);
  void prune(segment& part) const;
  void check_order(segment& part, const actor& who, bool write, finding_kind kind, const block_name& block,
                   const std::vector<declared_use>* declared);
  void report_finding(finding_kind kind, const party& earlier, const party& later, const block_name& block,
                      const std::string& what);
  void check_bounds(const actor& who, std::uint64_t address, std::uint64_t bytes, bool write);
  void check_mapped(const actor& who, std::uint64_t address, std::uint64_t bytes, bool write);
  void check_overlap(const actor& who, const block_map& blocks, const block_name& made);
  block_map* map_of(std::uint64_t owner, std::uint64_t address);
  bool tracked(std::uint64_t address) const;

  report& findings_;
  const memory& allocations_;
  virtual_memory& mappings_;
  const vector_clock& host_;
  segment_map segments_;                                // by key: the address, or the physical place
  std::unordered_map<std::uint64_t, block_map> blocks_; // by owner
  std::unordered_set<std::uint64_t> tracked_;           // memory of the driver out of which blocks were granted
  std::uint64_t blocks_made_ = 0;
};

} // namespace simulated
