// Converts snapshots to PyTorch's pickle, and back.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <map>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module gpumem.snapshot;

namespace gpumem {
namespace {

// Writes a pickle of protocol 2. A text that occurs again is a reference to the first one.
class pickle_writer {
public:
  explicit pickle_writer(std::ostream& stream) : stream_{stream} { stream_ << "\x80\x02"; }
  void end() { stream_ << '.'; }

  // Writes a dictionary or a list, whose items `write()` writes.
  template <class Write> void dictionary(Write write) { group("}(", 'u', write); }
  template <class Write> void list(Write write) { group("](", 'e', write); }
  // Write an item: its key in a dictionary, or its value.
  void text(std::string const& value) {
    auto const [at, added] = texts_.try_emplace(value, static_cast<std::uint32_t>(texts_.size()));
    if (!added) return number('j', at->second);
    number('X', static_cast<std::uint32_t>(value.size()));
    stream_ << value;
    number('r', at->second);
  }
  void integer(std::uint64_t value) {
    if (value <= INT_MAX) return number('J', static_cast<std::uint32_t>(value));
    stream_ << "\x8a\x09"; // nine bytes, since the highest bit is the sign
    for (int i = 0; i < 9; ++i) stream_ << static_cast<char>(i < 8 ? value >> (8 * i) & 0xff : 0);
  }
  void member(std::string const& key, std::uint64_t value) {
    text(key);
    integer(value);
  }
  void member(std::string const& key, std::string const& value) {
    text(key);
    text(value);
  }
  void member(std::string const& key, bool value) {
    text(key);
    stream_ << (value ? '\x88' : '\x89');
  }
  // Writes a pair of integers.
  void pair(std::uint64_t first, std::uint64_t second) {
    integer(first);
    integer(second);
    stream_ << '\x86';
  }

private:
  template <class Write> void group(char const* begin, char end, Write write) {
    stream_ << begin;
    write();
    stream_ << end;
  }
  void number(char operation, std::uint32_t value) {
    stream_ << operation;
    for (int i = 0; i < 4; ++i) stream_ << static_cast<char>(value >> (8 * i) & 0xff);
  }

