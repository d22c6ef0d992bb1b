// Checks the order of accesses to memory, and of accesses and the end of mappings.
// SPDX-License-Identifier: Apache-2.0
#include "checker.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "memory.hpp"
#include "virtual_memory.hpp"

namespace simulated {

namespace {

std::string missing_order(party const& earlier, party const& later) {
  if (later.stream == 0) return "the host has not seen " + describe(earlier) + " complete";
  return "stream " + std::to_string(later.stream) + " is not ordered after " + describe(earlier);
}

char const* phrase(finding_kind kind) {
  switch (kind) {
  case finding_kind::unordered_reuse: return "unordered reuse of ";
  case finding_kind::unordered_free: return "unordered free of ";
  default: return "unordered access to ";
  }
}

} // namespace

void checker::clear() {
  segments_.clear();
  blocks_.clear();
  tracked_.clear();
  blocks_made_ = 0;
}

/// Returns the segment that starts at `key`. If a segment spans `key`, splits it there first. If no segment starts at
/// `key`, returns the next one above, or end().
checker::segment_map::iterator checker::split_at(std::uint64_t key) {
  auto above = segments_.lower_bound(key);
  if (above != segments_.end() && above->first == key) return above;
  if (above == segments_.begin()) return above;
  auto below = std::prev(above);
  if (below->second.end <= key) return above;
  segment upper = below->second;
  below->second.end = key;
  return segments_.emplace_hint(above, key, std::move(upper));
}

/// Calls `visit(segment, address)` for each segment of the run. Creates segments for bytes that have none.
template <class Visit> void checker::over(run const& run, Visit&& visit) {
  std::uint64_t const end = run.key + run.bytes;
  split_at(end);
  auto part = split_at(run.key);
  for (std::uint64_t key = run.key; key < end;) {
    if (part == segments_.end() || part->first != key) {
      std::uint64_t const stop = part == segments_.end() ? end : std::min(end, part->first);
      part = segments_.emplace_hint(part, key, segment{stop, segment_state::untracked, {}, {}, {}});
    }
    visit(part->second, run.address + (key - run.key));
    key = part->second.end;
    ++part;
  }
}

/// Calls `visit(run)` for each run of a range of addresses; skips unmapped addresses.
template <class Visit> void checker::runs(std::uint64_t address, std::uint64_t bytes, Visit&& visit) {
  if (!mappings_.owns(address)) return visit(run{address, bytes, address});
  mappings_.visit(address, bytes, [&](run const& run) {
    if (run.mapped != nullptr) visit(run);
  });
}

/// Returns the id of physical memory in `tracked_`. The id of an allocation there is its buffer id; the top bit keeps
/// the two kinds apart.
std::uint64_t checker::tracking_id(physical const& memory) noexcept { return (std::uint64_t{1} << 63) | memory.number; }

checker::holder checker::holder_of(run const& run) const {
  if (run.mapped != nullptr)
    return {{run.mapped->memory->number, run.mapped->address, run.mapped->bytes, true},
            tracking_id(*run.mapped->memory)};
  allocation const* block_here = allocations_.find(run.address);
  return block_here == nullptr
             ? holder{}
             : holder{{block_here->number, block_here->address, block_here->bytes}, block_here->buffer_id};
}

/// Notes a use of a mapping. The mapping must not be unmapped before the host has seen the use complete.
void checker::count_use(actor const& actor, run const& run) {
  if (run.mapped != nullptr && actor.component != host_component)
    run.mapped->uses.insert_or_assign(actor.component, mapping::use{actor.number, actor.name});
}

void checker::prune(segment& part) const {
  std::erase_if(part.accesses, [&](access const& old) { return host_.covers(old.component, old.number); });
}

void checker::report_finding(finding_kind kind, party const& earlier, party const& later, block_name const& block,
                             std::string const& text) {
  findings_.add({kind, earlier, later, block, missing_order(earlier, later), text});
}

void checker::report_unordered(finding_kind kind, party const& earlier, party const& later, block_name const& block,
                               std::string const& text_before, std::string const& text_after) {
  findings_.add_unordered({kind, earlier, later, block, missing_order(earlier, later), {}}, text_before, text_after);
}

/// Compares `actor` with the earlier accesses to the segment. Reports those after which `actor` is not ordered, except
/// the uses in `declared` (null: none). Removes the reported accesses, and those that the new access of `actor`
/// replaces.
void checker::check_order(segment& part, actor const& actor, bool write, finding_kind kind, block_name const& block,
                          std::vector<declared_use> const* declared) {
  prune(part);
  std::erase_if(part.accesses, [&](access const& old) {
    if (actor.order->covers(old.component, old.number)) return write || !old.write;
    if (!write && !old.write) return false;
    auto const covers = [&](declared_use const& use) {
      return use.component == old.component && old.number <= use.number;
    };
    if (declared != nullptr && std::any_of(declared->begin(), declared->end(), covers)) return false;
    report_unordered(kind, old.name, actor.name, block, phrase(kind),
                     ": " + describe(actor.name) + " is not ordered after " + describe(old.name));
    return true;
  });
}

bool checker::tracked(std::uint64_t address) const {
  if (all_memory_ || mappings_.owns(address)) return true;
  if (allocations_.owns(address) || allocations_.find(address) != nullptr) return true;
  auto above = segments_.upper_bound(address);
  return above != segments_.begin() && std::prev(above)->second.end > address;
}

void checker::check_bounds(actor const& actor, std::uint64_t address, std::uint64_t bytes, bool write) {
  if (mappings_.owns(address)) return check_mapped(actor, address, bytes, write);
  if (!allocations_.owns(address)) return;
  allocation const* block_here = allocations_.find(address);
  if (block_here != nullptr && address + bytes <= block_here->address + block_here->bytes) return;
  block_name const block = block_here != nullptr
                               ? block_name{block_here->number, block_here->address, block_here->bytes}
                               : block_name{0, address, bytes};
  std::string const where = block_here != nullptr ? "past the end of " + describe(block)
                                                  : "memory that the driver has not allocated: " + describe(block);
  report_finding(finding_kind::unallocated_access, {}, actor.name, block, describe(actor.name) + " touches " + where);
}

/// Reports the first part of the range that is not mapped, or to which the device has no access.
void checker::check_mapped(actor const& actor, std::uint64_t address, std::uint64_t bytes, bool write) {
  bool reported = false;
  mappings_.visit(address, bytes, [&](run const& run) {
    if (reported) return;
    if (run.mapped == nullptr) {
      reported = true;
      block_name const block{0, run.address, run.bytes};
      report_finding(finding_kind::unmapped_access, {}, actor.name, block,
                     describe(actor.name) + " touches unmapped addresses: " + describe(block));
      return;
    }
    unsigned const allowed =
        actor.device < 0 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : run.mapped->access_of(actor.device);
    if (allowed == CU_MEM_ACCESS_FLAGS_PROT_READWRITE || (allowed == CU_MEM_ACCESS_FLAGS_PROT_READ && !write)) return;
    reported = true;
    block_name const block = holder_of(run).name;
    report_finding(finding_kind::access_without_right, {}, actor.name, block,
                   describe(actor.name) + (write ? " writes " : " reads ") + describe(block) + ", to which device " +
                       std::to_string(actor.device) + (allowed == 0 ? " was given no access" : " may only read"));
  });
}

void checker::touch(actor const& actor, std::uint64_t address, std::uint64_t bytes, bool write, bool own_access) {
  if (bytes == 0 || !tracked(address)) return;
  check_bounds(actor, address, bytes, write);
  bool reported = own_access;
  runs(address, bytes, [&](run const& run) { touch_run(actor, run, write, reported); });
}

void checker::touch_run(actor const& actor, run const& run, bool write, bool& reported) {
  auto const [block_here, tracking_id] = holder_of(run);
  bool const tracked = tracking_id != 0 && tracked_.contains(tracking_id);
  bool const owned = run.mapped != nullptr || allocations_.owns(run.address);
  count_use(actor, run);
  over(run, [&](segment& part, std::uint64_t address) {
    block_name const block = part.block.number != 0 ? part.block : block_here;
    bool const other_address = run.mapped != nullptr && part.state == segment_state::granted &&
                               address - part.block.address >= part.block.bytes;
    if (owned && !reported && part.state == segment_state::freed) {
      reported = true;
      report_finding(finding_kind::use_after_free, part.ended, actor.name, block,
                     "use after free of " + describe(block) + ": " + describe(actor.name) + " comes after " +
                         describe(part.ended));
    } else if (!reported && ((tracked && part.state == segment_state::untracked) || other_address)) {
      reported = true;
      report_finding(finding_kind::unallocated_access, {}, actor.name, block,
                     describe(actor.name) + " touches bytes of " + describe(block) +
                         (other_address ? " at another address than that at which it was granted"
                                        : " that no resource has granted"));
    }
    check_order(part, actor, write, finding_kind::unordered_access, block, nullptr);
    std::erase_if(part.accesses,
                  [&](access const& old) { return !old.write && !write && old.component == actor.component; });
    part.accesses.push_back({actor.component, write, actor.number, actor.name});
  });
}

void checker::check_overlap(actor const& actor, block_map const& blocks, block_name const& block) {
  auto at = blocks.upper_bound(block.address);
  if (at != blocks.begin()) --at;
  for (; at != blocks.end() && at->first < block.address + block.bytes; ++at) {
    block_name const& old = at->second.name;
    if (old.address + old.bytes <= block.address) continue;
    report_finding(finding_kind::overlapping_grant, {}, actor.name, old,
                   describe(block) + ", granted to stream " + std::to_string(actor.name.stream) +
                       ", overlaps the live " + describe(old));
  }
}

void checker::granted(actor const& actor, std::uint64_t owner, std::uint64_t address, std::uint64_t bytes) {
  block_name const made{next_block_number(), address, bytes};
  block_map& blocks = blocks_[owner];
  check_overlap(actor, blocks, made);
  check_bounds(actor, address, bytes, true);
  runs(address, bytes, [&](run const& run) { grant_run(actor, run, made); });
  blocks.insert_or_assign(address, block{made, {}});
}

void checker::grant_run(actor const& actor, run const& run, block_name const& block) {
  if (holder const block_here = holder_of(run); block_here.tracked != 0) tracked_.insert(block_here.tracked);
  count_use(actor, run);
  bool reported = false;
  over(run, [&](segment& part, std::uint64_t address) {
    bool const lives_elsewhere = run.mapped != nullptr && part.state == segment_state::granted &&
                                 address - part.block.address >= part.block.bytes;
    if (lives_elsewhere && !reported)
      report_finding(finding_kind::overlapping_grant, {}, actor.name, part.block,
                     describe(block) + ", granted to stream " + std::to_string(actor.name.stream) +
                         ", is physically the same memory as the live " + describe(part.block));
    reported = reported || lives_elsewhere;
    check_order(part, actor, true, finding_kind::unordered_reuse, part.block.number != 0 ? part.block : block, nullptr);
  });
  auto first = segments_.find(run.key);
  auto last = segments_.lower_bound(run.key + run.bytes);
  first->second = {run.key + run.bytes, segment_state::granted, block, {}, {}};
  first->second.accesses.push_back({actor.component, true, actor.number, actor.name});
  segments_.erase(std::next(first), last);
}

/// Returns the blocks of the resource `owner` if one of them starts at `address`. Otherwise another resource that
/// compares equal can have granted the block: returns the blocks of the resource with the newest block there, or null.
checker::block_map* checker::map_of(std::uint64_t owner, std::uint64_t address) {
  auto entry = blocks_.find(owner);
  if (entry != blocks_.end() && entry->second.contains(address)) return &entry->second;
  block_map* newest = nullptr;
  for (auto& [other, blocks] : blocks_) {
    auto found = blocks.find(address);
    if (found == blocks.end()) continue;
    if (newest == nullptr || newest->at(address).name.number < found->second.name.number) newest = &blocks;
  }
  return newest;
}

void checker::reject_free(actor const& actor, std::uint64_t address, std::uint64_t bytes) {
  mapping const* mapping = mappings_.find(address);
  std::uint64_t const key = mapping == nullptr ? address : mapping->memory->key() + (address - mapping->address);
  auto next_segment = segments_.upper_bound(key);
  segment const* part = next_segment == segments_.begin() ? nullptr : &std::prev(next_segment)->second;
  if (part != nullptr && part->end > key && part->state == segment_state::freed) {
    report_finding(finding_kind::double_free, part->ended, actor.name, part->block,
                   "double free of " + describe(part->block) + ": " + describe(actor.name) + " comes after " +
                       describe(part->ended));
    return;
  }
  block_name const unknown{0, address, bytes};
  report_finding(finding_kind::unknown_free, {}, actor.name, unknown,
                 describe(actor.name) + " frees memory that no resource granted: " + describe(unknown));
}

void checker::returned(actor const& actor, std::uint64_t owner, std::uint64_t address, std::uint64_t bytes) {
  block_map* blocks = map_of(owner, address);
  if (blocks == nullptr) return reject_free(actor, address, bytes);
  block const old = std::move(blocks->at(address));
  blocks->erase(address);
  if (bytes != 0 && bytes != old.name.bytes)
    report_finding(finding_kind::wrong_size, {}, actor.name, old.name,
                   describe(actor.name) + " frees " + std::to_string(bytes) + " bytes of " + describe(old.name));
  runs(address, old.name.bytes, [&](run const& run) {
    count_use(actor, run);
    over(run, [&](segment& part, std::uint64_t) {
      check_order(part, actor, true, finding_kind::unordered_free, old.name, &old.declared);
      part.state = segment_state::freed;
      part.block = old.name;
      part.ended = actor.name;
      part.accesses.push_back({actor.component, true, actor.number, actor.name});
    });
  });
}

void checker::use_declared(actor const& actor, std::uint64_t address) {
  for (auto& [owner, blocks] : blocks_) {
    auto above = blocks.upper_bound(address);
    if (above == blocks.begin()) continue;
    block& block_here = std::prev(above)->second;
    if (address - block_here.name.address >= block_here.name.bytes) continue;
    auto& uses = block_here.declared;
    std::erase_if(uses, [&](declared_use const& use) { return use.component == actor.component; });
    uses.push_back({actor.component, actor.number});
  }
}

void checker::fresh(std::uint64_t address, std::uint64_t bytes) {
  auto last = split_at(address + bytes);
  segments_.erase(split_at(address), last);
}

void checker::lent_back(actor const& actor, std::uint64_t owner, std::uint64_t address, std::uint64_t bytes) {
  for (auto& [other, blocks] : blocks_) {
    if (other == owner) continue;
    auto at = blocks.lower_bound(address);
    while (at != blocks.end() && at->first < address + bytes) {
      block_name const live = at->second.name;
      report_finding(finding_kind::live_block_in_freed_memory, {}, actor.name, live,
                     describe(actor.name) + " returns memory to the driver that holds the live " + describe(live));
      at = blocks.erase(at);
    }
  }
}

void checker::removed(actor const& actor, std::uint64_t address, std::uint64_t bytes, bool report_live) {
  for (auto& [owner, blocks] : blocks_) {
    auto at = blocks.lower_bound(address);
    while (at != blocks.end() && at->first < address + bytes) {
      block_name const live = at->second.name;
      if (report_live)
        report_finding(finding_kind::live_block_in_freed_memory, {}, actor.name, live,
                       describe(actor.name) + " returns memory to the driver that holds the live " + describe(live));
      at = blocks.erase(at);
    }
  }
  if (allocation const* block_here = allocations_.find(address)) tracked_.erase(block_here->buffer_id);
  fresh(address, bytes);
}

void checker::check_unmap(actor const& actor, mapping const& mapping) {
  block_name const block{mapping.memory->number, mapping.address, mapping.bytes, true};
  for (auto const& [component, use] : mapping.uses) {
    if (host_.covers(component, use.number)) continue;
    report_unordered(finding_kind::premature_unmap, use.name, actor.name, block,
                     describe(actor.name) + " unmaps, or revokes access to, ",
                     " used by " + describe(use.name) + ", which the host has not seen complete");
  }
}

void checker::unmapped(actor const& actor, mapping const& mapping) {
  std::uint64_t const end = mapping.address + mapping.bytes;
  for (auto& [owner, blocks] : blocks_) {
    auto at = blocks.lower_bound(mapping.address);
    if (at != blocks.begin() && std::prev(at)->first + std::prev(at)->second.name.bytes > mapping.address) --at;
    while (at != blocks.end() && at->first < end) {
      block_name const live = at->second.name;
      report_finding(finding_kind::live_block_in_freed_memory, {}, actor.name, live,
                     describe(actor.name) + " unmaps memory that holds the live " + describe(live));
      at = blocks.erase(at);
    }
  }
}

void checker::forget(physical const& memory) {
  tracked_.erase(tracking_id(memory));
  fresh(memory.key(), memory.bytes);
}

} // namespace simulated
