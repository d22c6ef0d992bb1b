// physical_memory: keeps the bytes of all physical allocations in one sparse memory file, whose untouched pages take no
// memory.
// SPDX-License-Identifier: Apache-2.0
#include "physical_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <new>
#include <string>
#include <utility>

namespace simulated {

namespace {

// In the position of a shared descriptor, the bits below those of the offset: the number of pages, then the device.
constexpr unsigned page_bits = 17;
constexpr std::uint64_t page_mask = (std::uint64_t{1} << page_bits) - 1;

constexpr off_t file_size = off_t{1} << 52; // sparse; large enough that no offset must be reused

const void* as_key(CUmemGenericAllocationHandle handle) { return reinterpret_cast<const void*>(handle); }

} // namespace

physical_memory::~physical_memory() {
  if (file_ != -1) ::close(file_);
}

void physical_memory::open_file() {
  file_ = ::memfd_create("gpumem simulated device memory", MFD_CLOEXEC);
  if (file_ == -1 || ::ftruncate(file_, file_size) != 0) throw std::bad_alloc();
}

std::shared_ptr<physical> physical_memory::create(const CUmemAllocationProp& properties, std::size_t bytes,
                                                  std::uint64_t number) {
  if (file_ == -1) open_file();
  return insert({properties, bytes, end_, {file_, end_}, number});
}

std::shared_ptr<physical> physical_memory::insert(physical made) {
  auto kept = std::make_shared<physical>(made);
  kept->handle = reinterpret_cast<CUmemGenericAllocationHandle>(handles_.insert(kept));
  end_ += kept->bytes;
  return kept;
}

// The position of the descriptor is the offset of the memory, a multiple of the granularity, plus its number of pages
// and its device.
int physical_memory::share(const physical& which) const {
  const std::string path = "/proc/self/fd/" + std::to_string(which.place.file);
  const std::uint64_t pages = which.bytes / page_granularity;
  if (pages > page_mask) return -1;
  const auto device = static_cast<std::uint64_t>(which.device());
  const int named = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (named != -1) ::lseek(named, static_cast<off_t>(which.place.offset + pages + (device << page_bits)), SEEK_SET);
  return named;
}

std::shared_ptr<physical> physical_memory::import(int descriptor, CUmemAllocationProp properties,
                                                  std::uint64_t number) {
  struct stat theirs{};
  struct stat ours{};
  const auto position = static_cast<std::uint64_t>(::lseek(descriptor, 0, SEEK_CUR));
  const std::uint64_t offset = position / page_granularity * page_granularity;
  const std::size_t bytes = (position & page_mask) * page_granularity;
  properties.location.id = static_cast<int>((position - offset) >> page_bits);
  if (::fstat(descriptor, &theirs) != 0 || theirs.st_size != file_size || bytes == 0) return nullptr;
  if (file_ != -1 && ::fstat(file_, &ours) == 0 && theirs.st_ino == ours.st_ino && theirs.st_dev == ours.st_dev) {
    std::shared_ptr<physical> own;
    handles_.visit([&](const physical& one) {
      if (!one.foreign && one.offset == offset && one.bytes == bytes) own = *handles_.find(as_key(one.handle));
    });
    if (own) ++own->references;
    return own;
  }
  const int file = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (file == -1) throw std::bad_alloc();
  auto made = insert({properties, bytes, end_, {file, offset}, number});
  made->foreign = true;
  return made;
}

std::shared_ptr<physical> physical_memory::find(CUmemGenericAllocationHandle handle) const {
  const auto* found = handles_.find(as_key(handle));
  return found == nullptr || (*found)->references == 0 ? nullptr : *found;
}

bool physical_memory::released(CUmemGenericAllocationHandle handle) const {
  return handles_.state(as_key(handle)) != handle_state::unknown && find(handle) == nullptr;
}

bool physical_memory::collect(const physical& which) {
  if (which.references != 0 || which.mappings != 0) return false;
  if (which.foreign)
    ::close(which.place.file);
  else
    ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(which.offset),
                static_cast<off_t>(which.bytes));
  handles_.erase(as_key(which.handle));
  return true;
}

void physical_memory::clear() {
  handles_.visit([](const physical& one) {
    if (one.foreign) ::close(one.place.file);
  });
  handles_.clear();
  if (end_ != 0) ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(end_));
  end_ = 0;
}

} // namespace simulated
