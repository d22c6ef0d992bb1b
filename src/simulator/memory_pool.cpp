// Memory pools: their segments, blocks and free ranges, and the table of pools.
// SPDX-License-Identifier: Apache-2.0
#include "memory_pool.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "simulation.hpp"

namespace simulated {

namespace {

constexpr std::size_t block_granule = 512;
constexpr std::size_t segment_granule = std::size_t{2} << 20;
constexpr std::size_t least_segment = std::size_t{32} << 20;
constexpr std::size_t most_bytes = std::size_t{1} << 48; // more than any device has; sums of sizes cannot overflow

constexpr std::size_t up_to(std::size_t bytes, std::size_t granule) {
  return (bytes + granule - 1) / granule * granule;
}

/// Adds a free to the list. The list keeps one entry per component of the clock (per stream), since the newest free
/// covers older ones.
void add_free(std::vector<pool_free>& frees, pool_free const& added) {
  for (pool_free& known : frees) {
    if (known.component != added.component) continue;
    if (known.at.number < added.at.number) known = added;
    return;
  }
  frees.push_back(added);
}

bool all_done(std::vector<pool_free> const& frees) {
  return std::all_of(frees.begin(), frees.end(), [](pool_free const& ended) { return ended.at.done(); });
}

} // namespace

memory_kind memory_pool::kind() const noexcept {
  if (properties.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED) return memory_kind::managed;
  return properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? memory_kind::device : memory_kind::pinned;
}

int memory_pool::device() const noexcept {
  return properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? properties.location.id : 0;
}

memory_pool::way memory_pool::way_to(range const& part, stream const& on) const {
  way furthest = way::own;
  for (pool_free const& ended : part.frees) {
    if (ended.at.on.get() == &on) continue;
    if (follow_events && on.order.covers(ended.component, ended.at.number))
      furthest = std::max(furthest, way::ordered);
    else if (opportunistic && ended.at.done())
      furthest = std::max(furthest, way::completed);
    else
      furthest = std::max(furthest, internal ? way::wait : way::none);
  }
  return furthest;
}

/// Returns the range that the stream can get in the cheapest way, if that way is not beyond `furthest`. The values of
/// `way` go from cheap to expensive. Among several such ranges, returns the smallest that fits. Returns end() if there
/// is none. New memory of the device comes before a wait that the driver inserts, as CUDA documents.
memory_pool::range_map::iterator memory_pool::best(stream const& on, std::size_t need, way furthest) {
  auto chosen = free_.end();
  way cheapest = way::none;
  for (auto at = free_.begin(); at != free_.end(); ++at) {
    if (at->second.bytes < need) continue;
    way const how = way_to(at->second, on);
    if (how > furthest) continue;
    if (chosen != free_.end() && std::pair(how, at->second.bytes) >= std::pair(cheapest, chosen->second.bytes))
      continue;
    chosen = at;
    cheapest = how;
  }
  return chosen;
}

/// Joins the range with its neighbours at higher addresses in the same segment, as long as `may` returns true.
template <class May> void memory_pool::join(range_map::iterator lower, May may) {
  for (auto upper = std::next(lower); upper != free_.end(); upper = free_.erase(upper)) {
    bool const adjacent = lower->first + lower->second.bytes == upper->first && !segments_.contains(upper->first);
    if (!adjacent || !may(lower->second, upper->second)) return;
    lower->second.bytes += upper->second.bytes;
    for (pool_free const& ended : upper->second.frees) add_free(lower->second.frees, ended);
  }
}

/// Joins neighbouring ranges if the stream can get both of them in ways up to `furthest`, then searches like best().
memory_pool::range_map::iterator memory_pool::best_joined(stream const& on, std::size_t need, way furthest) {
  for (auto at = free_.begin(); at != free_.end(); ++at)
    join(at, [&](range const& lower, range const& upper) {
      return way_to(lower, on) <= furthest && way_to(upper, on) <= furthest;
    });
  return best(on, need, furthest);
}

pool_block const* memory_pool::take(simulation& all, stream const& on, std::size_t bytes,
                                    std::shared_ptr<record>& behind) {
  if (bytes > most_bytes) return nullptr;
  std::size_t const need = up_to(bytes, block_granule);
  auto place = best(on, need, way::completed);
  if (place == free_.end()) place = best_joined(on, need, way::completed);
  if (place == free_.end() && grow(all, need)) place = best(on, need, way::completed);
  if (place == free_.end()) place = best_joined(on, need, way::wait);
  if (place == free_.end()) return nullptr;
  for (pool_free const& ended : place->second.frees) {
    if (ended.at.on.get() == &on) continue;
    if (!behind) behind = std::make_shared<record>();
    behind->covers.push_back(ended.at);
    behind->order.join(ended.order);
  }
  return cut(place, bytes, need);
}

pool_block const* memory_pool::cut(range_map::iterator place, std::size_t bytes, std::size_t need) {
  std::uint64_t const address = place->first;
  range rest = std::move(place->second);
  free_.erase(place);
  if (rest.bytes > need) {
    rest.bytes -= need;
    free_.emplace(address + need, std::move(rest));
  }
  used += need;
  used_high = std::max(used_high, used);
  return &blocks_.emplace(address, pool_block{address, bytes, need}).first->second;
}

bool memory_pool::grow(simulation& all, std::size_t need) {
  std::size_t const exact = up_to(need, segment_granule);
  if (properties.maxSize != 0 && reserved + exact > up_to(properties.maxSize, segment_granule)) return false;
  std::size_t wanted = std::max(exact, least_segment);
  if (properties.maxSize != 0)
    wanted = std::min<std::size_t>(wanted, up_to(properties.maxSize, segment_granule) - reserved);
  return draw(all, wanted) || (wanted > exact && draw(all, exact));
}

bool memory_pool::draw(simulation& all, std::size_t bytes) {
  allocation const* made = all.allocations.allocate(kind(), device(), &home, bytes, all.order.next_block_number());
  if (made == nullptr) return false;
  all.order.fresh(made->address, made->granted);
  segments_.emplace(made->address, bytes);
  free_.emplace(made->address, range{bytes, {}});
  reserved += bytes;
  reserved_high = std::max(reserved_high, reserved);
  return true;
}

/// Returns whether two ranges can be joined at a free without making either of them harder to reuse. That holds if the
/// frees of both are complete, or if both were freed on the same stream.
bool memory_pool::alike(range const& lower, range const& upper) {
  if (all_done(lower.frees) && all_done(upper.frees)) return true;
  return lower.frees.size() == 1 && upper.frees.size() == 1 && lower.frees[0].at.on == upper.frees[0].at.on;
}

void memory_pool::put(std::uint64_t address, pool_free const* ended) {
  auto const found = blocks_.find(address);
  used -= found->second.granted;
  range part{found->second.granted, {}};
  if (ended != nullptr) {
    part.frees.push_back(*ended);
    std::erase_if(unawaited, [&](position const& older) { return older.on == ended->at.on; });
    unawaited.push_back(ended->at);
  }
  blocks_.erase(found);
  auto const at = free_.emplace(address, std::move(part)).first;
  join(at, alike);
  if (at != free_.begin()) join(std::prev(at), alike);
}

bool memory_pool::idle(simulation const& all, std::uint64_t segment, std::size_t bytes, bool seen_by_host) const {
  std::size_t unused = 0;
  for (auto at = free_.lower_bound(segment); at != free_.end() && at->first < segment + bytes; ++at) {
    unused += at->second.bytes;
    for (pool_free const& ended : at->second.frees)
      if (seen_by_host ? !all.host.covers(ended.component, ended.at.number) : !ended.at.done()) return false;
  }
  return unused == bytes;
}

void memory_pool::release(simulation& all, std::uint64_t most, std::uint64_t least, bool seen_by_host) {
  for (auto at = segments_.begin(); at != segments_.end() && reserved > most;) {
    auto const [address, bytes] = *at;
    if (reserved - bytes < least || !idle(all, address, bytes, seen_by_host)) {
      ++at;
      continue;
    }
    free_.erase(free_.lower_bound(address), free_.lower_bound(address + bytes));
    at = segments_.erase(at);
    reserved -= bytes;
    all.order.gone(all.host_point("release by a pool"), address, bytes, true);
    all.allocations.release(address);
  }
}

pool_block const* memory_pool::find(std::uint64_t address) const {
  auto above = blocks_.upper_bound(address);
  if (above == blocks_.begin()) return nullptr;
  pool_block const& candidate = std::prev(above)->second;
  return address - candidate.address < candidate.bytes ? &candidate : nullptr;
}

bool memory_pool::holds(std::uint64_t address) const {
  auto above = segments_.upper_bound(address);
  return above != segments_.begin() && address - std::prev(above)->first < std::prev(above)->second;
}

namespace {

// This bit is set in the owner numbers of all pools, and in those of no other resource.
constexpr std::uint64_t pool_owners = std::uint64_t{1} << 63;

bool of_host(CUmemLocationType type) {
  return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

} // namespace

CUresult pool_table::judge(CUmemPoolProps const& properties, int devices) {
  auto const [type, id] = properties.location;
  bool const managed = properties.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  if (!managed && properties.allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (!place_of(properties.location, properties.allocType)) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_LOCATION_TYPE_DEVICE && (id < 0 || id >= devices)) return CUDA_ERROR_INVALID_DEVICE;
  if (type == CU_MEM_LOCATION_TYPE_HOST_NUMA && id != 0) return CUDA_ERROR_INVALID_VALUE; // the host has one node
  if ((properties.usage & ~unsigned{CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS}) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (properties.win32SecurityAttributes != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (std::any_of(std::begin(properties.reserved), std::end(properties.reserved),
                  [](unsigned char c) { return c != 0; }))
    return CUDA_ERROR_INVALID_VALUE;
  if (properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE) return CUDA_SUCCESS;
  if (managed || of_host(type)) return CUDA_ERROR_INVALID_VALUE;
  return properties.handleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

memory_pool& pool_table::create(simulation& all, CUmemPoolProps const& properties) {
  bool const on_device = properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  context& home = *all.primaries[static_cast<std::size_t>(on_device ? properties.location.id : 0)];
  auto made = std::make_shared<memory_pool>(properties, home, pool_owners | ++made_);
  made->handle = static_cast<CUmemoryPool>(handles_.insert(made));
  pools_.push_back(made);
  return *made;
}

void pool_table::destroy(simulation& all, memory_pool& which) {
  std::erase_if(current_, [&](auto const& entry) { return entry.second == &which; });
  which.destroyed = true;
  handles_.erase(which.handle);
  collect(all);
}

memory_pool* pool_table::find(CUmemoryPool handle) const {
  auto const* found = handles_.find(handle);
  return found == nullptr ? nullptr : found->get();
}

memory_pool* pool_table::holding(std::uint64_t address) const {
  for (auto const& each : pools_)
    if (each->holds(address)) return each.get();
  return nullptr;
}

std::optional<pool_table::place> pool_table::place_of(CUmemLocation const& location, CUmemAllocationType type) {
  bool const managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
  switch (location.type) {
  case CU_MEM_LOCATION_TYPE_DEVICE:
  case CU_MEM_LOCATION_TYPE_HOST_NUMA: return place{type, location.type, location.id};
  case CU_MEM_LOCATION_TYPE_HOST: return place{type, location.type, 0};
  case CU_MEM_LOCATION_TYPE_NONE: return managed ? std::optional{place{type, location.type, 0}} : std::nullopt;
  default: return std::nullopt;
  }
}

memory_pool* pool_table::default_of(simulation& all, CUmemLocation const& location, CUmemAllocationType type) {
  CUmemPoolProps properties{};
  properties.allocType = type;
  properties.location = location;
  if (judge(properties, all.options().devices) != CUDA_SUCCESS) return nullptr;
  auto& known = defaults_[*place_of(location, type)];
  if (known == nullptr) known = &create(all, properties);
  return known;
}

memory_pool* pool_table::current_of(simulation& all, CUmemLocation const& location, CUmemAllocationType type) {
  auto const where = place_of(location, type);
  auto const found = where ? current_.find(*where) : current_.end();
  return found == current_.end() ? default_of(all, location, type) : found->second;
}

bool pool_table::set_current(CUmemLocation const& location, CUmemAllocationType type, memory_pool* which) {
  auto const where = place_of(location, type);
  if (!where) return false;
  if (which == nullptr) {
    current_.erase(*where);
    return true;
  }
  if (place_of(which->properties.location, which->properties.allocType) != where) return false;
  current_[*where] = which;
  return true;
}

bool pool_table::is_default(memory_pool const& which) const {
  return std::any_of(defaults_.begin(), defaults_.end(), [&](auto const& entry) { return entry.second == &which; });
}

void pool_table::after_wait(simulation& all, std::function<bool(position const&)> const& covered) {
  collect(all);
  for (auto const& each : pools_) {
    std::erase_if(each->unawaited, covered);
    each->release(all, each->threshold, 0, true);
  }
}

void pool_table::collect(simulation& all) {
  std::erase_if(pools_, [&](auto const& each) {
    if (!each->destroyed) return false;
    each->release(all, 0, 0, false);
    return each->empty();
  });
}

void pool_table::clear() {
  handles_.clear();
  pools_.clear();
  defaults_.clear();
  current_.clear();
  made_ = 0;
}

void pool_table::drop(context const& home) {
  auto const dies = [&](auto const& entry) { return &entry.second->home == &home; };
  std::erase_if(defaults_, dies);
  std::erase_if(current_, dies);
  std::erase_if(pools_, [&](auto const& each) {
    if (&each->home != &home) return false;
    if (!each->destroyed) handles_.erase(each->handle);
    return true;
  });
}

} // namespace simulated
