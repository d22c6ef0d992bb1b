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
template <class Visit> void checker::over(run const& at, Visit&& visit) {
  std::uint64_t const end = at.key + at.bytes;
  split_at(end);
  auto part = split_at(at.key);
  for (std::uint64_t key = at.key; key < end;) {
    if (part == segments_.end() || part->first != key) {
      std::uint64_t const stop = part == segments_.end() ? end : std::min(end, part->first);
      part = segments_.emplace_hint(part, key, segment{stop, segment_state::untracked, {}, {}, {}});
    }
    visit(part->second, at.address + (key - at.key));
    key = part->second.end;
    ++part;
  }
}

/// Calls `visit(run)` for each run of a range of addresses; skips unmapped addresses.
template <class Visit> void checker::runs(std::uint64_t address, std::uint64_t bytes, Visit&& visit) {
  if (!mappings_.owns(address)) return visit(run{address, bytes, address});
  mappings_.visit(address, bytes, [&](run const& at) {
    if (at.through != nullptr) visit(at);
  });
}

/// Returns the id of physical memory in `tracked_`. The id of an allocation there is its buffer id; the top bit keeps
/// the two kinds apart.
std::uint64_t checker::tracking_id(physical const& which) noexcept { return (std::uint64_t{1} << 63) | which.number; }

checker::holder checker::holder_of(run const& at) const {
  if (at.through != nullptr)
    return {{at.through->of->number, at.through->address, at.through->bytes, true}, tracking_id(*at.through->of)};
  allocation const* held = allocations_.find(at.address);
  return held == nullptr ? holder{} : holder{{held->number, held->address, held->bytes}, held->buffer_id};
}

/// Notes a use of a mapping. The mapping must not be unmapped before the host has seen the use complete.
void checker::count_use(actor const& who, run const& at) {
  if (at.through != nullptr && who.component != host_component)
    at.through->uses.insert_or_assign(who.component, mapping::use{who.number, who.name});
}

void checker::prune(segment& part) const {
  std::erase_if(part.accesses, [&](access const& old) { return host_.covers(old.component, old.number); });
}

void checker::report_finding(finding_kind kind, party const& earlier, party const& later, block_name const& block,
                             std::string const& what) {
  findings_.add({kind, earlier, later, block, missing_order(earlier, later), what});
}

void checker::report_unordered(finding_kind kind, party const& earlier, party const& later, block_name const& block,
                               std::string const& before, std::string const& after) {
  findings_.add_unordered({kind, earlier, later, block, missing_order(earlier, later), {}}, before, after);
}

/// Compares `who` with the earlier accesses to the segment. Reports those after which `who` is not ordered, except the
/// uses in `declared` (null: none). Removes the reported accesses, and those that the new access of `who` replaces.
void checker::check_order(segment& part, actor const& who, bool write, finding_kind kind, block_name const& block,
                          std::vector<declared_use> const* declared) {
  prune(part);
  std::erase_if(part.accesses, [&](access const& old) {
    if (who.order->covers(old.component, old.number)) return write || !old.write;
    if (!write && !old.write) return false;
    auto const covers = [&](declared_use const& use) {
      return use.component == old.component && old.number <= use.number;
    };
    if (declared != nullptr && std::any_of(declared->begin(), declared->end(), covers)) return false;
    report_unordered(kind, old.name, who.name, block, phrase(kind),
                     ": " + describe(who.name) + " is not ordered after " + describe(old.name));
    return true;
  });
}

bool checker::tracked(std::uint64_t address) const {
  if (all_memory_ || mappings_.owns(address)) return true;
  if (allocations_.owns(address) || allocations_.find(address) != nullptr) return true;
  auto above = segments_.upper_bound(address);
  return above != segments_.begin() && std::prev(above)->second.end > address;
}

void checker::check_bounds(actor const& who, std::uint64_t address, std::uint64_t bytes, bool write) {
  if (mappings_.owns(address)) return check_mapped(who, address, bytes, write);
  if (!allocations_.owns(address)) return;
  allocation const* held = allocations_.find(address);
  if (held != nullptr && address + bytes <= held->address + held->bytes) return;
  block_name const block =
      held != nullptr ? block_name{held->number, held->address, held->bytes} : block_name{0, address, bytes};
  std::string const where = held != nullptr ? "past the end of " + describe(block)
                                            : "memory that the driver has not allocated: " + describe(block);
  report_finding(finding_kind::unallocated_access, {}, who.name, block, describe(who.name) + " touches " + where);
}

