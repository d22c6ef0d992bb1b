// Creates physical memory; reserves, maps and unmaps addresses. At unmapped addresses lies scratch memory, so that a
// wrong access does not crash the process and can be reported.
// SPDX-License-Identifier: Apache-2.0
#include "virtual_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <new>
#include <string>
#include <utility>

namespace simulated {

namespace {

// In the position of a shared descriptor, the bits below those of the offset: the number of pages, then the device.
constexpr unsigned page_bits = 17;
constexpr std::uint64_t page_mask = (std::uint64_t{1} << page_bits) - 1;

constexpr off_t file_size = off_t{1} << 52; // sparse; large enough that no offset must be reused

void const* as_key(CUmemGenericAllocationHandle handle) { return reinterpret_cast<void const*>(handle); }

} // namespace

physical_memory::~physical_memory() {
  if (file_ != -1) ::close(file_);
}

void physical_memory::open_file() {
  file_ = ::memfd_create("gpumem simulated device memory", MFD_CLOEXEC);
  if (file_ == -1 || ::ftruncate(file_, file_size) != 0) throw std::bad_alloc();
}

std::shared_ptr<physical> physical_memory::create(CUmemAllocationProp const& properties, std::size_t bytes,
                                                  std::uint64_t number) {
  if (file_ == -1) open_file();
  return insert({properties, bytes, end_, {file_, end_}, number});
}

std::shared_ptr<physical> physical_memory::insert(physical memory) {
  auto kept = std::make_shared<physical>(memory);
  kept->handle = reinterpret_cast<CUmemGenericAllocationHandle>(handles_.insert(kept));
  end_ += kept->bytes;
  return kept;
}

// The position of the descriptor is the offset of the memory, a multiple of the granularity, plus its number of pages
// and its device.
int physical_memory::share(physical const& memory) const {
  std::string const path = "/proc/self/fd/" + std::to_string(memory.place.file);
  std::uint64_t const pages = memory.bytes / page_granularity;
  if (pages > page_mask) return -1;
  auto const device = static_cast<std::uint64_t>(memory.device());
  int const named = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (named != -1) ::lseek(named, static_cast<off_t>(memory.place.offset + pages + (device << page_bits)), SEEK_SET);
  return named;
}

std::shared_ptr<physical> physical_memory::import(int descriptor, CUmemAllocationProp properties,
                                                  std::uint64_t number) {
  struct stat file_of_program{};
  struct stat file_of_simulator{};
  auto const position = static_cast<std::uint64_t>(::lseek(descriptor, 0, SEEK_CUR));
  std::uint64_t const offset = position / page_granularity * page_granularity;
  std::size_t const bytes = (position & page_mask) * page_granularity;
  properties.location.id = static_cast<int>((position - offset) >> page_bits);
  if (::fstat(descriptor, &file_of_program) != 0 || file_of_program.st_size != file_size || bytes == 0) return nullptr;
  if (file_ != -1 && ::fstat(file_, &file_of_simulator) == 0 && file_of_program.st_ino == file_of_simulator.st_ino &&
      file_of_program.st_dev == file_of_simulator.st_dev) {
    std::shared_ptr<physical> page;
    handles_.visit([&](physical const& one) {
      if (!one.foreign && one.offset == offset && one.bytes == bytes) page = *handles_.find(as_key(one.handle));
    });
    if (page) ++page->references;
    return page;
  }
  int const file = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (file == -1) throw std::bad_alloc();
  auto made = insert({properties, bytes, end_, {file, offset}, number});
  made->foreign = true;
  return made;
}

std::shared_ptr<physical> physical_memory::find(CUmemGenericAllocationHandle handle) const {
  auto const* found = handles_.find(as_key(handle));
  return found == nullptr || (*found)->references == 0 ? nullptr : *found;
}

bool physical_memory::released(CUmemGenericAllocationHandle handle) const {
  return handles_.state(as_key(handle)) != handle_state::unknown && find(handle) == nullptr;
}

bool physical_memory::collect(physical const& memory) {
  if (memory.references != 0 || memory.mappings != 0) return false;
  if (memory.foreign)
    ::close(memory.place.file);
  else
    ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(memory.offset),
                static_cast<off_t>(memory.bytes));
  handles_.erase(as_key(memory.handle));
  return true;
}

void physical_memory::clear() {
  handles_.visit([](physical const& one) {
    if (one.foreign) ::close(one.place.file);
  });
  handles_.clear();
  if (end_ != 0) ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(end_));
  end_ = 0;
}

