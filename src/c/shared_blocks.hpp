// Blocks whose pages processes share: the messages between them, the pages that a process sends, and those that it
// maps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/lock_attributes.hpp>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../support/guarded_mutex.hpp"
#include "device_wait.hpp"
#include "pool.hpp"

namespace gpumem::c {

/// A file descriptor, closed by the destructor.
class owned_file {
public:
  explicit owned_file(int descriptor = -1) noexcept : descriptor_{descriptor} {}
  owned_file(owned_file&& other) noexcept : descriptor_{std::exchange(other.descriptor_, -1)} {}
  owned_file& operator=(owned_file&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~owned_file();
  int get() const noexcept { return descriptor_; }
  explicit operator bool() const noexcept { return descriptor_ >= 0; }

private:
  int descriptor_;
};

/// Returns a random number. Throws std::runtime_error if the system has none.
std::uint64_t new_random_number();

/// The numbers of one message.
using message_numbers = std::array<std::uint64_t, 3>;

/// A page that travels with a message.
struct sent_page {
  owned_file file;
  std::uint64_t bytes = 0;
};
/// The most pages of one message. The system allows 253 descriptors; fewer stay far from a process's limit of open
/// files, which is often 1,024.
inline constexpr std::size_t pages_per_message = 64;

/// One end of a connection whose other end is a process of the same user. A call that waits for the other process for
/// more than 10 s fails. Functions throw std::runtime_error with a text of the system's error, and std::bad_alloc.
class page_socket {
public:
  /// Takes over a connected socket. Throws if the other process belongs to another user.
  explicit page_socket(owned_file connected);
  /// Connects to the socket at the path. Throws if no process listens there.
  static page_socket connect(std::string const& path);

  void send(message_numbers const& numbers);
  message_numbers receive();
  /// Sends at most pages_per_message pages.
  void send_pages(std::span<sent_page const> pages);
  /// Receives one message of pages, at least one page.
  std::vector<sent_page> receive_pages();

private:
  owned_file file_;
};

/// A socket in a folder that only the user can enter. Throws std::runtime_error if there can be no such folder.
class listening_socket {
public:
  listening_socket();
  /// Returns the path of the socket.
  std::string const& path() const noexcept { return path_; }
  /// Waits for a connection, and returns it. Waits on while the process has no file descriptor for it. Returns an empty
  /// file if the program has closed the socket.
  owned_file accept() noexcept;

private:
  std::string path_;
  owned_file file_;
};

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
  void send(page_socket& socket) const;

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
  std::unique_ptr<listening_socket> socket_ GPUMEM_GUARDED_BY(mutex_);
  std::unordered_map<void const*, record> blocks_ GPUMEM_GUARDED_BY(mutex_);
};

/// The first number of each request for pages.
inline constexpr std::uint64_t page_request = 0x31'65'67'61'70'6d'70'67; // "gpmpage1"

class mapped_pages;

/// The opened pages of the process. Any thread.
class opened_pages {
public:
  /// Returns the one instance of the process; never destroyed.
  static opened_pages& instance();

  struct memory {
    void* base = nullptr;
    std::size_t bytes = 0;
  };
  /// Maps the pages that a process of the same user has shared under the name, readable and writable by the device.
  /// Waits for the other process, at most 10 s for each message. Throws std::runtime_error if that process cannot be
  /// reached or has ended the share, std::invalid_argument if the text is no name, and what the driver's failures
  /// throw.
  memory open(std::string_view name, int device);
  /// Waits for all work of the device and unmaps the memory. Throws std::invalid_argument if the address is not that of
  /// opened memory, and what device_wait::wait() throws; the memory then stays mapped.
  void close(void* base);

private:
  opened_pages() = default;
  ~opened_pages() = default;

  support::guarded_mutex mutex_;
  device_wait& wait_of(int device);

  std::map<void*, std::unique_ptr<mapped_pages>> open_ GPUMEM_GUARDED_BY(mutex_);
  std::map<int, device_wait> waits_ GPUMEM_GUARDED_BY(mutex_); // by device
};

} // namespace gpumem::c
