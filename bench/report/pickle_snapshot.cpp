// Reads the pickles that PyTorch and gpumem write of snapshots: the state of the memory, and the entries of the trace
// that led to it.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <ranges>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module report:pickle_snapshot.impl;
import gpumem;
import gpumem.snapshot;
import replay;
import :event_list;
import :events;
import :range_set;
import :snapshots;

namespace report::detail {

namespace {

using gpumem::detail::count_in_pickle;
using gpumem::detail::find_in_pickle;
using gpumem::extend::pickle_value;

pickle_value::list const& list_of(pickle_value const& owner, std::string_view key) {
  if (auto const* const value = find_in_pickle(owner, key)) return value->as<pickle_value::list>();
  throw std::invalid_argument(std::string{key} + " is missing");
}

struct live_block {
  std::uint64_t bytes = 0, stream = 0;
  std::uint16_t label = 0; // its number
};

std::optional<trace_action> action_of(std::string const& name) {
  using enum trace_action;
  static std::map<std::string, trace_action, std::less<>> const known{
      {"alloc", allocate},       {"free_requested", free}, {"segment_alloc", map},  {"segment_map", map},
      {"oom", allocate_failure}, {"segment_free", unmap},  {"segment_unmap", unmap}};
  auto const found = known.find(name);
  if (found == known.end()) return std::nullopt; // the pool's free, marks and notes
  return found->second;
}

void take_room(std::size_t& room) {
  if (room-- == 0) throw std::invalid_argument("blocks and entries without end");
}

// One device of a pickle.
class device_builder {
public:
  explicit device_builder(std::uint64_t device) {
    facts_.pool = "pickle"; // which has no name of the pool
    facts_.device = device;
  }

  // `room` is the number of blocks and entries that the pickle may still have: its places may share them.
  void add_segment(pickle_value const& segment, std::size_t& room) {
    auto const begin = count_in_pickle(segment, "address"), stream = count_in_pickle(segment, "stream");
    auto const* const expandable = find_in_pickle(segment, "is_expandable");
    join_ |= expandable && expandable->as<bool>();
    auto end = begin;
    each_item(list_of(segment, "blocks"), "blocks", [&](pickle_value const& block) {
      take_room(room);
      auto const bytes = count_in_pickle(block, "size");
      if (!is_possible(end, bytes)) throw std::invalid_argument("memory at addresses that no memory has");
      auto const& state = block["state"].as<std::string>();
      if (state == "active_allocated") {
        auto const requested =
            find_in_pickle(block, "requested_size") ? count_in_pickle(block, "requested_size") : bytes;
        if (requested > bytes) throw std::invalid_argument("requested_size is larger than size");
        live_[end] = {requested, stream, number_of_label(block)};
      } else if (state.starts_with("active_")) {
        ++facts_.pending_blocks;
        facts_.pending_bytes += bytes;
      } else if (state != "inactive") {
        throw std::invalid_argument("the state '" + state.substr(0, 40) + "' is unknown");
      }
      end += bytes;
    });
    regions_.emplace_back(begin, end);
    ++facts_.regions;
  }

  void add_trace(pickle_value::list const& entries, std::size_t& room) {
    each_item(entries, "entries", [&](pickle_value const& entry) {
      take_room(room);
      auto const& name = entry["action"].as<std::string>();
      auto const action = action_of(name);
      if (!action) return;
      join_ |= name == "segment_map";
      bool const failure = *action == trace_action::allocate_failure;
      trace_record row{.microseconds = find_in_pickle(entry, "time_us") ? count_in_pickle(entry, "time_us") : 0,
                       .action = *action,
                       .pointer = failure ? 0 : count_in_pickle(entry, "addr"),
                       .bytes = count_in_pickle(entry, "size"),
                       .stream = count_in_pickle(entry, "stream")};
      if (!is_possible(row.pointer, row.bytes)) throw std::invalid_argument("memory at addresses that no memory has");
      if (row.action == trace_action::allocate) row.label = number_of_label(entry);
      trace_.push_back(row);
    });
  }

  bool has_memory() const noexcept { return !regions_.empty() || !trace_.empty(); }