/// Reports the first part of the range that is not mapped, or to which the device has no access.
void checker::check_mapped(actor const& who, std::uint64_t address, std::uint64_t bytes, bool write) {
  bool spoken = false;
  mappings_.visit(address, bytes, [&](run const& at) {
    if (spoken) return;
    if (at.through == nullptr) {
      spoken = true;
      block_name const block{0, at.address, at.bytes};
      report_finding(finding_kind::unmapped_access, {}, who.name, block,
                     describe(who.name) + " touches unmapped addresses: " + describe(block));
      return;
    }
    unsigned const allowed = who.device < 0 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : at.through->access_of(who.device);
    if (allowed == CU_MEM_ACCESS_FLAGS_PROT_READWRITE || (allowed == CU_MEM_ACCESS_FLAGS_PROT_READ && !write)) return;
    spoken = true;
    block_name const block = holder_of(at).name;
    report_finding(finding_kind::access_without_right, {}, who.name, block,
                   describe(who.name) + (write ? " writes " : " reads ") + describe(block) + ", to which device " +
                       std::to_string(who.device) + (allowed == 0 ? " was given no access" : " may only read"));
  });
}

void checker::touch(actor const& who, std::uint64_t address, std::uint64_t bytes, bool write, bool own) {
  if (bytes == 0 || !tracked(address)) return;
  check_bounds(who, address, bytes, write);
  bool spoken = own;
  runs(address, bytes, [&](run const& at) { touch_run(who, at, write, spoken); });
}

void checker::touch_run(actor const& who, run const& at, bool write, bool& spoken) {
  auto const [held, tracking_id] = holder_of(at);
  bool const tracked = tracking_id != 0 && tracked_.contains(tracking_id);
  bool const owned = at.through != nullptr || allocations_.owns(at.address);
  count_use(who, at);
  over(at, [&](segment& part, std::uint64_t address) {
    block_name const block = part.block.number != 0 ? part.block : held;
    bool const elsewhere = at.through != nullptr && part.state == segment_state::granted &&
                           address - part.block.address >= part.block.bytes;
    if (owned && !spoken && part.state == segment_state::freed) {
      spoken = true;
      report_finding(finding_kind::use_after_free, part.ended, who.name, block,
                     "use after free of " + describe(block) + ": " + describe(who.name) + " comes after " +
                         describe(part.ended));
    } else if (!spoken && ((tracked && part.state == segment_state::untracked) || elsewhere)) {
      spoken = true;
      report_finding(
          finding_kind::unallocated_access, {}, who.name, block,
          describe(who.name) + " touches bytes of " + describe(block) +
              (elsewhere ? " at another address than that at which it was granted" : " that no resource has granted"));
    }
    check_order(part, who, write, finding_kind::unordered_access, block, nullptr);
    std::erase_if(part.accesses,
                  [&](access const& old) { return !old.write && !write && old.component == who.component; });
    part.accesses.push_back({who.component, write, who.number, who.name});
  });
}

void checker::check_overlap(actor const& who, block_map const& blocks, block_name const& made) {
  auto at = blocks.upper_bound(made.address);
  if (at != blocks.begin()) --at;
  for (; at != blocks.end() && at->first < made.address + made.bytes; ++at) {
    block_name const& old = at->second.name;
    if (old.address + old.bytes <= made.address) continue;
    report_finding(finding_kind::overlapping_grant, {}, who.name, old,
                   describe(made) + ", granted to stream " + std::to_string(who.name.stream) + ", overlaps the live " +
                       describe(old));
  }
}

void checker::granted(actor const& who, std::uint64_t owner, std::uint64_t address, std::uint64_t bytes) {
  block_name const made{next_block_number(), address, bytes};
  block_map& blocks = blocks_[owner];
  check_overlap(who, blocks, made);
  check_bounds(who, address, bytes, true);
  runs(address, bytes, [&](run const& at) { grant_run(who, at, made); });
  blocks.insert_or_assign(address, block{made, {}});
}

void checker::grant_run(actor const& who, run const& at, block_name const& made) {
  if (holder const held = holder_of(at); held.tracked != 0) tracked_.insert(held.tracked);
  count_use(who, at);
  bool spoken = false;
  over(at, [&](segment& part, std::uint64_t address) {
    bool const lives_elsewhere = at.through != nullptr && part.state == segment_state::granted &&
                                 address - part.block.address >= part.block.bytes;
    if (lives_elsewhere && !spoken)
      report_finding(finding_kind::overlapping_grant, {}, who.name, part.block,
                     describe(made) + ", granted to stream " + std::to_string(who.name.stream) +
                         ", is physically the same memory as the live " + describe(part.block));
    spoken = spoken || lives_elsewhere;
    check_order(part, who, true, finding_kind::unordered_reuse, part.block.number != 0 ? part.block : made, nullptr);
  });
  auto first = segments_.find(at.key);
  auto last = segments_.lower_bound(at.key + at.bytes);
  first->second = {at.key + at.bytes, segment_state::granted, made, {}, {}};
  first->second.accesses.push_back({who.component, true, who.number, who.name});
  segments_.erase(std::next(first), last);
}

/// Returns the blocks of the resource `owner` if one of them starts at `address`. Otherwise another resource that
/// compares equal can have granted the block: returns the blocks of the resource with the newest block there, or null.
checker::block_map* checker::map_of(std::uint64_t owner, std::uint64_t address) {
  auto own = blocks_.find(owner);
  if (own != blocks_.end() && own->second.contains(address)) return &own->second;
  block_map* newest = nullptr;
  for (auto& [other, blocks] : blocks_) {
    auto found = blocks.find(address);
    if (found == blocks.end()) continue;
    if (newest == nullptr || newest->at(address).name.number < found->second.name.number) newest = &blocks;
  }
  return newest;
}

