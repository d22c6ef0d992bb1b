// Pages that a program may find in the folder: good, damaged, foreign, and left by programs that have ended.
// SPDX-License-Identifier: Apache-2.0
#include "../../bench/top/pages.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

namespace {

using gpumem::detail::monitor_page;

class pages : public testing::Test {
protected:
  pages() {
    std::string name = (std::filesystem::temp_directory_path() / "gpumem_top_XXXXXX").string();
    folder_ = mkdtemp(name.data());
    page_->magic = monitor_page::expected_magic;
    page_->sequence = 2;
    page_->pools = 1;
    std::memcpy(page_->rows[0].name, "pool", 5);
    page_->rows[0].live = 7;
  }
  ~pages() override {
    if (holder_ > 0) {
      kill(holder_, SIGKILL);
      waitpid(holder_, nullptr, 0);
    }
    std::filesystem::remove_all(folder_);
  }

  std::string path(std::string const& end = "42") const {
    return folder_ + "/gpumem." + std::to_string(geteuid()) + "." + end;
  }

  void write_page(std::string const& to, std::size_t bytes = sizeof(monitor_page), mode_t mode = 0600) const {
    int const file = open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC, mode);
    ASSERT_EQ(write(file, page_.get(), bytes), static_cast<ssize_t>(bytes));
    fchmod(file, mode);
    close(file);
  }

  // Another process locks the file until the end of the test.
  void lock(std::string const& file) {
    int ends[2] = {};
    ASSERT_EQ(pipe(ends), 0);
    holder_ = fork();
    if (holder_ == 0) {
      struct flock all{};
      all.l_type = F_WRLCK;
      int const number = open(file.c_str(), O_RDWR);
      bool const done = number >= 0 && fcntl(number, F_SETLK, &all) == 0;
      if (!done || write(ends[1], "l", 1) != 1) _exit(1);
      for (;;) pause();
    }
    close(ends[1]);
    char locked = 0;
    ASSERT_EQ(read(ends[0], &locked, 1), 1);
    close(ends[0]);
  }

  // Writes the page, and locks it as a living process does.
  void publish() {
    write_page(path());
    lock(path());
  }

  std::vector<top::process> found() const { return top::read_pages(folder_, geteuid()); }

  std::string folder_;
  std::unique_ptr<monitor_page> page_ = std::make_unique<monitor_page>();
  pid_t holder_ = -1;
};

TEST_F(pages, a_page_of_a_living_process_is_read) {
  publish();
  auto const all = found();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].number, 42U);
  EXPECT_EQ(all[0].id, "42");
  EXPECT_EQ(all[0].program, "-"); // a page of an older version has no name
  ASSERT_EQ(all[0].rows.size(), 1U);
  EXPECT_STREQ(all[0].rows[0].name, "pool");
  EXPECT_EQ(all[0].rows[0].live, 7U);
}

TEST_F(pages, processes_of_one_number_are_told_apart) {
  std::memcpy(page_->program, "train\x1b", 7);
  write_page(path("42.1"));
  lock(path("42.1"));
  auto const all = found();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].number, 42U);
  EXPECT_EQ(all[0].id, "42.1");
  EXPECT_EQ(all[0].program, "train?");
}

TEST_F(pages, a_page_of_an_ended_process_is_removed) {
  write_page(path());
  EXPECT_TRUE(found().empty());
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(pages, a_file_that_is_no_page_stays_and_is_not_read) {
  write_page(path("1"), sizeof(monitor_page) - 8);
  write_page(path("2"), sizeof(monitor_page), 0640);
  write_page(path("3.x"));
  write_page(path("x"));
  std::filesystem::create_symlink(path("x"), path("4"));
  std::filesystem::create_directory(path("5"));
  ASSERT_EQ(mkfifo(path("6").c_str(), 0600), 0);
  EXPECT_TRUE(found().empty());
  for (char const* name : {"1", "2", "3.x", "x", "4", "5", "6"})
    EXPECT_TRUE(std::filesystem::exists(std::filesystem::symlink_status(path(name)))) << name;
}

TEST_F(pages, a_page_of_another_user_stays_and_is_not_read) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  write_page(path());
  ASSERT_EQ(chown(path().c_str(), 12345, 12345), 0);
  EXPECT_TRUE(found().empty());
  EXPECT_TRUE(std::filesystem::exists(path()));
}

TEST_F(pages, a_page_that_nobody_has_written_yet_is_left_out) {
  page_->magic = 0;
  publish();
  EXPECT_TRUE(found().empty());
  EXPECT_TRUE(std::filesystem::exists(path()));
}

TEST_F(pages, a_page_whose_write_does_not_end_is_left_out) {
  page_->sequence = 3;
  publish();
  EXPECT_TRUE(found().empty());
}

TEST_F(pages, no_number_and_no_text_on_a_page_is_trusted) {
  page_->pools = UINT64_MAX;
  std::memset(page_->program, 'x', sizeof page_->program);
  std::memset(page_->rows[0].name, '\x1b', sizeof page_->rows[0].name);
  page_->rows[1].device = INT64_MIN;
  publish();
  auto const all = found();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].program, std::string(sizeof(monitor_page::program) - 1, 'x'));
  EXPECT_EQ(all[0].rows.size(), monitor_page::most_rows);
  EXPECT_EQ(std::string{all[0].rows[0].name}, std::string(sizeof(top::row::name) - 1, '?'));
}

TEST_F(pages, a_folder_that_is_missing_is_an_error) {
  EXPECT_THROW(top::read_pages(folder_ + "/none", geteuid()), std::system_error);
}

} // namespace
