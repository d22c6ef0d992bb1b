// Sends the pages of shared blocks to other processes, and maps pages that another process has sent.
// SPDX-License-Identifier: Apache-2.0
#include "shared_blocks.hpp"

#include <cuda.h>
#include <dirent.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

import gpumem;

namespace gpumem::c {
namespace {

constexpr int patience = 10; // seconds for which a call waits for the other process

[[noreturn]] void fail(std::string const& text) {
  auto const error = errno; // before the text is made
  throw std::runtime_error{"gpumem: " + text + ": " + std::generic_category().message(error)};
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
  auto const received = uninterrupted([&] { return ::recvmsg(file_.get(), &message, MSG_CMSG_CLOEXEC); });
  if (received < 0) fail("no pages came from the other process");
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
  if (pages.empty() || !whole || static_cast<std::size_t>(received) != pages.size() * sizeof sizes[0])
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

namespace {

std::string name_of(std::uint64_t id, std::string const& path) {
  constexpr int hexadecimal = 16;
  std::array<char, 2 * sizeof id> digits{};
  auto const end = std::to_chars(digits.data(), digits.data() + digits.size(), id, hexadecimal).ptr;
  return std::string{digits.data(), end} + ":" + path;
}

/// Starts a thread that receives no signals: those are for the program's threads.
template <class Work> void start_thread(Work work) {
  sigset_t all_signals;
  sigset_t before;
  sigfillset(&all_signals);
  pthread_sigmask(SIG_SETMASK, &all_signals, &before);
  try {
    std::thread{std::move(work)}.detach();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

} // namespace

pinned_pages::pinned_pages(gpumem_pool& pool, void const* block, std::size_t bytes) : pool_{pool} {
  auto const* address = static_cast<char const*>(block);
  auto const* const end = address + bytes;
  try {
    while (address < end) {
      auto const page = pool.export_page(address);
      owned_file const closed{page.descriptor};
      if (!base_) base_ = static_cast<char*>(page.base);
      bytes_ += page.bytes;
      ++pages_;
      address = base_ + bytes_;
    }
  } catch (...) {
    if (base_) pool_.unpin(base_, bytes_);
    throw;
  }
}

pinned_pages::~pinned_pages() { pool_.unpin(base_, bytes_); }

void pinned_pages::send(page_socket& socket) const {
  std::vector<sent_page> message;
  message.reserve(pages_per_message);
  for (auto* at = base_; at < base_ + bytes_;) {
    auto const page = pool_.export_page(at);
    message.push_back({owned_file{page.descriptor}, page.bytes});
    pool_.unpin(page.base, page.bytes); // the constructor's pin stays
    at += page.bytes;
    if (message.size() < pages_per_message && at < base_ + bytes_) continue;
    socket.send_pages(message);
    message.clear();
  }
}

// Takes no host memory: PyTorch's pools refer to it, which are made by noexcept functions.
shared_blocks& shared_blocks::instance() {
  alignas(shared_blocks) static std::byte place[sizeof(shared_blocks)];
  static auto* const all = ::new (place) shared_blocks;
  return *all;
}

shared_blocks::name shared_blocks::share(gpumem_pool& pool, void const* block, std::size_t bytes) {
  support::scoped_lock const lock{mutex_};
  auto entry = blocks_.find(block);
  if (entry == blocks_.end()) {
    // No earlier share has had this number, so no process takes new pages for those of an old name.
    record const made{new_random_number(), std::make_shared<pinned_pages const>(pool, block, bytes)};
    if (!socket_) {
      auto opened = std::make_unique<listening_socket>();
      start_thread([this] { serve(); });
      socket_ = std::move(opened);
    }
    entry = blocks_.emplace(block, made).first;
    any_.store(true, std::memory_order_relaxed);
  }
  auto const offset = static_cast<char const*>(block) - entry->second.pages->base();
  return {name_of(entry->second.id, socket_->path()), static_cast<std::size_t>(offset)};
}

// The pages are unpinned without the mutex, since that takes locks of the pool.
void shared_blocks::end(void const* block) noexcept {
  std::shared_ptr<pinned_pages const> ended;
  support::scoped_lock const lock{mutex_};
  auto const found = blocks_.find(block);
  if (found == blocks_.end()) return;
  ended = std::move(found->second.pages);
  blocks_.erase(found);
  if (blocks_.empty()) any_.store(false, std::memory_order_relaxed);
}

std::shared_ptr<pinned_pages const> shared_blocks::find(std::uint64_t id) {
  support::scoped_lock const lock{mutex_};
  auto const found = std::ranges::find(blocks_, id, [](auto const& each) { return each.second.id; });
  return found == blocks_.end() ? nullptr : found->second.pages;
}

void shared_blocks::answer(owned_file connection) {
  page_socket other{std::move(connection)};
  auto const [request, id, unused] = other.receive();
  auto const pages = request == page_request ? find(id) : nullptr;
  other.send({page_request, pages ? pages->bytes() : 0, pages ? pages->pages() : 0});
  if (pages) pages->send(other);
}

// A process that asks in vain, or stops midway, gets no pages; the next one is served.
void shared_blocks::serve() noexcept {
  auto& socket = [&]() -> listening_socket& {
    support::scoped_lock const lock{mutex_};
    return *socket_;
  }();
  while (auto connection = socket.accept()) {
    try {
      answer(std::move(connection));
    } catch (std::exception const&) {}
  }
}

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
  gpumem::device const pool_device{device};
  pool_device.require();
  device_guard const scope{pool_device};
  detail::relaxed_capture const relaxed;
  auto other = page_socket::connect(path);
  other.send({page_request, id, 0});
  auto const [kind, bytes, count] = other.receive();
  if (kind != page_request || bytes > pool_device.memory().total || count > bytes)
    throw std::runtime_error{"gpumem: the other process has sent an answer that makes no sense"};
  if (bytes == 0) throw std::runtime_error{"gpumem: the other process does not share this memory any more"};
  auto made = std::make_unique<mapped_pages>(device, bytes);
  while (made->missing() > 0) {
    for (auto const& page : other.receive_pages()) made->add(page);
  }
  made->open();
  wait_of(device).prepare();
  memory const opened{made->base(), bytes};
  support::scoped_lock const lock{mutex_};
  open_.emplace(opened.base, std::move(made));
  return opened;
}

device_wait& opened_pages::wait_of(int device) {
  support::scoped_lock const lock{mutex_};
  return waits_.try_emplace(device, device).first->second;
}

void opened_pages::close(void* base) {
  auto free_result = [&] {
    support::scoped_lock const lock{mutex_};
    return open_.extract(base);
  }();
  if (!free_result) throw std::invalid_argument{"gpumem: no opened memory begins at this address"};
  if (!driver_api::driver_alive()) return;
  try {
    wait_of(free_result.mapped()->device()).wait();
  } catch (...) {
    support::scoped_lock const lock{mutex_};
    open_.insert(std::move(free_result));
    throw;
  }
}

} // namespace gpumem::c
