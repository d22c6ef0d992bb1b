// The page of shared memory, and the timer that writes on it and gives tools the counters.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <gpumem/monitor_page.hpp>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>
module gpumem:pool_monitor.impl;
import :pool_monitor;
import :driver;
import :intrusive_list;
import :nvtx_counters;
import :process;
import :sync;
import :timer;

namespace gpumem::detail {

namespace {

inline constexpr auto publish_interval = std::chrono::milliseconds{100};
inline constexpr int most_names = 8;

[[noreturn]] void throw_errno(std::string const& what) {
  throw std::system_error{errno, std::generic_category(), what};
}

// Returns a lock of an open file, not of a process: another copy of the library in this process does not see it as its
// own, and does not give it up.
struct flock whole_file(int kind) {
  struct flock lock{};
  lock.l_type = static_cast<short>(kind);
  lock.l_whence = SEEK_SET;
  return lock;
}

// Removes the page of an ended process of this user that had the number of this one. Returns whether the name is free.
// Only the holder of the file's lock takes its name away. So the file that has the name stays the same until then.
bool remove_abandoned(char const* path) {
  int const file = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return errno == ENOENT;
  struct stat status{};
  struct stat named{};
  auto lock = whole_file(F_WRLCK);
  bool const ours = fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid();
  bool const abandoned = ours && fcntl(file, F_OFD_SETLK, &lock) == 0;
  bool const has_name =
      abandoned && lstat(path, &named) == 0 && named.st_dev == status.st_dev && named.st_ino == status.st_ino;
  bool const removed = has_name && unlink(path) == 0;
  close(file);
  return removed;
}

// Gives the page's file its name, and sets `path` to it. The name may be taken by another process that has the same
// number in another container, or by another copy of the library: then it gets one more number.
bool give_name(int file, std::string& path) {
  auto const nameless = "/proc/self/fd/" + std::to_string(file);
  auto const name =
      std::string{monitor_folder} + "/gpumem." + std::to_string(geteuid()) + "." + std::to_string(getpid());
  for (int i = 0; i < most_names; ++i) {
    path = i == 0 ? name : name + "." + std::to_string(i);
    if (!remove_abandoned(path.c_str())) continue;
    if (linkat(AT_FDCWD, nameless.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0) return true;
    if (errno != EEXIST) return false;
  }
  errno = EEXIST;
  return false;
}

// Makes a file without a name, locks it, and names it when it is complete. The mapping keeps the lock; a forked child
// has neither. Throws std::system_error.
monitor_page* make_page(std::string& path) {
  int const file = open(monitor_folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
  if (file < 0) throw_errno(std::string{"cannot make a file in "} + monitor_folder);
  auto lock = whole_file(F_WRLCK);
  void* page = MAP_FAILED;
  int error = fcntl(file, F_OFD_SETLK, &lock) == 0 ? 0 : errno;
  // otherwise a full folder would be found by a signal, at the first store
  if (error == 0) error = posix_fallocate(file, 0, sizeof(monitor_page));
  if (error == 0) page = mmap(nullptr, sizeof(monitor_page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (error == 0 && (page == MAP_FAILED || madvise(page, sizeof(monitor_page), MADV_DONTFORK) != 0)) error = errno;
  auto* const made = static_cast<monitor_page*>(page);
  if (error == 0) std::string_view{program_invocation_short_name}.copy(made->program, sizeof made->program - 1);
  if (error == 0 && !give_name(file, path)) error = errno;
  close(file);
  if (error == 0) return made;
  if (page != MAP_FAILED) munmap(page, sizeof(monitor_page));
  errno = error;
  throw_errno("cannot make a page in " + std::string{monitor_folder});
}

monitor_row row_of(char const* name, monitored_numbers const& read) {
  auto const& counted = read.counted;
  monitor_row row{.name = {},
                  .device = read.device,
                  .live = counted.live,
                  .reserved = counted.reserved,
                  .limit = counted.limit,
                  .cached = counted.cached,
                  .peak_live = counted.peak_live,
                  .peak_reserved = counted.peak_reserved,
                  .waiting = counted.waiting,
                  .waiting_bytes = counted.waiting_bytes,
                  .allocations = counted.allocations,
                  .misses = counted.allocations - std::min(counted.allocations, counted.reuse_thread_cache),
                  .failures = counted.failures,
                  .moves = read.moves};
  std::string_view{name}.copy(row.name, sizeof row.name - 1);
  return row;
}

// Stores words one by one, so that another process never reads half a word.
void store(void* to, void const* from, std::size_t bytes) {
  auto* const words = static_cast<std::uint64_t*>(to);
  for (std::size_t i = 0; i < bytes / sizeof *words; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, static_cast<std::byte const*>(from) + i * sizeof word, sizeof word);
    __atomic_store_n(words + i, word, __ATOMIC_RELAXED);
  }
}

} // namespace

// The list of pools, and the page. Never destroyed: static objects may end their pools later.
class pool_monitor final : public timer {
public:
  static pool_monitor& instance() {
    static auto* const all = new pool_monitor;
    return *all;
  }

  void add(monitored_pool& pool) {
    sync::lock const lock{mutex_};
    if (!opened_ && is_monitored()) open();
    pools_.push_back(pool);
    if ((!page_ && !nvtx_counters::tool_listens()) || publishes_) return;
    try {
      start_timer(*this, sync::now());
      publishes_ = true;
    } catch (...) {
      pools_.remove(pool);
      throw;
    }
  }

  void remove(monitored_pool& pool) {
    sync::lock const lock{mutex_};
    pools_.remove(pool);
  }

private:
  // Called once. Without a page the process goes on.
  void open() GPUMEM_REQUIRES(mutex_) {
    opened_ = true;
    try {
      page_ = make_page(path_);
    } catch (std::exception const& error) {
      std::fprintf(stderr, "gpumem: GPUMEM_MONITOR: no statistics are published: %s\n", error.what());
      return;
    }
    at_driver_exit([]() noexcept {
      unlink(instance().path_.c_str()); // a forked child does not run this
    });
  }

  void expire() noexcept override {
    {
      sync::lock const lock{mutex_};
      try {
        publish();
      } catch (...) {
        // without host memory the page keeps the numbers before
      }
      publishes_ = !pools_.empty();
      if (!publishes_) return;
    }
    start_timer(*this, sync::now() + publish_interval);
  }

  void publish() GPUMEM_REQUIRES(mutex_) {
    std::uint64_t pools = 0;
    for (auto const* each = pools_.first(); each; each = each->links_.next, ++pools) {
      auto const numbers = each->read_(each->pool_);
      each->counters_.sample(numbers.counted);
      if (pools < rows_.size()) rows_[pools] = row_of(each->name_, numbers);
    }
    if (page_) write_page(pools);
  }

  void write_page(std::uint64_t pools) noexcept GPUMEM_REQUIRES(mutex_) {
    __atomic_store_n(&page_->sequence, ++sequence_, __ATOMIC_RELAXED);
    std::atomic_thread_fence(std::memory_order_release);
    __atomic_store_n(&page_->magic, monitor_page::expected_magic, __ATOMIC_RELAXED);
    __atomic_store_n(&page_->pools, pools, __ATOMIC_RELAXED);
    store(page_->rows, rows_.data(), std::min<std::size_t>(pools, rows_.size()) * sizeof(monitor_row));
    __atomic_store_n(&page_->sequence, ++sequence_, __ATOMIC_RELEASE);
  }

  sync::mutex mutex_;
  intrusive_list<monitored_pool> pools_ GPUMEM_GUARDED_BY(mutex_);
  bool opened_ GPUMEM_GUARDED_BY(mutex_) = false;
  bool publishes_ GPUMEM_GUARDED_BY(mutex_) = false; // the timer is started, or expires
  monitor_page* page_ GPUMEM_GUARDED_BY(mutex_) = nullptr;
  std::uint64_t sequence_ GPUMEM_GUARDED_BY(mutex_) = 0;
  std::array<monitor_row, monitor_page::most_rows> rows_ GPUMEM_GUARDED_BY(mutex_);
  std::string path_; // set before the exit function is registered
};

bool is_monitored() { return is_set_in_environment("GPUMEM_MONITOR"); }
bool is_published() { return is_monitored() || nvtx_counters::tool_listens(); }

monitored_pool::monitored_pool(char const* name, reader read, void* pool)
    : name_{name}, read_{read}, pool_{pool}, counters_{name} {
  pool_monitor::instance().add(*this);
}

monitored_pool::~monitored_pool() {
  if (!forked()) pool_monitor::instance().remove(*this);
}

} // namespace gpumem::detail
