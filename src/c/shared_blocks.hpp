// Blocks of this process whose pages other processes map.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pool.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "../support/guarded_mutex.hpp"
#include "page_socket.hpp"

namespace gpumem::c {

/// The pages that hold a block of a pool. The constructor pins them, and the destructor takes back the pins.
class pinned_pages {
public:
  /// Throws what gpumem_pool::export_page throws.
  pinned_pages(gpumem_pool& pool, void const* block, std::size_t bytes);
  pinned_pages(pinned_pages const&) = delete;
  pinned_pages& operator=(pinned_pages const&) = delete;
  ~pinned_pages();

  char* base() const noexcept { return base_; }
  std::size_t bytes() const noexcept { return bytes_; }
  std::size_t pages() const noexcept { return pages_; }
  /// Sends all pages, in the order of their addresses.
  void send(page_socket& to) const;

private:
  gpumem_pool& pool_;
  char* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t pages_ = 0;
};

/// The shared blocks of the process. A thread, which the first share() starts, sends their pages to processes of the
/// same user that know the name of a block. Pools of shared blocks must live as long as the process. Any thread.
class shared_blocks {
public:
  /// Returns the one instance of the process; never destroyed.
  static shared_blocks& instance();

  struct name {
    std::string text;
    std::size_t offset = 0; ///< of the block, from the start of its first page
  };
  /// Returns the name by which other processes open the block's pages. Pins the pages until end(). A block that is
  /// shared already has one name. Throws what gpumem_pool::export_page throws, and std::runtime_error if no socket can
  /// be made.
  name share(gpumem_pool& pool, void const* block, std::size_t bytes);
  /// Ends the sharing of a block, if it is shared: its name opens nothing any more. Pages that other processes have
  /// mapped stay theirs.
  void end(void const* block) noexcept;
  /// Returns whether any block is shared.
  bool any() const noexcept { return any_.load(std::memory_order_relaxed); }

private:
  struct record {
    std::uint64_t id = 0;
    std::shared_ptr<pinned_pages const> pages;
  };

  void serve() noexcept;
  void answer(owned_file connection);
  std::shared_ptr<pinned_pages const> find(std::uint64_t id);

  std::atomic<bool> any_{false};
  support::guarded_mutex mutex_;
  std::unique_ptr<listening_socket> socket_ __attribute__((guarded_by(mutex_)));
  std::unordered_map<void const*, record> blocks_ __attribute__((guarded_by(mutex_)));
};

/// The first number of each request for pages.
inline constexpr std::uint64_t page_request = 0x31'65'67'61'70'6d'70'67; // "gpmpage1"

} // namespace gpumem::c
