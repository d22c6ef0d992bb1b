// The page of a process whose pools are published: its owner, its numbers, and its end.
// SPDX-License-Identifier: Apache-2.0
#include "../../bench/top/pages.hpp"
#include "../support/longest_wait.hpp"

#include <gpumem/monitor_page.hpp>
#include <gpumem/pool_options.hpp>
#include <gpumem/simulator.hpp>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

import gpumem;

namespace {

using namespace gpumem::literals;
using gpumem_test::longest_wait;
using pool_type = gpumem::pool_resource<gpumem::cuda_resource>;

// A child process that uses gpumem, which this process does not: a child of a process that does cannot. It calls
// `body`, which may call next() to tell the test, and to wait for it.
class monitored {
public:
  explicit monitored(std::function<void(monitored&)> const& body) {
    if (pipe(from_child_.data()) != 0 || pipe(to_child_.data()) != 0) std::abort();
    number_ = process_ = fork();
    if (process_ != 0) {
      close(from_child_[1]);
      close(to_child_[0]);
      return;
    }
    close(to_child_[1]);
    setenv("GPUMEM_MONITOR", "1", 1);
    gpumem::simulator::load();
    body(*this);
    std::exit(0);
  }
  monitored(monitored const&) = delete;
  monitored& operator=(monitored const&) = delete;
  ~monitored() {
    if (process_ > 0) kill(process_, SIGKILL);
    end();
    close(from_child_[0]);
    close(to_child_[1]);
    std::filesystem::remove(path());
  }

  /// Called by the child: goes on when the test has called go_on().
  void next() {
    char byte = 'n';
    if (write(from_child_[1], &byte, 1) != 1 || read(to_child_[0], &byte, 1) != 1) _exit(2);
  }
  /// Called by the test: returns whether the child has called next().
  bool waits() {
    char byte = 0;
    return read(from_child_[0], &byte, 1) == 1;
  }
  void go_on() {
    if (write(to_child_[1], "g", 1) != 1) std::abort();
  }
  /// Waits for the end of the child. Returns its status.
  int end() {
    int status = -1;
    if (process_ > 0) waitpid(process_, &status, 0);
    process_ = -1;
    return status;
  }

  std::uint64_t number() const { return static_cast<std::uint64_t>(number_); }

  /// Ends the child by a signal.
  void kill_now() {
    kill(process_, SIGKILL);
    end();
  }

  std::string path() const {
    return std::string{gpumem::detail::monitor_folder} + "/gpumem." + std::to_string(geteuid()) + "." +
           std::to_string(number_);
  }

  /// Returns what the child has published, as soon as `enough` is true; nullopt after a long time.
  std::optional<top::process> seen(std::function<bool(top::process const&)> const& enough) const {
    for (auto const begin = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() - begin < longest_wait();
         std::this_thread::yield()) {
      for (auto& each : top::read_pages(gpumem::detail::monitor_folder, geteuid())) {
        if (each.number == static_cast<std::uint64_t>(number_) && enough(each)) return each;
      }
    }
    return std::nullopt;
  }

private:
  std::array<int, 2> from_child_{};
  std::array<int, 2> to_child_{};
  pid_t process_ = -1; // -1 after its end
  pid_t number_ = -1;
};

auto const has_rows = [](top::process const& one) { return !one.rows.empty(); };

TEST(monitor, publishes_the_statistics_of_a_pool) {
  monitored child{[](monitored& self) {
    pool_type pool{gpumem::device{0}, {.limit = 64_MiB, .name = "a name of more than thirty-two characters"}};
    gpumem::stream stream{gpumem::device{0}};
    void* const block = pool.allocate(stream, 3_MiB);
    pool.deallocate(stream, pool.allocate(stream, 5_MiB), 5_MiB);
    pool.deallocate(stream, pool.allocate(stream, 5_MiB), 5_MiB);
    (void)pool.try_allocate(stream, 100_MiB);
    std::thread waiter{[&] { static_cast<void>(pool.acquire(stream, 62_MiB).wait()); }};
    self.next();
    pool.deallocate(stream, block, 3_MiB);
    waiter.join();
    self.next();
  }};
  ASSERT_TRUE(child.waits());
  auto const seen = child.seen([](auto const& one) { return one.rows.size() == 1 && one.rows[0].waiting == 1; });
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->pools, 1U);
  auto const& row = seen->rows[0];
  EXPECT_STREQ(row.name, "a name of more than thirty-two ");
  EXPECT_EQ(row.device, 0);
  EXPECT_EQ(row.live, 3_MiB);
  EXPECT_EQ(row.peak_live, 8_MiB);
  EXPECT_EQ(row.limit, 64_MiB);
  EXPECT_GE(row.reserved, 8_MiB);
  EXPECT_EQ(row.peak_reserved, row.reserved);
  EXPECT_EQ(row.allocations, 3U);
  EXPECT_EQ(row.failures, 1U); // not the request that waits
  EXPECT_EQ(row.waiting_bytes, 62_MiB);
  EXPECT_LE(row.misses, 3U);
  child.go_on();
  ASSERT_TRUE(child.waits());
  EXPECT_TRUE(child.seen([](top::process const& one) { return one.rows.at(0).live == 0; }));
}

