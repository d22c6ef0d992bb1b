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

using gpumem::extend::pickle_value;

pickle_value const* find(pickle_value const& owner, std::string_view key) {
  auto const& members = owner.as<pickle_value::dictionary>();
  auto const found = members.find(key);
  return found == members.end() ? nullptr : &found->second;
}

std::uint64_t count_of(pickle_value const& owner, std::string_view key) {
  try {
    if (auto const number = owner[key].as<std::int64_t>(); number >= 0) return static_cast<std::uint64_t>(number);
  } catch (std::invalid_argument const&) {
    // reported below, with the key
  }
  throw std::invalid_argument(std::string{key} + " is missing or no number from 0");
}

pickle_value::list const& list_of(pickle_value const& owner, std::string_view key) {
  if (auto const* const value = find(owner, key)) return value->as<pickle_value::list>();
  throw std::invalid_argument(std::string{key} + " is missing");
}

// Returns the text of the metadata that a program has set; empty if there is none.
std::string metadata_of(pickle_value const& record) {
  auto const* const value = find(record, "user_metadata");
  auto const* const text = value ? value->get_if<std::string>() : nullptr;
  return text ? *text : std::string{};
}

// Returns what names the owner of a block: the program's metadata, or the innermost frame outside PyTorch. A label of
// gpumem is such a frame.
std::string label_of(pickle_value const& record) {
  if (auto text = metadata_of(record); !text.empty()) return text;
  auto const* const frames = find(record, "frames");
  if (frames == nullptr) return {};
  pickle_value const* best = nullptr;
  constexpr std::size_t most_frames = 1000;
  for (auto const& frame : frames->as<pickle_value::list>() | std::views::take(most_frames)) {
    auto const& file = frame["filename"].as<std::string>();
    bool const outside = file == "label" || (file.ends_with(".py") && file.find("/torch/") == std::string::npos);
    if (best == nullptr || outside) best = &frame;
    if (outside) break;
  }
  if (best == nullptr) return {};
  auto const& file = (*best)["filename"].as<std::string>();
  auto const& name = (*best)["name"].as<std::string>();
  if (file == "label") return name;
  return file.substr(file.find_last_of('/') + 1) + ":" + std::to_string(count_of(*best, "line")) + " " + name;
}

struct live_block {
  std::uint64_t bytes = 0, stream = 0;
  std::string label;
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
    facts_.pool = "PyTorch";
    facts_.device = device;
  }

  // `room` is the number of blocks and entries that the pickle may still have: its places may share them.
  void add_segment(pickle_value const& segment, std::size_t& room) {
    auto const begin = count_of(segment, "address"), stream = count_of(segment, "stream");
    auto const* const expandable = find(segment, "is_expandable");
    join_ |= expandable && expandable->as<bool>();
    auto end = begin;
    each_item(list_of(segment, "blocks"), "blocks", [&](pickle_value const& block) {
      take_room(room);
      auto const bytes = count_of(block, "size");
      if (!is_possible(end, bytes)) throw std::invalid_argument("memory at addresses that no memory has");
      auto const& state = block["state"].as<std::string>();
      if (state == "active_allocated") {
        auto const* const requested = find(block, "requested_size");
        live_[end] = {requested ? count_of(block, "requested_size") : bytes, stream, label_of(block)};
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
      trace_record const row{.microseconds = find(entry, "time_us") ? count_of(entry, "time_us") : 0,
                             .action = *action,
                             .pointer = failure ? 0 : count_of(entry, "addr"),
                             .bytes = count_of(entry, "size"),
                             .stream = count_of(entry, "stream")};
      if (!is_possible(row.pointer, row.bytes)) throw std::invalid_argument("memory at addresses that no memory has");
      trace_.push_back({row, row.action == trace_action::allocate ? label_of(entry) : std::string{}});
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
    auto const time = made.timed ? trace_.front().first.microseconds : 0;
    for (auto const& [begin, end] : regions_)
      rows.add({.microseconds = time, .action = trace_action::map, .pointer = begin, .bytes = end - begin});
    for (auto const& [pointer, block] : live_)
      rows.add({.microseconds = time, .pointer = pointer, .bytes = block.bytes, .stream = block.stream}, block.label);
    made.initial = made.events.size();
    for (auto const& [row, label] : trace_) rows.add(row, label);
    made.threads.clear();
    made.snapshot = std::move(facts_);
    return made;
  }

private:
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
    for (auto const& [row, label] : std::views::reverse(trace_)) {
      switch (row.action) {
      case trace_action::allocate: live_.erase(row.pointer); break;
      case trace_action::free: live_[row.pointer] = {row.bytes, row.stream, {}}; break;
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
  std::vector<std::pair<trace_record, std::string>> trace_;
};

std::vector<recording> recordings_of(pickle_value const& whole, std::string const& file, std::size_t room) {
  std::map<std::uint64_t, device_builder> devices;
  auto const device = [&](std::uint64_t number) -> device_builder& {
    constexpr std::uint64_t most = 1000;
    if (number > most) throw std::invalid_argument("there is no device " + std::to_string(number));
    return devices.try_emplace(number, number).first->second;
  };
  each_item(list_of(whole, "segments"), "segments", [&](pickle_value const& segment) {
    device(find(segment, "device") ? count_of(segment, "device") : 0).add_segment(segment, room);
  });
  if (find(whole, "device_traces")) {
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
  } catch (std::invalid_argument const& error) {
    std::string_view reason = error.what();
    if (reason.starts_with("gpumem: ")) reason.remove_prefix(8);
    throw std::runtime_error(file + ": " + std::string{reason});
  }
}

} // namespace report::detail
