// Maps pages that another process has sent.
// SPDX-License-Identifier: Apache-2.0
#include "opened_pages.hpp"

#include <cuda.h>

#include <charconv>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "page_socket.hpp"
#include "shared_blocks.hpp"

import gpumem;

namespace gpumem::c {
namespace {

using driver_api::check;
using driver_api::driver;

struct name_parts {
  std::uint64_t id = 0;
  std::string path;
};

name_parts read_name(std::string_view name) {
  constexpr int hexadecimal = 16;
  name_parts parts;
  auto const [end, error] = std::from_chars(name.data(), name.data() + name.size(), parts.id, hexadecimal);
  auto const rest = name.substr(static_cast<std::size_t>(end - name.data()));
  if (error != std::errc{} || !rest.starts_with(":/")) throw std::invalid_argument{"gpumem: no name of shared memory"};
  parts.path = rest.substr(1);
  return parts;
}

} // namespace

/// Addresses of a device, and the pages that are mapped there in a row.
class mapped_pages {
public:
  mapped_pages(int ordinal, std::size_t bytes) : device_{ordinal}, bytes_{bytes} {
    check(driver().mem_address_reserve(&base_, bytes, 0, 0, 0), "cuMemAddressReserve");
  }
  mapped_pages(mapped_pages const&) = delete;
  mapped_pages& operator=(mapped_pages const&) = delete;
  ~mapped_pages() {
    if (!driver_api::driver_alive()) return;
    detail::relaxed_capture const relaxed;
    if (mapped_ > 0) driver().mem_unmap(base_, mapped_);
    driver().mem_address_free(base_, bytes_);
  }

  int device() const noexcept { return device_; }
  void* base() const noexcept { return reinterpret_cast<void*>(base_); }
  std::size_t missing() const noexcept { return bytes_ - mapped_; }

  /// Maps the page behind the others.
  void add(sent_page const& page) {
    if (page.bytes == 0 || page.bytes > missing())
      throw std::runtime_error{"gpumem: the other process has sent a page of a wrong size"};
    CUmemGenericAllocationHandle handle = 0;
    auto* const file = reinterpret_cast<void*>(static_cast<std::intptr_t>(page.file.get()));
    check(driver().mem_import_from_shareable_handle(&handle, file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          "cuMemImportFromShareableHandle");
    auto const mapped = driver().mem_map(base_ + mapped_, page.bytes, 0, handle, 0);
    driver().mem_release(handle); // the mapping keeps the memory
    check(mapped, "cuMemMap");
    mapped_ += page.bytes;
  }

  /// Lets the device read and write the pages.
  void open() {
    CUmemAccessDesc const right{{CU_MEM_LOCATION_TYPE_DEVICE, device_}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check(driver().mem_set_access(base_, bytes_, &right, 1), "cuMemSetAccess");
  }

private:
  int device_;
  std::size_t bytes_;
  std::size_t mapped_ = 0;
  CUdeviceptr base_ = 0;
};

opened_pages& opened_pages::instance() {
  static auto* const all = new opened_pages;
  return *all;
}

opened_pages::memory opened_pages::open(std::string_view name, int device) {
  auto const [id, path] = read_name(name);
  gpumem::device const where{device};
  where.require();
  device_guard const scope{where};
  detail::relaxed_capture const relaxed;
  auto other = page_socket::connect(path);
  other.send({page_request, id, 0});
  auto const [kind, bytes, count] = other.receive();
  if (kind != page_request || bytes > where.memory().total || count > bytes)
    throw std::runtime_error{"gpumem: the other process has sent an answer that makes no sense"};
  if (bytes == 0) throw std::runtime_error{"gpumem: the other process does not share this memory any more"};
  auto made = std::make_unique<mapped_pages>(device, bytes);
  while (made->missing() > 0) {
    for (auto const& page : other.receive_pages()) made->add(page);
  }
  made->open();
  wait_of(device).prepare();
  memory const opened{made->base(), bytes};
  support::scoped_lock const held{mutex_};
  open_.emplace(opened.base, std::move(made));
  return opened;
}

device_wait& opened_pages::wait_of(int device) {
  support::scoped_lock const held{mutex_};
  return waits_.try_emplace(device, device).first->second;
}

void opened_pages::close(void* base) {
  auto taken = [&] {
    support::scoped_lock const held{mutex_};
    return open_.extract(base);
  }();
  if (!taken) throw std::invalid_argument{"gpumem: no opened memory begins at this address"};
  if (!driver_api::driver_alive()) return;
  try {
    wait_of(taken.mapped()->device()).wait();
  } catch (...) {
    support::scoped_lock const held{mutex_};
    open_.insert(std::move(taken));
    throw;
  }
}

} // namespace gpumem::c