  std::ostream& stream_;
  std::map<std::string, std::uint32_t> texts_;
};

std::uint64_t address_of(snapshot_block const& block) { return reinterpret_cast<std::uintptr_t>(block.base); }

void write_frames(pickle_writer& writer, std::string const& label) {
  writer.text("frames");
  writer.list([&] {
    if (label.empty()) return;
    writer.dictionary([&] {
      writer.member("name", label);
      writer.member("filename", std::string{"label"});
      writer.member("line", std::uint64_t{0});
    });
  });
}

void write_block(pickle_writer& writer, memory_snapshot const& snapshot, snapshot_block const& block) {
  writer.dictionary([&] {
    bool const live = block.state == memory_state::live;
    writer.member("address", address_of(block));
    writer.member("size", block.bytes);
    writer.member("requested_size", live ? block.requested : block.bytes);
    writer.member("state", std::string{live                                   ? "active_allocated"
                                       : block.state == memory_state::pending ? "active_pending_free"
                                                                              : "inactive"});
    write_frames(writer, snapshot.labels[block.label]);
  });
}

using blocks = std::vector<snapshot_block>::const_iterator;

void write_segment(pickle_writer& writer, memory_snapshot const& snapshot, blocks first, blocks end) {
  std::uint64_t total = 0, allocated = 0, requested = 0;
  for (auto at = first; at != end; ++at) {
    total += at->bytes;
    allocated += at->state == memory_state::live ? at->bytes : 0;
    requested += at->requested;
  }
  writer.dictionary([&] {
    writer.member("device", std::uint64_t{snapshot.device < 0 ? 0u : static_cast<unsigned>(snapshot.device)});
    writer.member("address", address_of(*first));
    writer.member("total_size", total);
    writer.member("allocated_size", allocated);
    writer.member("active_size", allocated);
    writer.member("requested_size", requested);
    writer.member("stream", std::uint64_t{0}); // blocks of all streams lie in a region
    writer.member("segment_type", std::string{"large"});
    writer.text("segment_pool_id");
    writer.pair(0, 0);
    writer.member("is_expandable", true);
    write_frames(writer, "");
    writer.text("blocks");
    writer.list([&] {
      for (auto at = first; at != end; ++at) write_block(writer, snapshot, *at);
    });
  });
}

} // namespace

void write_pickle(memory_snapshot const& snapshot, std::ostream& stream) {
  pickle_writer writer{stream};
  writer.dictionary([&] {
    writer.text("segments");
    writer.list([&] {
      auto const& all = snapshot.blocks;
      for (auto at = all.begin(); at != all.end();) {
        auto const end = std::find_if(at + 1, all.end(), [](snapshot_block const& one) { return one.begins_region; });
        write_segment(writer, snapshot, at, end);
        at = end;
      }
    });
    writer.text("device_traces");
    writer.list([&] {
      for (int i = 0; i <= snapshot.device; ++i) writer.list([] {});
    });
    writer.text("allocator_settings");
    writer.dictionary([] {});
    writer.text("external_annotations");
    writer.list([] {});
  });
  writer.end();
}

using extend::pickle_value;

pickle_value const* detail::find_in_pickle(pickle_value const& owner, std::string_view key) {
  auto const& members = owner.as<pickle_value::dictionary>();
  auto const found = members.find(key);
  return found == members.end() ? nullptr : &found->second;
}

std::uint64_t detail::count_in_pickle(pickle_value const& owner, std::string_view key) {
  auto const* const value = find_in_pickle(owner, key);
  auto const* const number = value ? value->get_if<std::int64_t>() : nullptr;
  if (number && *number >= 0) return static_cast<std::uint64_t>(*number);
  throw std::invalid_argument{"gpumem: " + std::string{key} + " is missing or no number from 0"};
}

namespace {

constexpr std::size_t most_bytes = 500; // of a text, which many blocks may share

// Returns the end of the path of the frame's file.
std::string_view file_of(pickle_value const& frame) {
  std::string_view const path = frame["filename"].as<std::string>();
  return path.substr(path.size() - std::min(path.size(), most_bytes));
}

} // namespace

pickle_value const* detail::pickle_labels::naming_frame(pickle_value::list const& frames) {
  auto const [place, added] = naming_frames_.try_emplace(&frames, nullptr);
  for (std::size_t i = 0; added && i < frames.size(); ++i) {
    ++frames_seen_;
    auto const file = file_of(frames[i]);
    bool const outside = file == "label" || (file.ends_with(".py") && file.find("/torch/") == std::string_view::npos);
    if (i == 0 || outside) place->second = &frames[i];
    if (outside) break;
  }
  return place->second;
}

std::string detail::pickle_labels::label_of(pickle_value const& block) {
  auto const* const metadata = find_in_pickle(block, "user_metadata");
  auto const* const text = metadata ? metadata->get_if<std::string>() : nullptr;
  if (text && !text->empty()) return text->substr(0, most_bytes);
  auto const* const frames = find_in_pickle(block, "frames");
  auto const* const frame = frames ? naming_frame(frames->as<pickle_value::list>()) : nullptr;
  if (!frame) return {};
  auto const file = file_of(*frame);
  auto const name = (*frame)["name"].as<std::string>().substr(0, most_bytes);
  if (file == "label") return name;
  return std::string{file.substr(file.find_last_of('/') + 1)} + ":" + std::to_string(count_in_pickle(*frame, "line")) +
         " " + name;
}

namespace {

using detail::count_in_pickle;

snapshot_block block_of(pickle_value const& record, std::uint64_t address, std::uint64_t stream, bool first) {
  snapshot_block block{reinterpret_cast<void*>(address), count_in_pickle(record, "size")};
  auto const& state = record["state"].as<std::string>();
  if (state == "active_allocated") {
    block.state = memory_state::live;
    block.requested = count_in_pickle(record, "requested_size");
    block.stream = stream;
  } else if (state.starts_with("active_")) {
    block.state = memory_state::pending;
  } else if (state != "inactive") {
    throw std::invalid_argument{"gpumem: a snapshot has a block in the unknown state " + state};
  }
  block.begins_region = first;
  return block;
}

} // namespace

memory_snapshot snapshot_of_pickle(std::string_view text) {
  auto const pickle = extend::read_pickle(text);
  memory_snapshot snapshot;
  std::map<std::string, std::uint32_t> numbers{{"", 0}};
  detail::pickle_labels labels;
  auto& sums = snapshot.statistics;
  for (auto const& segment : pickle["segments"].as<pickle_value::list>()) {
    auto address = count_in_pickle(segment, "address");
    auto const stream = count_in_pickle(segment, "stream");
    auto const device = count_in_pickle(segment, "device");
    if (device > 1000) throw std::invalid_argument{"gpumem: a snapshot is of device " + std::to_string(device)};
    snapshot.device = static_cast<int>(device);
    bool first = true;
    for (auto const& record : segment["blocks"].as<pickle_value::list>()) {
      // places of the pickle may share a segment or a block
      if (snapshot.blocks.size() > text.size())
        throw std::invalid_argument{"gpumem: a snapshot has blocks without end"};
      auto block = block_of(record, address, stream, std::exchange(first, false));
      auto const [at, added] =
          numbers.try_emplace(labels.label_of(record), static_cast<std::uint32_t>(snapshot.labels.size()));
      if (added) snapshot.labels.push_back(at->first);
      block.label = at->second;
      address += block.bytes;
      sums.reserved += block.bytes;
      sums.live += block.requested;
      (block.state == memory_state::live ? sums.allocated : sums.free) += block.bytes;
      snapshot.blocks.push_back(block);
    }
  }
  std::ranges::sort(snapshot.blocks, {}, address_of);
  snapshot.pieces = 1;
  return snapshot;
}

} // namespace gpumem