namespace {

constexpr std::size_t space_size = std::size_t{1} << 40;

void place(std::uint64_t address, std::size_t bytes, int flags, int file, std::uint64_t offset) {
  void* const wanted = reinterpret_cast<void*>(address);
  void* const at = ::mmap(wanted, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED | MAP_NORESERVE, file,
                          static_cast<off_t>(offset));
  if (at == MAP_FAILED) throw std::bad_alloc();
  ::madvise(at, bytes, MADV_DONTDUMP);
}

void place_scratch(std::uint64_t address, std::size_t bytes) {
  place(address, bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

bool has_reserved(address_space& space, std::size_t bytes) try {
  space.reserve(bytes);
  return true;
} catch (std::bad_alloc const&) { return false; }

} // namespace

std::uint64_t virtual_memory::reserve(std::size_t bytes, std::size_t alignment) {
  if (bytes > (std::size_t{1} << 47) || (most_ != 0 && bytes > most_ - std::min(most_, reserved_))) return 0;
  std::uint64_t address = 0;
  for (address_space& space : spaces_)
    if ((address = space.allocate(bytes, alignment)) != 0) break;
  if (address == 0) {
    spaces_.emplace_back();
    if (!has_reserved(spaces_.back(), std::max(space_size, bytes + alignment)) &&
        !has_reserved(spaces_.back(), bytes + alignment)) {
      spaces_.pop_back();
      return 0;
    }
    address = spaces_.back().allocate(bytes, alignment);
  }
  reservations_.emplace(address, bytes);
  reserved_ += bytes;
  return address;
}

bool virtual_memory::unreserve(std::uint64_t address, std::size_t bytes) {
  auto const found = reservations_.find(address);
  if (found == reservations_.end() || found->second != bytes) return false;
  auto const mapped = mappings_.lower_bound(address);
  if (mapped != mappings_.end() && mapped->first < address + bytes) return false;
  for (address_space& space : spaces_)
    if (space.contains(address)) space.free(address, bytes);
  reservations_.erase(found);
  reserved_ -= bytes;
  return true;
}

bool virtual_memory::map(std::uint64_t address, std::size_t bytes, std::shared_ptr<physical> const& memory) {
  auto const [start, length] = reservation_of(address);
  if (length == 0 || bytes > length - (address - start)) return false;
  auto const next_mapping = mappings_.lower_bound(address);
  if (next_mapping != mappings_.end() && next_mapping->first < address + bytes) return false;
  if (find(address) != nullptr) return false;
  auto const made = mappings_.emplace_hint(next_mapping, address, mapping{address, bytes, memory, {}, {}});
  try {
    place(address, bytes, MAP_SHARED, memory->place.file, memory->place.offset);
  } catch (std::bad_alloc const&) {
    mappings_.erase(made);
    throw;
  }
  ++memory->mappings;
  return true;
}

void virtual_memory::unmap(mapping const& mapping) {
  place_scratch(mapping.address, mapping.bytes);
  --mapping.memory->mappings;
  mappings_.erase(mapping.address);
}

mapping* virtual_memory::find(std::uint64_t address) {
  return const_cast<mapping*>(std::as_const(*this).find(address));
}

mapping const* virtual_memory::find(std::uint64_t address) const {
  auto above = mappings_.upper_bound(address);
  if (above == mappings_.begin()) return nullptr;
  mapping const& candidate = std::prev(above)->second;
  return address - candidate.address < candidate.bytes ? &candidate : nullptr;
}

std::vector<mapping*> virtual_memory::filling(std::uint64_t address, std::size_t bytes) {
  std::vector<mapping*> all;
  std::uint64_t const end = address + bytes;
  for (auto at = mappings_.find(address); at != mappings_.end() && at->first == address && address < end; ++at) {
    all.push_back(&at->second);
    address += at->second.bytes;
  }
  if (address != end) all.clear();
  return all;
}

std::pair<std::uint64_t, std::size_t> virtual_memory::reservation_of(std::uint64_t address) const {
  auto above = reservations_.upper_bound(address);
  if (above == reservations_.begin()) return {0, 0};
  auto const [start, bytes] = *std::prev(above);
  return address - start < bytes ? std::pair{start, bytes} : std::pair{std::uint64_t{0}, std::size_t{0}};
}

bool virtual_memory::owns(std::uint64_t address) const noexcept {
  return std::any_of(spaces_.begin(), spaces_.end(),
                     [&](address_space const& space) { return space.contains(address); });
}

void virtual_memory::clear() {
  while (!mappings_.empty()) unmap(mappings_.begin()->second);
  reservations_.clear();
  reserved_ = 0;
  for (address_space& space : spaces_) space.clear();
}

} // namespace simulated