TEST(monitor, the_page_belongs_to_the_user_alone_and_goes_with_the_process) {
  monitored child{[](monitored& self) {
    static pool_type const pool{gpumem::device{0}};
    self.next();
  }};
  ASSERT_TRUE(child.waits());
  ASSERT_TRUE(child.seen(has_rows)); // a page without a lock would be removed
  struct stat status{};
  ASSERT_EQ(lstat(child.path().c_str(), &status), 0);
  EXPECT_TRUE(S_ISREG(status.st_mode));
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  child.go_on();
  EXPECT_EQ(child.end(), 0);
  EXPECT_FALSE(std::filesystem::exists(child.path()));
}

TEST(monitor, a_pool_leaves_the_page_when_it_ends) {
  monitored child{[](monitored& self) {
    pool_type const stays{gpumem::device{0}, {.name = "stays"}};
    std::optional<pool_type> ends{std::in_place, gpumem::device{0}, gpumem::pool_options{.name = "ends"}};
    self.next();
    ends.reset();
    self.next();
  }};
  ASSERT_TRUE(child.waits());
  ASSERT_TRUE(child.seen([](top::process const& one) { return one.rows.size() == 2; }));
  child.go_on();
  ASSERT_TRUE(child.waits());
  auto const seen = child.seen([](top::process const& one) { return one.rows.size() == 1; });
  ASSERT_TRUE(seen);
  EXPECT_STREQ(seen->rows[0].name, "stays");
}

TEST(monitor, goes_on_after_a_time_without_pools) {
  monitored child{[](monitored& self) {
    { pool_type const first{gpumem::device{0}}; }
    self.next();
    pool_type const second{gpumem::device{0}, {.name = "second"}};
    self.next();
  }};
  ASSERT_TRUE(child.waits());
  ASSERT_TRUE(child.seen([](top::process const& one) { return one.pools == 0; }));
  child.go_on();
  ASSERT_TRUE(child.waits());
  EXPECT_TRUE(child.seen(has_rows));
}

TEST(monitor, a_forked_child_leaves_the_page) {
  monitored child{[](monitored& self) {
    static pool_type const pool{gpumem::device{0}};
    pid_t const forked = fork();
    if (forked == 0) std::exit(0); // runs the exit functions of the library
    int status = -1;
    waitpid(forked, &status, 0);
    if (status != 0) _exit(3);
    self.next();
  }};
  ASSERT_TRUE(child.waits());
  EXPECT_TRUE(child.seen(has_rows));
}

// Writes a page in the child's name, as an ended process of the same number would have left.
void write_page(std::string const& path) {
  int const file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600);
  ASSERT_GE(file, 0);
  ASSERT_EQ(ftruncate(file, sizeof(gpumem::detail::monitor_page)), 0);
  close(file);
}