void checker::reject_free(actor const& who, std::uint64_t address, std::uint64_t bytes) {
  mapping const* through = mappings_.find(address);
  std::uint64_t const key = through == nullptr ? address : through->of->key() + (address - through->address);
  auto above = segments_.upper_bound(key);
  segment const* part = above == segments_.begin() ? nullptr : &std::prev(above)->second;
  if (part != nullptr && part->end > key && part->state == segment_state::freed) {
    report_finding(finding_kind::double_free, part->ended, who.name, part->block,
                   "double free of " + describe(part->block) + ": " + describe(who.name) + " comes after " +
                       describe(part->ended));
    return;
  }
  block_name const unknown{0, address, bytes};
  report_finding(finding_kind::unknown_free, {}, who.name, unknown,
                 describe(who.name) + " frees memory that no resource granted: " + describe(unknown));
}

void checker::returned(actor const& who, std::uint64_t owner, std::uint64_t address, std::uint64_t bytes) {
  block_map* blocks = map_of(owner, address);
  if (blocks == nullptr) return reject_free(who, address, bytes);
  block const old = std::move(blocks->at(address));
  blocks->erase(address);
  if (bytes != 0 && bytes != old.name.bytes)
    report_finding(finding_kind::wrong_size, {}, who.name, old.name,
                   describe(who.name) + " frees " + std::to_string(bytes) + " bytes of " + describe(old.name));
  runs(address, old.name.bytes, [&](run const& at) {
    count_use(who, at);
    over(at, [&](segment& part, std::uint64_t) {
      check_order(part, who, true, finding_kind::unordered_free, old.name, &old.declared);
      part.state = segment_state::freed;
      part.block = old.name;
      part.ended = who.name;
      part.accesses.push_back({who.component, true, who.number, who.name});
    });
  });
}

void checker::use_declared(actor const& who, std::uint64_t address) {
  for (auto& [owner, blocks] : blocks_) {
    auto above = blocks.upper_bound(address);
    if (above == blocks.begin()) continue;
    block& held = std::prev(above)->second;
    if (address - held.name.address >= held.name.bytes) continue;
    auto& uses = held.declared;
    std::erase_if(uses, [&](declared_use const& use) { return use.component == who.component; });
    uses.push_back({who.component, who.number});
  }
}

void checker::fresh(std::uint64_t address, std::uint64_t bytes) {
  auto last = split_at(address + bytes);
  segments_.erase(split_at(address), last);
}

void checker::lent_back(actor const& who, std::uint64_t owner, std::uint64_t address, std::uint64_t bytes) {
  for (auto& [other, blocks] : blocks_) {
    if (other == owner) continue;
    auto at = blocks.lower_bound(address);
    while (at != blocks.end() && at->first < address + bytes) {
      block_name const live = at->second.name;
      report_finding(finding_kind::live_block_in_freed_memory, {}, who.name, live,
                     describe(who.name) + " returns memory to the driver that holds the live " + describe(live));
      at = blocks.erase(at);
    }
  }
}

void checker::gone(actor const& who, std::uint64_t address, std::uint64_t bytes, bool report_live) {
  for (auto& [owner, blocks] : blocks_) {
    auto at = blocks.lower_bound(address);
    while (at != blocks.end() && at->first < address + bytes) {
      block_name const live = at->second.name;
      if (report_live)
        report_finding(finding_kind::live_block_in_freed_memory, {}, who.name, live,
                       describe(who.name) + " returns memory to the driver that holds the live " + describe(live));
      at = blocks.erase(at);
    }
  }
  if (allocation const* held = allocations_.find(address)) tracked_.erase(held->buffer_id);
  fresh(address, bytes);
}

void checker::left(actor const& who, mapping const& which) {
  block_name const block{which.of->number, which.address, which.bytes, true};
  for (auto const& [component, use] : which.uses) {
    if (host_.covers(component, use.number)) continue;
    report_unordered(finding_kind::premature_unmap, use.name, who.name, block,
                     describe(who.name) + " unmaps, or revokes access to, ",
                     " used by " + describe(use.name) + ", which the host has not seen complete");
  }
}

void checker::unmapped(actor const& who, mapping const& which) {
  std::uint64_t const end = which.address + which.bytes;
  for (auto& [owner, blocks] : blocks_) {
    auto at = blocks.lower_bound(which.address);
    if (at != blocks.begin() && std::prev(at)->first + std::prev(at)->second.name.bytes > which.address) --at;
    while (at != blocks.end() && at->first < end) {
      block_name const live = at->second.name;
      report_finding(finding_kind::live_block_in_freed_memory, {}, who.name, live,
                     describe(who.name) + " unmaps memory that holds the live " + describe(live));
      at = blocks.erase(at);
    }
  }
}

void checker::forget(physical const& which) {
  tracked_.erase(tracking_id(which));
  fresh(which.key(), which.bytes);
}

} // namespace simulated
