// Messages between two processes of one user, through a socket in a folder of that user.
// SPDX-License-Identifier: Apache-2.0
#include "page_socket.hpp"

#include <dirent.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <system_error>

namespace gpumem::c {
namespace {

constexpr int patience = 10; // seconds for which a call waits for the other process

[[noreturn]] void fail(std::string const& what) {
  auto const error = errno; // before the text is made
  throw std::runtime_error{"gpumem: " + what + ": " + std::generic_category().message(error)};
}

/// Retries a call that a signal has interrupted.
template <class Call> auto uninterrupted(Call call) noexcept {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

sockaddr_un address_of(std::string const& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    throw std::runtime_error{"gpumem: the path of a socket is too long: " + path};
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

owned_file new_socket(int flags = 0) {
  owned_file made{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0)};
  if (!made) fail("no socket can be made");
  return made;
}

/// Lets calls on the socket fail after 10 s without an answer of the other process.
void set_patience(int socket) noexcept {
  timeval const wait{patience, 0};
  for (auto const option : {SO_RCVTIMEO, SO_SNDTIMEO}) ::setsockopt(socket, SOL_SOCKET, option, &wait, sizeof wait);
}

/// Returns whether a process listens at the path.
bool connects(int socket, std::string const& path) {
  auto const address = address_of(path);
  return uninterrupted(
             [&] { return ::connect(socket, reinterpret_cast<sockaddr const*>(&address), sizeof address); }) == 0;
}

/// Returns the folder for the sockets of the user, and makes it if it does not exist.
std::string user_folder() {
  auto const* const runtime = std::getenv("XDG_RUNTIME_DIR");
  constexpr std::size_t longest = 60; // a socket's path has at most 107 bytes
  bool const usable = runtime && *runtime == '/' && std::strlen(runtime) <= longest;
  auto const user = ::geteuid();
  auto const folder = usable ? std::string{runtime} + "/gpumem" : "/tmp/gpumem-" + std::to_string(user);
  if (::mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) fail("the folder " + folder + " cannot be made");
  struct stat facts{};
  if (::lstat(folder.c_str(), &facts) != 0) fail("the folder " + folder + " cannot be used");
  if (!S_ISDIR(facts.st_mode) || facts.st_uid != user || (facts.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    throw std::runtime_error{"gpumem: " + folder + " must be a folder that only its owner, user " +
                             std::to_string(user) + ", can enter (mode 0700)"};
  return folder;
}

/// Removes sockets of processes that have ended. Does not wait for a process that accepts no connection.
void remove_dead_sockets(std::string const& folder) {
  std::unique_ptr<DIR, int (*)(DIR*)> const entries{::opendir(folder.c_str()), &::closedir};
  while (auto const* const entry = entries ? ::readdir(entries.get()) : nullptr) {
    auto const path = folder + "/" + entry->d_name;
    if (!path.ends_with(".pages")) continue;
    auto const tried = new_socket(SOCK_NONBLOCK);
    if (!connects(tried.get(), path) && errno == ECONNREFUSED) ::unlink(path.c_str());
  }
}

} // namespace

std::uint64_t new_random_number() {
  std::uint64_t made = 0;
  if (::getrandom(&made, sizeof made, 0) != static_cast<ssize_t>(sizeof made))
    throw std::runtime_error{"gpumem: the system gives no random numbers"};
  return made;
}

owned_file::~owned_file() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

page_socket::page_socket(owned_file connected) : file_{std::move(connected)} {
  ucred other{};
  socklen_t size = sizeof other;
  if (::getsockopt(file_.get(), SOL_SOCKET, SO_PEERCRED, &other, &size) != 0) fail("the other process is not known");
  if (other.uid != ::geteuid()) throw std::runtime_error{"gpumem: the other process belongs to another user"};
  set_patience(file_.get());
}

page_socket page_socket::connect(std::string const& path) {
  auto made = new_socket();
  set_patience(made.get());
  if (!connects(made.get(), path)) fail("the process that shares this memory cannot be reached at " + path);
  return page_socket{std::move(made)};
}

void page_socket::send(message_numbers const& numbers) {
  auto const sent = uninterrupted([&] { return ::send(file_.get(), &numbers, sizeof numbers, MSG_NOSIGNAL); });
  if (sent != static_cast<ssize_t>(sizeof numbers)) fail("a message to the other process could not be sent");
}

message_numbers page_socket::receive() {
  message_numbers numbers{};
  auto const got = uninterrupted([&] { return ::recv(file_.get(), &numbers, sizeof numbers, 0); });
  if (got < 0) fail("no message came from the other process");
  if (got != static_cast<ssize_t>(sizeof numbers))
    throw std::runtime_error{"gpumem: the other process ended the connection"};
  return numbers;
}

void page_socket::send_pages(std::span<sent_page const> pages) {
  std::array<std::uint64_t, pages_per_message> sizes{};
  std::array<int, pages_per_message> files{};
  for (std::size_t i = 0; i < pages.size(); ++i) {
    sizes[i] = pages[i].bytes;
    files[i] = pages[i].file.get();
  }
  iovec text{sizes.data(), pages.size() * sizeof sizes[0]};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof files)> control{};
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(pages.size() * sizeof files[0]);
  auto* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(pages.size() * sizeof files[0]);
  std::memcpy(CMSG_DATA(header), files.data(), pages.size() * sizeof files[0]);
  auto const sent = uninterrupted([&] { return ::sendmsg(file_.get(), &message, MSG_NOSIGNAL); });
  if (sent != static_cast<ssize_t>(text.iov_len)) fail("pages could not be sent to the other process");
}

std::vector<sent_page> page_socket::receive_pages() {
  std::array<std::uint64_t, pages_per_message> sizes{};
  iovec text{sizes.data(), sizeof sizes};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(pages_per_message * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = sizeof control;
  std::vector<sent_page> pages;
  pages.reserve(pages_per_message);
  auto const got = uninterrupted([&] { return ::recvmsg(file_.get(), &message, MSG_CMSG_CLOEXEC); });
  if (got < 0) fail("no pages came from the other process");
  for (auto* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    auto const count = std::min((header->cmsg_len - CMSG_LEN(0)) / sizeof(int), pages_per_message - pages.size());
    for (std::size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof descriptor, sizeof descriptor);
      pages.push_back({owned_file{descriptor}, sizes[pages.size()]});
    }
  }
  bool const whole = (message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) == 0;
  if (pages.empty() || !whole || static_cast<std::size_t>(got) != pages.size() * sizeof sizes[0])
    throw std::runtime_error{
        "gpumem: the other process has sent incomplete pages, or this one has too many open files"};
  return pages;
}

// The socket gets its final name only when it listens: remove_dead_sockets() of another process then finds it alive.
// Processes in several PID namespaces can share the folder and have the same number, so the number alone is no name.
listening_socket::listening_socket() : file_{new_socket()} {
  auto const folder = user_folder();
  remove_dead_sockets(folder);
  path_ = folder + "/" + std::to_string(::getpid()) + "-" + std::to_string(new_random_number()) + ".pages";
  auto const first_name = path_ + ".new";
  ::unlink(first_name.c_str());
  auto const address = address_of(first_name);
  if (::bind(file_.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address) != 0 ||
      ::chmod(first_name.c_str(), S_IRUSR | S_IWUSR) != 0)
    fail("the socket " + path_ + " cannot be made");
  constexpr int waiting = 64;
  if (::listen(file_.get(), waiting) != 0 || ::rename(first_name.c_str(), path_.c_str()) != 0)
    fail("the socket " + path_ + " cannot be opened");
}

// Most errors pass: the other process has gone, or the program has no descriptor left until it closes a file.
owned_file listening_socket::accept() noexcept {
  for (;;) {
    owned_file connection{::accept4(file_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
    if (connection || errno == EBADF || errno == ENOTSOCK || errno == EINVAL) return connection;
    constexpr int pause = 10; // milliseconds
    ::poll(nullptr, 0, pause);
  }
}

} // namespace gpumem::c
