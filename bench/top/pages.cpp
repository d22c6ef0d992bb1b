// Reads the pages by read(), since a mapping of another process's file may end by a signal.
// SPDX-License-Identifier: Apache-2.0
#include "pages.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace top {

namespace {

using page = gpumem::detail::monitor_page;

constexpr int most_readings = 1'000;

class open_file {
public:
  explicit open_file(std::string const& path, int access = O_RDONLY)
      : number_{open(path.c_str(), access | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)} {}
  open_file(open_file const&) = delete;
  open_file& operator=(open_file const&) = delete;
  ~open_file() {
    if (number_ >= 0) close(number_);
  }
  int get() const noexcept { return number_; }

private:
  int number_;
};

// Returns the process whose page has the name "gpumem.USER.PROCESS" or "gpumem.USER.PROCESS.NUMBER"; nullopt for other
// names.
std::optional<process> process_of(std::string_view name, uid_t user) {
  std::string const begin = "gpumem." + std::to_string(user) + ".";
  if (!name.starts_with(begin)) return std::nullopt;
  name.remove_prefix(begin.size());
  process found{.number = 0, .id = std::string{name}, .program = {}, .pools = 0, .rows = {}};
  auto const [end, error] = std::from_chars(name.data(), name.data() + name.size(), found.number);
  std::string_view const rest{end, static_cast<std::size_t>(name.data() + name.size() - end)};
  bool const numbered = rest.size() == 2 && rest[0] == '.' && rest[1] >= '0' && rest[1] <= '9';
  return error == std::errc{} && (rest.empty() || numbered) ? std::optional{found} : std::nullopt;
}

bool is_page_of(struct stat const& status, uid_t user) {
  bool const closed_to_others = (status.st_mode & (S_IRWXG | S_IRWXO)) == 0;
  return S_ISREG(status.st_mode) && status.st_uid == user && closed_to_others && status.st_size == sizeof(page);
}

bool has_ended(int file) {
  struct flock lock{};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(file, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

// Removes the file, unless another process has made a new one of this name meanwhile. Only the holder of the file's
// lock takes its name away. So the file that has the name stays the same until then.
void remove(std::string const& path, struct stat const& status) {
  open_file const file{path, O_RDWR};
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  struct stat now{};
  bool const held = file.get() >= 0 && fcntl(file.get(), F_OFD_SETLK, &lock) == 0;
  if (held && lstat(path.c_str(), &now) == 0 && now.st_ino == status.st_ino && now.st_dev == status.st_dev)
    unlink(path.c_str());
}

bool read_at(int file, void* to, std::size_t bytes, std::size_t offset) {
  return pread(file, to, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

// Returns a state of the page between two writes of the process.
std::unique_ptr<page> read_between_writes(int file) {
  auto copy = std::make_unique<page>();
  for (int i = 0; i < most_readings; ++i) {
    std::uint64_t before = 0;
    std::uint64_t after = 0;
    if (!read_at(file, &before, sizeof before, offsetof(page, sequence))) return nullptr;
    if (!read_at(file, copy.get(), sizeof *copy, 0)) return nullptr;
    if (!read_at(file, &after, sizeof after, offsetof(page, sequence))) return nullptr;
    if (before % 2 == 0 && before == after) return copy->magic == page::expected_magic ? std::move(copy) : nullptr;
  }
  return nullptr;
}

void make_printable(char* text, std::size_t size) {
  text[size - 1] = '\0';
  for (; *text != '\0'; ++text) {
    if (*text < ' ' || *text > '~') *text = '?';
  }
}

// Adds what the page says. Returns false if it is no page, or that of a process that has ended, which is removed.
bool read_page(std::string const& path, process& seen, uid_t user) {
  open_file const file{path};
  struct stat status{};
  if (file.get() < 0 || fstat(file.get(), &status) != 0 || !is_page_of(status, user)) return false;
  if (has_ended(file.get())) {
    remove(path, status);
    return false;
  }
  auto const copy = read_between_writes(file.get());
  if (!copy) return false;
  make_printable(copy->program, sizeof copy->program);
  seen.program = copy->program[0] == '\0' ? "-" : copy->program;
  seen.pools = copy->pools;
  seen.rows.assign(copy->rows, copy->rows + std::min<std::uint64_t>(copy->pools, page::most_rows));
  for (row& each : seen.rows) make_printable(each.name, sizeof each.name);
  return true;
}

} // namespace

std::vector<process> read_pages(std::string const& folder, uid_t user) {
  std::unique_ptr<DIR, int (*)(DIR*)> const open{opendir(folder.c_str()), closedir};
  if (!open) throw std::system_error{errno, std::generic_category(), "cannot read " + folder};
  std::vector<process> all;
  while (auto const* const entry = readdir(open.get())) {
    auto named = process_of(entry->d_name, user);
    if (named && read_page(folder + "/" + entry->d_name, *named, user)) all.push_back(std::move(*named));
  }
  std::ranges::sort(all, {},
                    [](process const& one) { return std::pair<std::uint64_t, std::string_view>{one.number, one.id}; });
  return all;
}

} // namespace top
