// Memory pools: their chunks, blocks and free ranges, and the table of pools.
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
constexpr std::size_t chunk_granule = std::size_t{2} << 20;
constexpr std::size_t least_chunk = std::size_t{32} << 20;
constexpr std::size_t most_bytes = std::size_t{1} << 48; // more than any device has; sums of sizes cannot overflow

constexpr std::size_t up_to(std::size_t bytes, std::size_t granule) {
  return (bytes + granule - 1) / granule * granule;
}

/// Adds a free to the list. The list keeps one entry per component of the clock (per stream), since the newest free
/// covers older ones.
void add_free(std::vector<pool_free>& frees, pool_free const& added) {
  for (pool_free& known : frees) {
    if (known.component != added.component) continue;
    if (known.position.number < added.position.number) known = added;
    return;
  }
  frees.push_back(added);
}

bool all_done(std::vector<pool_free> const& frees) {
  return std::all_of(frees.begin(), frees.end(), [](pool_free const& ended) { return ended.position.done(); });
}

} // namespace

memory_kind memory_pool::kind() const noexcept {
  if (properties.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED) return memory_kind::managed;
  return properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? memory_kind::device : memory_kind::pinned;
}

int memory_pool::device() const noexcept {
  return properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? properties.location.id : 0;
}

memory_pool::reuse_tier memory_pool::tier_of(range const& part, stream const& stream) const {
  reuse_tier last_tier = reuse_tier::same_stream;
  for (pool_free const& ended : part.frees) {
    if (ended.position.stream.get() == &stream) continue;
    if (follow_events && stream.order.covers(ended.component, ended.position.number))
      last_tier = std::max(last_tier, reuse_tier::ordered);
    else if (opportunistic && ended.position.done())
      last_tier = std::max(last_tier, reuse_tier::completed);
    else
      last_tier = std::max(last_tier, internal ? reuse_tier::wait : reuse_tier::none);
  }
  return last_tier;
}

/// Returns the range that the stream can get in the cheapest tier, if that tier is not beyond `last_tier`. The values
/// of `reuse_tier` go from cheap to expensive. Among several such ranges, returns the smallest that fits. Returns end()
/// if there is none. New memory of the device comes before a wait that the driver inserts, as CUDA documents.
memory_pool::range_map::iterator memory_pool::best(stream const& stream, std::size_t need, reuse_tier last_tier) {
  auto cheapest_range = free_.end();
  reuse_tier cheapest = reuse_tier::none;
  for (auto at = free_.begin(); at != free_.end(); ++at) {
    if (at->second.bytes < need) continue;
    reuse_tier const tier = tier_of(at->second, stream);
    if (tier > last_tier) continue;
    if (cheapest_range != free_.end() &&
        std::pair(tier, at->second.bytes) >= std::pair(cheapest, cheapest_range->second.bytes))
      continue;
    cheapest_range = at;
    cheapest = tier;
  }
  return cheapest_range;
}

/// Coalesces the range with its neighbours at higher addresses in the same chunk, as long as `may` returns true.
template <class May> void memory_pool::coalesce(range_map::iterator lower, May may) {
  for (auto upper = std::next(lower); upper != free_.end(); upper = free_.erase(upper)) {
    bool const adjacent = lower->first + lower->second.bytes == upper->first && !chunks_.contains(upper->first);
    if (!adjacent || !may(lower->second, upper->second)) return;
    lower->second.bytes += upper->second.bytes;
    for (pool_free const& ended : upper->second.frees) add_free(lower->second.frees, ended);
  }
}

/// Coalesces neighbouring ranges if the stream can get both of them in ways up to `last_tier`, then searches like
/// best().
memory_pool::range_map::iterator memory_pool::best_coalesced(stream const& stream, std::size_t need,
                                                             reuse_tier last_tier) {
  for (auto at = free_.begin(); at != free_.end(); ++at)
    coalesce(at, [&](range const& lower, range const& upper) {
      return tier_of(lower, stream) <= last_tier && tier_of(upper, stream) <= last_tier;
    });
  return best(stream, need, last_tier);
}