TEST(monitor, takes_the_name_of_an_ended_process) {
  monitored child{[](monitored& self) {
    self.next();
    pool_type const pool{gpumem::device{0}};
    self.next();
  }};
  ASSERT_TRUE(child.waits());
  write_page(child.path());
  child.go_on();
  ASSERT_TRUE(child.waits());
  EXPECT_TRUE(child.seen(has_rows));
  EXPECT_FALSE(std::filesystem::exists(child.path() + ".1"));
}

TEST(monitor, leaves_the_page_of_a_living_process_with_the_same_number) {
  monitored child{[](monitored& self) {
    self.next();
    static pool_type const pool{gpumem::device{0}};
    self.next();
  }};
  ASSERT_TRUE(child.waits());
  // The page has its name only once it is locked: until then a gpumem-top that runs beside this test would remove it.
  auto const path = std::string{gpumem::detail::monitor_folder} + "/locked." + std::to_string(getpid());
  write_page(path);
  int const file = open(path.c_str(), O_RDWR);
  struct flock lock{};
  lock.l_type = F_WRLCK;
  ASSERT_EQ(fcntl(file, F_SETLK, &lock), 0);
  std::filesystem::rename(path, child.path());
  child.go_on();
  ASSERT_TRUE(child.waits());
  EXPECT_TRUE(std::filesystem::exists(child.path() + ".1"));
  child.go_on();
  EXPECT_EQ(child.end(), 0);
  EXPECT_TRUE(std::filesystem::exists(child.path()));
  EXPECT_FALSE(std::filesystem::exists(child.path() + ".1"));
  close(file);
}

// Another copy of the library in the process, as in a second shared library, has a file and a lock of its own.
TEST(monitor, another_copy_of_the_library_in_the_process_keeps_its_page) {
  monitored child{[](monitored& self) {
    auto const path = std::string{gpumem::detail::monitor_folder} + "/gpumem." + std::to_string(geteuid()) + "." +
                      std::to_string(getpid());
    int const other = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    struct flock lock{};
    lock.l_type = F_WRLCK;
    if (other < 0 || fcntl(other, F_OFD_SETLK, &lock) != 0) _exit(2);
    static pool_type const pool{gpumem::device{0}};
    close(open((path + ".1").c_str(), O_RDONLY)); // as the other copy does when it looks for a name
    self.next();
    std::filesystem::remove(path);
  }};
  ASSERT_TRUE(child.waits());
  EXPECT_TRUE(std::filesystem::exists(child.path()));
  auto const seen = child.seen(has_rows);
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->id, std::to_string(seen->number) + ".1");
  child.go_on();
  EXPECT_EQ(child.end(), 0);
  EXPECT_FALSE(std::filesystem::exists(child.path() + ".1"));
}

TEST(monitor, a_forked_child_that_lives_on_does_not_keep_the_page) {
  monitored child{[](monitored& self) {
    static pool_type const pool{gpumem::device{0}};
    if (fork() == 0) { // lives until the test calls go_on()
      self.next();
      _exit(0);
    }
    self.next();
  }};
  ASSERT_TRUE(child.waits());
  ASSERT_TRUE(child.waits());
  ASSERT_TRUE(child.seen(has_rows));
  child.kill_now();
  // While another process reads /proc, the mapping of the ended one and with it the lock of its page may still exist.
  auto const is_listed = [&] {
    auto const pages = top::read_pages(gpumem::detail::monitor_folder, geteuid());
    return std::ranges::any_of(pages, [&](auto const& each) { return each.number == child.number(); });
  };
  for (int polls = 0; polls != 500 && is_listed(); ++polls) std::this_thread::sleep_for(std::chrono::milliseconds{10});
  EXPECT_FALSE(is_listed());
  EXPECT_FALSE(std::filesystem::exists(child.path()));
  child.go_on(); // ends the forked child
}

TEST(monitor, makes_no_page_unless_it_is_asked) {
  monitored child{[](monitored& self) {
    unsetenv("GPUMEM_MONITOR");
    pool_type const pool{gpumem::device{0}};
    self.next();
  }};
  ASSERT_TRUE(child.waits());
  EXPECT_FALSE(std::filesystem::exists(child.path()));
}

} // namespace
