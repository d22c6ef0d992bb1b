// Messages between two processes of one user: numbers and file descriptors, through a socket.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gpumem::c {

/// A file descriptor, closed by the destructor.
class owned_file {
public:
  explicit owned_file(int descriptor = -1) noexcept : descriptor_{descriptor} {}
  owned_file(owned_file&& from) noexcept : descriptor_{std::exchange(from.descriptor_, -1)} {}
  owned_file& operator=(owned_file&& from) noexcept {
    std::swap(descriptor_, from.descriptor_);
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

} // namespace gpumem::c