pool_block const* memory_pool::allocate(simulation& simulation, stream const& stream, std::size_t bytes,
                                        std::shared_ptr<record>& frees_record) {
  if (bytes > most_bytes) return nullptr;
  std::size_t const need = up_to(bytes, block_granule);
  auto place = best(stream, need, reuse_tier::completed);
  if (place == free_.end()) place = best_coalesced(stream, need, reuse_tier::completed);
  if (place == free_.end() && grow(simulation, need)) place = best(stream, need, reuse_tier::completed);
  if (place == free_.end()) place = best_coalesced(stream, need, reuse_tier::wait);
  if (place == free_.end()) return nullptr;
  for (pool_free const& ended : place->second.frees) {
    if (ended.position.stream.get() == &stream) continue;
    if (!frees_record) frees_record = std::make_shared<record>();
    frees_record->covers.push_back(ended.position);
    frees_record->order.join(ended.order);
  }
  return split(place, bytes, need);
}

pool_block const* memory_pool::split(range_map::iterator place, std::size_t bytes, std::size_t need) {
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

bool memory_pool::grow(simulation& simulation, std::size_t need) {
  std::size_t const exact = up_to(need, chunk_granule);
  if (properties.maxSize != 0 && reserved + exact > up_to(properties.maxSize, chunk_granule)) return false;
  std::size_t wanted = std::max(exact, least_chunk);
  if (properties.maxSize != 0)
    wanted = std::min<std::size_t>(wanted, up_to(properties.maxSize, chunk_granule) - reserved);
  return add_chunk(simulation, wanted) || (wanted > exact && add_chunk(simulation, exact));
}

bool memory_pool::add_chunk(simulation& simulation, std::size_t bytes) {
  allocation const* made =
      simulation.allocations.allocate(kind(), device(), &home, bytes, simulation.order.next_block_number());
  if (made == nullptr) return false;
  simulation.order.fresh(made->address, made->granted);
  chunks_.emplace(made->address, bytes);
  free_.emplace(made->address, range{bytes, {}});
  reserved += bytes;
  reserved_high = std::max(reserved_high, reserved);
  return true;
}

/// Returns whether two ranges can be joined at a free without making either of them harder to reuse. That holds if the
/// frees of both are complete, or if both were freed on the same stream.
bool memory_pool::alike(range const& lower, range const& upper) {
  if (all_done(lower.frees) && all_done(upper.frees)) return true;
  return lower.frees.size() == 1 && upper.frees.size() == 1 &&
         lower.frees[0].position.stream == upper.frees[0].position.stream;
}

void memory_pool::free(std::uint64_t address, pool_free const* ended) {
  auto const entry = blocks_.find(address);
  used -= entry->second.granted;
  range part{entry->second.granted, {}};
  if (ended != nullptr) {
    part.frees.push_back(*ended);
    std::erase_if(unawaited, [&](position const& older) { return older.stream == ended->position.stream; });
    unawaited.push_back(ended->position);
  }
  blocks_.erase(entry);
  auto const at = free_.emplace(address, std::move(part)).first;
  coalesce(at, alike);
  if (at != free_.begin()) coalesce(std::prev(at), alike);
}

bool memory_pool::idle(simulation const& simulation, std::uint64_t chunk, std::size_t bytes, bool seen_by_host) const {
  std::size_t unused = 0;
  for (auto at = free_.lower_bound(chunk); at != free_.end() && at->first < chunk + bytes; ++at) {
    unused += at->second.bytes;
    for (pool_free const& ended : at->second.frees)
      if (seen_by_host ? !simulation.host.covers(ended.component, ended.position.number) : !ended.position.done())
        return false;
  }
  return unused == bytes;
}

void memory_pool::trim(simulation& simulation, std::uint64_t most, std::uint64_t least, bool seen_by_host) {
  for (auto chunk = chunks_.begin(); chunk != chunks_.end() && reserved > most;) {
    auto const [address, bytes] = *chunk;
    if (reserved - bytes < least || !idle(simulation, address, bytes, seen_by_host)) {
      ++chunk;
      continue;
    }
    free_.erase(free_.lower_bound(address), free_.lower_bound(address + bytes));
    chunk = chunks_.erase(chunk);
    reserved -= bytes;
    simulation.order.removed(simulation.host_point("release by a pool"), address, bytes, true);
    simulation.allocations.free(address);
  }
}

pool_block const* memory_pool::find(std::uint64_t address) const {
  auto above = blocks_.upper_bound(address);
  if (above == blocks_.begin()) return nullptr;
  pool_block const& candidate = std::prev(above)->second;
  return address - candidate.address < candidate.bytes ? &candidate : nullptr;
}

bool memory_pool::holds(std::uint64_t address) const {
  auto above = chunks_.upper_bound(address);
  return above != chunks_.begin() && address - std::prev(above)->first < std::prev(above)->second;
}

namespace {

// This bit is set in the owner numbers of all pools, and in those of no other resource.
constexpr std::uint64_t pool_owners = std::uint64_t{1} << 63;

bool of_host(CUmemLocationType type) {
  return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

} // namespace

CUresult pool_table::check_properties(CUmemPoolProps const& properties, int devices) {
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

memory_pool& pool_table::create(simulation& simulation, CUmemPoolProps const& properties) {
  bool const on_device = properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  context& home = *simulation.primaries[static_cast<std::size_t>(on_device ? properties.location.id : 0)];
  auto made = std::make_shared<memory_pool>(properties, home, pool_owners | ++pool_count_);
  made->handle = static_cast<CUmemoryPool>(handles_.insert(made));
  pools_.push_back(made);
  return *made;
}

void pool_table::destroy(simulation& simulation, memory_pool& pool) {
  std::erase_if(current_, [&](auto const& entry) { return entry.second == &pool; });
  pool.destroyed = true;
  handles_.erase(pool.handle);
  collect(simulation);
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

memory_pool* pool_table::default_of(simulation& simulation, CUmemLocation const& location, CUmemAllocationType type) {
  CUmemPoolProps properties{};
  properties.allocType = type;
  properties.location = location;
  if (check_properties(properties, simulation.options().devices) != CUDA_SUCCESS) return nullptr;
  auto& known = defaults_[*place_of(location, type)];
  if (known == nullptr) known = &create(simulation, properties);
  return known;
}

memory_pool* pool_table::current_of(simulation& simulation, CUmemLocation const& location, CUmemAllocationType type) {
  auto const where = place_of(location, type);
  auto const found = where ? current_.find(*where) : current_.end();
  return found == current_.end() ? default_of(simulation, location, type) : found->second;
}

bool pool_table::set_current(CUmemLocation const& location, CUmemAllocationType type, memory_pool* pool) {
  auto const where = place_of(location, type);
  if (!where) return false;
  if (pool == nullptr) {
    current_.erase(*where);
    return true;
  }
  if (place_of(pool->properties.location, pool->properties.allocType) != where) return false;
  current_[*where] = pool;
  return true;
}

bool pool_table::is_default(memory_pool const& pool) const {
  return std::any_of(defaults_.begin(), defaults_.end(), [&](auto const& entry) { return entry.second == &pool; });
}

void pool_table::after_wait(simulation& simulation, std::function<bool(position const&)> const& covered) {
  collect(simulation);
  for (auto const& each : pools_) {
    std::erase_if(each->unawaited, covered);
    each->trim(simulation, each->release_threshold, 0, true);
  }
}

void pool_table::collect(simulation& simulation) {
  std::erase_if(pools_, [&](auto const& each) {
    if (!each->destroyed) return false;
    each->trim(simulation, 0, 0, false);
    return each->empty();
  });
}

void pool_table::clear() {
  handles_.clear();
  pools_.clear();
  defaults_.clear();
  current_.clear();
  pool_count_ = 0;
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
