// Reads logs, and replays those that know no pages.
// SPDX-License-Identifier: Apache-2.0
module;
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>
module report:events.impl;
import gpumem;
import replay;
import :event_list;
import :events;
import :snapshots;

namespace report {

namespace detail {

// Returns the log of a replay. Pages move always (effort 1), so the log is the same each time.
std::string replay_log(replay::loaded_trace const& trace) {
  auto const where = replay::choose_device(replay::device_choice::simulated);
  replay::progress shown{1, stderr};
  replay::options const chosen;
  replay::replay_session on{{&trace, "pool", &chosen, 1, &where, &shown}};
  std::ostringstream log;
  gpumem::logging_adaptor pool{
      gpumem::pool_resource{where.device, {.effort = 1}}, log, {.format = gpumem::log_format::binary}};
  std::string rows;
  on.run("replay", [&](replay::replay_session::member mine) {
    replay::no_timer none;
    replay::run_pass(pool, trace.operations, mine.streams, mine.state, none);
  });
  pool.flush();
  rows = std::move(log).str();
  on.each_member([&](replay::replay_session::member mine) {
    replay::free_live_at_end(pool, trace.operations, mine.streams, mine.state);
  });
  on.synchronize();
  replay::accept_unordered(trace.operations.frees_elsewhere != 0);
  if (auto const failures = on.take_failures(); failures > 0) {
    throw std::runtime_error(trace.file + ": " + std::to_string(failures) +
                             " requests failed in the replay over the simulated device");
  }
  return rows;
}

// Puts the rows of the replay in the place of the calls that it has made. Each call keeps its time, stream, thread and
// label, and an allocation that has waited stays one. The other rows of the log stay; the labels name the blocks where
// the replay has put them.
std::vector<event> merge(std::vector<event> const& calls, std::string log, std::string const& file) {
  std::vector<event> merged;
  merged.reserve(calls.size() + calls.size() / 8);
  gpumem::extend::trace_reader reader{std::move(log), file + " (replay)"};
  recording replayed;
  event_list rows{replayed};
  trace_record row;
  std::unordered_map<std::uint64_t, std::uint64_t> placed; // live blocks: their addresses in the log and in the replay
  for (event next : calls) {
    bool const call = next.action <= trace_action::free;
    while (call && reader.next(row)) {
      if (row.action <= trace_action::free) {
        placed[next.pointer] = row.pointer;
        if (next.action == trace_action::free) placed.erase(next.pointer);
        next.pointer = row.pointer;
        if (next.served != served_by::turn) next.served = row.served;
        break;
      }
      replayed.events.clear();
      rows.add(row);
      for (event memory : replayed.events) {
        memory.microseconds = next.microseconds;
        merged.push_back(memory);
      }
    }
    if (next.action == trace_action::label) {
      auto const found = placed.find(next.pointer);
      if (found == placed.end()) continue;
      next.pointer = found->second;
    }
    merged.push_back(next);
  }
  return merged;
}

// Makes the lowest address of the memory 0: the addresses of a replay differ each time.
void shift_addresses(std::vector<event>& events) {
  std::uint64_t lowest = std::numeric_limits<std::uint64_t>::max();
  for (event const& each : events)
    if (is_memory(each.action)) lowest = std::min(lowest, each.pointer);
  for (event& each : events) {
    bool const placed = each.action <= trace_action::free || each.action == trace_action::label;
    if (placed || is_memory(each.action)) each.pointer -= lowest;
  }
}

// Returns whether the row's memory lies where memory can be.
bool has_possible_addresses(trace_record const& row) {
  if (row.action != trace_action::allocate && !is_memory(row.action)) return true;
  return is_possible(row.pointer, row.bytes) &&
         (row.action != trace_action::move || is_possible(row.stream, row.bytes));
}

bool is_binary(std::string_view text) { return text.starts_with('\x89'); }

// Returns whether the recording has memory now.
bool add_memory(recording& of, std::string text) {
  bool const binary = is_binary(text);
  replay::loaded_trace trace{of.name, of.file, {}};
  try {
    trace.operations = replay::make_plan(std::move(text), of.file);
  } catch (gpumem::extend::trace_error const&) {
    if (!binary) throw;
    return false;
  }
  of.events = merge(of.events, replay_log(trace), of.file);
  shift_addresses(of.events);
  return true;
}

} // namespace detail

namespace detail {

class file_bytes;
std::vector<file_bytes const*> mapped_files; // for the handler of SIGBUS

// The bytes of a file: mapped, or unpacked in memory.
class file_bytes {
public:
  explicit file_bytes(std::string const& file) : file_{file} {
    if (map(file)) return;
    unpacked_ = replay::read_trace_file(file);
    text_ = unpacked_;
  }
  file_bytes(file_bytes const&) = delete;
  file_bytes& operator=(file_bytes const&) = delete;
  ~file_bytes() {
    if (mapped_ == nullptr) return;
    std::erase(mapped_files, this);
    munmap(mapped_, text_.size());
  }
  std::string_view text() const noexcept { return text_; }
  std::string_view file() const noexcept { return file_; }
  bool maps(void const* address) const noexcept {
    auto const begin = reinterpret_cast<std::uintptr_t>(mapped_), at = reinterpret_cast<std::uintptr_t>(address);
    return at >= begin && at - begin < text_.size();
  }

private:
  // Returns false if the file is no binary log, or cannot be mapped.
  bool map(std::string const& file) {
    struct stat facts{};
    if (stat(file.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) return false; // a pipe can be opened only once
    int const opened = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (opened < 0) return false;
    bool const known = fstat(opened, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size > 0;
    auto const size = static_cast<std::size_t>(facts.st_size);
    void* const address = known ? mmap(nullptr, size, PROT_READ, MAP_PRIVATE, opened, 0) : MAP_FAILED;
    close(opened);
    if (address == MAP_FAILED) return false;
    text_ = {static_cast<char const*>(address), size};
    mapped_ = address;
    mapped_files.push_back(this);
    if (is_binary(text_)) return true;
    mapped_files.pop_back();
    munmap(mapped_, size);
    mapped_ = nullptr;
    return false;
  }

  std::string file_;
  void* mapped_ = nullptr;
  std::string unpacked_;
  std::string_view text_;
};

// A handler of SIGBUS; it makes only calls that are safe in a handler. It runs once: if no mapped log has the address,
// the access is repeated, and ends the process by SIGBUS.
void end_at_cut_file(int, siginfo_t* cause, void*) {
  for (auto const* const each : mapped_files) {
    if (!each->maps(cause->si_addr)) continue;
    using namespace std::string_view_literals;
    for (auto const part : {"gpumem-report: "sv, each->file(), " was cut while it was read\n"sv})
      if (write(STDERR_FILENO, part.data(), part.size()) < 0) break;
    _exit(2);
  }
}

// The rows of a log. They are read as often as they are visited.
class log_rows {
public:
  log_rows(std::shared_ptr<file_bytes const> bytes, std::string const& file)
      : bytes_{std::move(bytes)}, reader_{std::as_bytes(std::span{bytes_->text()}), file} {}

  // Calls visit(event) for each event. The numbers of the target's streams, threads and labels are the same each time.
  template <class Visit> void each(recording& target, Visit const& visit) {
    reader_.rewind();
    event_list events{target};
    for (trace_record row; reader_.next(row);) {
      if (!has_possible_addresses(row)) fail("memory at addresses that no memory has");
      if (is_memory(row.action)) target.memory = memory_source::log;
      events.each(row, reader_.label_text(row.label), visit);
    }
  }
  std::string_view text() const noexcept { return bytes_->text(); }
  [[noreturn]] void fail(char const* reason) const {
    throw gpumem::extend::trace_error(reader_.name(), reader_.line(), reason);
  }

private:
  std::shared_ptr<file_bytes const> bytes_;
  gpumem::extend::trace_reader reader_;
};

recording read_log(std::shared_ptr<file_bytes const> bytes, std::string const& file) {
  recording made;
  made.name = replay::trace_name(file);
  made.file = file;
  auto const rows = std::make_shared<log_rows>(std::move(bytes), file);
  rows->each(made, [&](event const&) { ++made.rows; });
  if (made.rows == 0) rows->fail("there are no rows");
  if (made.memory == memory_source::log) {
    made.read_again = [rows](event_visitor const& visit) {
      recording again;
      rows->each(again, visit);
    };
    return made;
  }
  rows->each(made, [&](event const& each) { made.events.push_back(each); });
  if (add_memory(made, std::string{rows->text()})) made.memory = memory_source::replay;
  return made;
}

} // namespace detail

void end_if_a_log_is_cut() {
  struct sigaction action{};
  action.sa_sigaction = detail::end_at_cut_file;
  action.sa_flags = SA_SIGINFO | SA_RESETHAND;
  sigaction(SIGBUS, &action, nullptr);
}

void each_event(recording const& of, event_visitor const& visit) {
  if (of.read_again) return of.read_again(visit);
  for (event const& each : of.events) visit(each);
}

std::vector<recording> read_recordings(std::string const& file) {
  auto bytes = std::make_shared<detail::file_bytes const>(file);
  if (detail::is_json(bytes->text())) return {detail::read_json_snapshot(bytes->text(), file)};
  if (detail::is_pickle(bytes->text())) return detail::read_pickle_snapshot(bytes->text(), file);
  return {detail::read_log(std::move(bytes), file)};
}

} // namespace report
