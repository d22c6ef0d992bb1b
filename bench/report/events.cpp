// Reads logs, and replays those that know no pages.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>
module report:events.impl;
import gpumem;
import replay;
import :events;

namespace report {

namespace detail {

using gpumem::extend::trace_record;

// Numbers handles in the order of their first rows. All handles after the last number share it.
class numbering {
public:
  explicit numbering(std::vector<std::uint64_t>& handles) : handles_{handles} {}
  std::uint16_t number_of(std::uint64_t handle) {
    constexpr std::size_t last = std::numeric_limits<std::uint16_t>::max();
    auto const [found, added] =
        numbers_.try_emplace(handle, static_cast<std::uint16_t>(std::min(numbers_.size(), last)));
    if (added && handles_.size() <= last) handles_.push_back(handle);
    return found->second;
  }

private:
  std::vector<std::uint64_t>& handles_;
  std::unordered_map<std::uint64_t, std::uint16_t> numbers_;
};

// Recorded times start again at midnight, and rows of several threads may be slightly out of order.
class elapsed_time {
public:
  std::uint64_t since_first(std::uint64_t recorded) {
    constexpr std::uint64_t day = 86'400'000'000;
    std::uint64_t const time = recorded % day;
    if (first_) latest_ = time;
    first_ = false;
    std::uint64_t const passed = (time + day - latest_) % day;
    if (passed < day / 2) {
      elapsed_ += passed;
      latest_ = time;
    }
    return elapsed_;
  }

private:
  bool first_ = true;
  std::uint64_t latest_ = 0, elapsed_ = 0;
};

class event_list {
public:
  explicit event_list(recording& of) : of_{of}, streams_{of.streams}, threads_{of.threads} {}

  void add(trace_record const& row) {
    if (row.action <= trace_action::free && row.pointer == 0 && row.bytes == 0) return; // no block
    event next{.microseconds = times_.since_first(row.microseconds),
               .pointer = row.pointer,
               .bytes = row.bytes,
               .action = row.action,
               .served = row.served};
    if (is_memory(row.action)) {
      of_.memory = memory_source::log;
      if (row.action == trace_action::move) {
        event source = next;
        source.action = trace_action::unmap;
        source.pointer = row.stream;
        of_.events.push_back(source);
      }
    } else {
      next.stream = streams_.number_of(row.stream);
      next.thread = threads_.number_of(row.thread);
    }
    of_.events.push_back(next);
  }

  static bool is_memory(trace_action action) {
    return action == trace_action::map || action == trace_action::unmap || action == trace_action::move;
  }

private:
  recording& of_;
  elapsed_time times_;
  numbering streams_, threads_;
};

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

// Puts the rows of the replay in the place of the calls that it has made. Each call keeps its time, stream and thread.
std::vector<event> merge(std::vector<event> const& calls, std::string log, std::string const& file) {
  std::vector<event> merged;
  merged.reserve(calls.size() + calls.size() / 8);
  gpumem::extend::trace_reader reader{std::move(log), file + " (replay)"};
  recording replayed;
  event_list rows{replayed};
  trace_record row;
  for (event next : calls) {
    bool const call = next.action <= trace_action::free;
    while (call && reader.next(row)) {
      if (row.action <= trace_action::free) {
        next.pointer = row.pointer;
        next.served = row.served;
        break;
      }
      replayed.events.clear();
      rows.add(row);
      for (event memory : replayed.events) {
        memory.microseconds = next.microseconds;
        merged.push_back(memory);
      }
    }
    if (call || next.action == trace_action::allocate_failure) merged.push_back(next);
  }
  return merged;
}

// Makes the lowest address of the memory 0: the addresses of a replay differ each time.
void shift_addresses(std::vector<event>& events) {
  std::uint64_t lowest = std::numeric_limits<std::uint64_t>::max();
  for (event const& each : events)
    if (event_list::is_memory(each.action)) lowest = std::min(lowest, each.pointer);
  for (event& each : events)
    if (each.action != trace_action::allocate_failure) each.pointer -= lowest;
}

// Returns whether the row's memory lies where memory can be.
bool has_possible_addresses(trace_record const& row) {
  constexpr std::uint64_t end = std::uint64_t{1} << 56;
  if (row.action != trace_action::allocate && !event_list::is_memory(row.action)) return true;
  auto const fits = [&](std::uint64_t address) { return row.bytes <= end && address <= end - row.bytes; };
  return fits(row.pointer) && (row.action != trace_action::move || fits(row.stream));
}

bool is_binary(std::string const& text) { return text.starts_with('\x89'); }

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

recording read_recording(std::string const& file) {
  recording made{.name = replay::trace_name(file), .file = file, .events = {}, .streams = {}, .threads = {}};
  {
    gpumem::extend::trace_reader reader{replay::read_trace_file(file), file};
    detail::event_list rows{made};
    gpumem::extend::trace_record row;
    while (reader.next(row)) {
      if (!detail::has_possible_addresses(row))
        throw gpumem::extend::trace_error(file, reader.line(), "memory at addresses that no memory has");
      rows.add(row);
    }
    if (made.events.empty()) throw gpumem::extend::trace_error(file, reader.line(), "there are no rows");
  }
  if (made.memory == memory_source::none && detail::add_memory(made, replay::read_trace_file(file)))
    made.memory = memory_source::replay;
  return made;
}

} // namespace report