  recording build(std::string const& file, bool only_device) && {
    recording made;
    made.name = replay::trace_name(file);
    if (!only_device) made.name += ", device " + std::to_string(facts_.device);
    made.file = file;
    made.memory = memory_source::snapshot;
    made.timed = !trace_.empty();
    made.regions_join = join_;
    if (made.timed) go_back();
    event_list rows{made};
    auto const time = made.timed ? trace_.front().microseconds : 0;
    for (auto const& [begin, end] : regions_)
      rows.add({.microseconds = time, .action = trace_action::map, .pointer = begin, .bytes = end - begin});
    for (auto const& [pointer, block] : live_)
      rows.add({.microseconds = time, .pointer = pointer, .bytes = block.bytes, .stream = block.stream},
               labels_[block.label]);
    made.initial = made.events.size();
    for (auto const& row : trace_) rows.add(row, labels_[row.label]);
    made.threads.clear();
    made.snapshot = std::move(facts_);
    return made;
  }

private:
  std::uint16_t number_of_label(pickle_value const& record) {
    return label_numbers_.number_of(pickle_labels_.label_of(record));
  }

  // Makes of the state at the snapshot the one before the trace. The trace may have lost its first entries.
  void go_back() {
    range_set<false> memory;
    auto const add_walls = [&](std::uint64_t begin, std::uint64_t end) {
      if (!join_) memory.add_wall(begin), memory.add_wall(end);
    };
    for (auto const& [begin, end] : regions_) {
      add_walls(begin, end);
      memory.add(begin, end);
    }
    for (auto const& row : std::views::reverse(trace_)) {
      switch (row.action) {
      case trace_action::allocate: live_.erase(row.pointer); break;
      case trace_action::free: live_[row.pointer] = {row.bytes, row.stream}; break;
      case trace_action::map: memory.remove(row.pointer, row.pointer + row.bytes); break;
      case trace_action::unmap:
        add_walls(row.pointer, row.pointer + row.bytes);
        memory.add(row.pointer, row.pointer + row.bytes);
        break;
      default: break;
      }
    }
    regions_.assign(memory.all().begin(), memory.all().end());
  }

  snapshot_facts facts_;
  bool join_ = false; // there are expandable segments, which are mapped in parts
  std::vector<std::pair<std::uint64_t, std::uint64_t>> regions_;
  std::map<std::uint64_t, live_block> live_;
  std::vector<trace_record> trace_;
  std::vector<std::string> labels_{""}; // the text of each number; the places of a pickle may share it
  numbering<std::string> label_numbers_{labels_};
  gpumem::detail::pickle_labels pickle_labels_;
};

std::vector<recording> recordings_of(pickle_value const& whole, std::string const& file, std::size_t room) {
  std::map<std::uint64_t, device_builder> devices;
  auto const device = [&](std::uint64_t number) -> device_builder& {
    constexpr std::uint64_t most = 1000;
    if (number > most) throw std::invalid_argument("there is no device " + std::to_string(number));
    return devices.try_emplace(number, number).first->second;
  };
  each_item(list_of(whole, "segments"), "segments", [&](pickle_value const& segment) {
    device(find_in_pickle(segment, "device") ? count_in_pickle(segment, "device") : 0).add_segment(segment, room);
  });
  if (find_in_pickle(whole, "device_traces")) {
    std::uint64_t number = 0;
    each_item(list_of(whole, "device_traces"), "device_traces",
              [&](pickle_value const& entries) { device(number++).add_trace(entries.as<pickle_value::list>(), room); });
  }
  std::erase_if(devices, [](auto const& each) { return !each.second.has_memory(); });
  if (devices.empty()) device(0);
  std::vector<recording> all;
  for (auto& [number, each] : devices) all.push_back(std::move(each).build(file, devices.size() == 1));
  return all;
}

} // namespace

std::vector<recording> read_pickle_snapshot(std::string_view text, std::string const& file) {
  try {
    return recordings_of(gpumem::extend::read_pickle(text), file, text.size());
  } catch (std::invalid_argument const& error) { throw std::runtime_error(file + ": " + reason_of(error)); }
}

} // namespace report::detail
