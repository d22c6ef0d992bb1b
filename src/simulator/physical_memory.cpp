// physical_memory: keeps the bytes of all physical allocations in one sparse memory file, whose untouched pages take no
// memory.
// SPDX-License-Identifier: Apache-2.0
#include "physical_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <utility>

namespace simulated {

namespace {

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
  auto made = std::make_shared<physical>(physical{properties, bytes, end_, number});
  made->handle = reinterpret_cast<CUmemGenericAllocationHandle>(handles_.insert(made));
  end_ += bytes;
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
  ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(which.offset),
              static_cast<off_t>(which.bytes));
  handles_.erase(as_key(which.handle));
  return true;
}

void physical_memory::clear() {
  handles_.clear();
  if (end_ != 0) ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(end_));
  end_ = 0;
}

} // namespace simulated
