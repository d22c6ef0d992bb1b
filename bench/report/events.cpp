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
    if (is_memory(each.action)) lowest = std::min(lowest, each.pointer);
  for (event& each : events)
    if (each.action != trace_action::allocate_failure) each.pointer -= lowest;
}

// Returns whether the row's memory lies where memory can be.
bool has_possible_addresses(trace_record const& row) {
  if (row.action != trace_action::allocate && !is_memory(row.action)) return true;
  return is_possible(row.pointer, row.bytes) &&
         (row.action != trace_action::move || is_possible(row.stream, row.bytes));
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

namespace detail {

recording read_log(std::string text, std::string const& file) {
  recording made;
  made.name = replay::trace_name(file);
  made.file = file;
  {
    gpumem::extend::trace_reader reader{std::move(text), file};
    event_list rows{made};
    trace_record row;
    while (reader.next(row)) {
      if (!has_possible_addresses(row))
        throw gpumem::extend::trace_error(file, reader.line(), "memory at addresses that no memory has");
      if (is_memory(row.action)) made.memory = memory_source::log;
      rows.add(row);
    }
    if (made.events.empty()) throw gpumem::extend::trace_error(file, reader.line(), "there are no rows");
  }
  if (made.memory == memory_source::none && add_memory(made, replay::read_trace_file(file)))
    made.memory = memory_source::replay;
  return made;
}

} // namespace detail

std::vector<recording> read_recordings(std::string const& file) {
  std::string text = replay::read_trace_file(file);
  if (detail::is_json(text)) return {detail::read_json_snapshot(text, file)};
  if (detail::is_pickle(text)) return detail::read_pickle_snapshot(text, file);
  return {detail::read_log(std::move(text), file)};
}

} // namespace report
