// Reads trace files and makes operations from their rows; reports every contradiction of a trace before anything runs.
// SPDX-License-Identifier: Apache-2.0
module;
#include <zlib.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>
module replay:plan.impl;
import gpumem;
import :plan;

namespace replay {

namespace detail {

[[noreturn]] void fail_in_file(std::string const& path, std::size_t line, std::string reason) {
  throw gpumem::extend::trace_error(path, line, std::move(reason));
}

std::string read_bytes(std::string const& path) {
  auto const reason = [] { return std::generic_category().message(errno); };
  struct closer {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, closer> const file{std::fopen(path.c_str(), "rb")};
  if (!file) fail_in_file(path, 0, "cannot be opened: " + reason());
  std::string bytes;
  std::array<char, 1 << 16> chunk;
  while (std::size_t const got = std::fread(chunk.data(), 1, chunk.size(), file.get())) bytes.append(chunk.data(), got);
  if (std::ferror(file.get()) != 0) fail_in_file(path, 0, "cannot be read: " + reason());
  return bytes;
}

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

// zlib's gzread ignores bytes after the last gzip member, so this uses inflate directly.
class gzip_reader {
public:
  gzip_reader(std::string const& path, std::string_view packed) : path_{path}, packed_{packed} {
    // 16 selects the gzip format with its checksum
    if (inflateInit2(&stream_, MAX_WBITS + 16) != Z_OK) fail_in_file(path_, 0, "cannot be unpacked: no memory");
  }
  gzip_reader(gzip_reader const&) = delete;
  gzip_reader& operator=(gzip_reader const&) = delete;
  ~gzip_reader() { inflateEnd(&stream_); }

  std::string unpack() {
    while (!packed_.empty()) {
      if (!is_gzip(packed_)) fail("something that is not gzip follows the gzip data");
      unpack_member();
    }
    return std::move(text_);
  }

private:
  void unpack_member() {
    inflateReset(&stream_);
    for (int state = Z_OK; state != Z_STREAM_END;) {
      if (packed_.empty()) fail("cut short: the gzip data ends here");
      auto const given = static_cast<uInt>(std::min<std::size_t>(packed_.size(), INT_MAX));
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed_.data()));
      stream_.avail_in = given;
      do {
        stream_.next_out = reinterpret_cast<Bytef*>(chunk_.data());
        stream_.avail_out = static_cast<uInt>(chunk_.size());
        state = inflate(&stream_, Z_NO_FLUSH);
        text_.append(chunk_.data(), chunk_.size() - stream_.avail_out);
      } while (state == Z_OK && stream_.avail_out == 0);
      if (state != Z_OK && state != Z_STREAM_END && state != Z_BUF_ERROR) {
        fail("damaged: " + std::string(stream_.msg != nullptr ? stream_.msg : "bad gzip data"));
      }
      packed_.remove_prefix(given - stream_.avail_in);
    }
  }

  [[noreturn]] void fail(std::string reason) const {
    if (text_.starts_with('\x89')) fail_in_file(path_, 0, std::move(reason)); // a binary trace has no lines
    auto const lines = static_cast<std::size_t>(std::count(text_.begin(), text_.end(), '\n'));
    fail_in_file(path_, lines + 1, std::move(reason));
  }

  std::string const& path_;
  std::string_view packed_;
  std::string text_;
  std::array<char, 1 << 16> chunk_;
  z_stream stream_{};
};

} // namespace detail

std::string read_trace_file(std::string const& path) {
  std::string bytes = detail::read_bytes(path);
  return detail::is_gzip(bytes) ? detail::gzip_reader{path, bytes}.unpack() : bytes;
}

std::string to_csv(std::string text, std::string const& name) {
  gpumem::extend::trace_reader reader{std::move(text), name};
  std::string rows{gpumem::extend::trace_header};
  rows += '\n';
  gpumem::extend::trace_record record;
  while (reader.next(record)) rows += gpumem::extend::format_row(record).text();
  return rows;
}

std::string trace_name(std::string const& path) {
  std::filesystem::path name = std::filesystem::path{path}.filename();
  if (name.extension() == ".gz") name.replace_extension();
  for (char const* const each : {".csv", ".log", ".gpumemlog", ".json", ".pickle", ".pkl"}) {
    if (name.extension() == each) {
      name.replace_extension();
      break;
    }
  }
  return name.string();
}

namespace detail {

class plan_builder {
public:
  plan_builder(std::string text, std::string const& name) : reader_{std::move(text), name} {}

  plan build() {
    gpumem::extend::trace_record record;
    while (reader_.next(record)) add(record);
    if (plan_.operations.empty()) fail("there is nothing to replay: no allocation and no free");
    plan_.streams = static_cast<std::uint32_t>(streams_.size());
    collect_live_at_end();
    return std::move(plan_);
  }

private:
  struct block_state {
    std::uint64_t bytes = 0;
    std::uint32_t block = 0;
    std::uint32_t stream = 0;
    std::size_t line = 0; // of the allocation while the block is live, of the free afterwards
    bool live = false;
  };

  [[noreturn]] void fail(std::string reason) const {
    throw gpumem::extend::trace_error(reader_.name(), reader_.line(), std::move(reason));
  }

  static std::string shown(std::uint64_t pointer) {
    char text[16];
    return "0x" + std::string(text, std::to_chars(text, text + sizeof text, pointer, 16).ptr);
  }

  void add(gpumem::extend::trace_record const& record) {
    if (record.action > gpumem::extend::trace_action::allocate_failure) return; // no call
    if (record.action == gpumem::extend::trace_action::allocate_failure) {
      ++plan_.recorded_failures;
    } else if (record.pointer == 0 && record.bytes == 0) {
      ++plan_.recorded_nulls;
    } else {
      record.action == gpumem::extend::trace_action::allocate ? allocate(record) : free(record);
      plan_.microseconds.push_back(since_first(record.microseconds));
      plan_.threads.push_back(
          threads_.try_emplace(record.thread, static_cast<std::uint32_t>(threads_.size())).first->second);
      plan_.lines.push_back(static_cast<std::uint32_t>(reader_.line()));
    }
  }

  void allocate(gpumem::extend::trace_record const& record) {
    if (record.pointer == 0) fail("an allocation of " + std::to_string(record.bytes) + " bytes without a pointer");
    block_state& state = states_[record.pointer];
    if (state.live) {
      fail("pointer " + shown(record.pointer) + " is allocated while it is live since line " +
           std::to_string(state.line));
    }
    if (__builtin_add_overflow(live_bytes_, record.bytes, &live_bytes_)) fail("more than 2^64 bytes would be live");
    plan_.peak_live_bytes = std::max(plan_.peak_live_bytes, live_bytes_);
    state = {record.bytes, take_slot(), stream_number(record.stream), reader_.line(), true};
    ++plan_.allocations;
    plan_.operations.push_back({record.bytes, state.block, state.stream, 1});
  }

  void free(gpumem::extend::trace_record const& record) {
    auto const found = states_.find(record.pointer);
    if (found == states_.end()) fail("free of pointer " + shown(record.pointer) + ", which was never allocated");
    block_state& state = found->second;
    if (!state.live) {
      fail("double free of pointer " + shown(record.pointer) + ", freed in line " + std::to_string(state.line));
    }
    if (state.bytes != record.bytes) {
      fail("free of " + std::to_string(record.bytes) + " bytes at " + shown(record.pointer) + ", where line " +
           std::to_string(state.line) + " allocated " + std::to_string(state.bytes));
    }
    live_bytes_ -= record.bytes;
    if (stream_number(record.stream) != state.stream) ++plan_.frees_elsewhere;
    state.live = false;
    state.line = reader_.line();
    free_slots_.push_back(state.block);
    plan_.operations.push_back({record.bytes, state.block, stream_number(record.stream), 0});
  }

  // Recorded times start again at midnight. Rows of several threads may be slightly out of order: a time that seems
  // half a day later or more was in fact earlier. It is set to the time of the row before it.
  std::uint64_t since_first(std::uint64_t recorded) {
    constexpr std::uint64_t day = 86'400'000'000;
    std::uint64_t const time = recorded % day;
    if (plan_.microseconds.empty()) latest_ = time;
    std::uint64_t const passed = (time + day - latest_) % day;
    if (passed < day / 2) {
      elapsed_ += passed;
      latest_ = time;
    }
    return elapsed_;
  }

  // Reuses the slot that was freed last, as a program does that keeps its pointers in few places.
  std::uint32_t take_slot() {
    if (free_slots_.empty()) return plan_.blocks++;
    std::uint32_t const slot = free_slots_.back();
    free_slots_.pop_back();
    return slot;
  }

  std::uint32_t stream_number(std::uint64_t recorded) {
    return streams_.try_emplace(recorded, static_cast<std::uint32_t>(streams_.size())).first->second;
  }

  void collect_live_at_end() {
    for (auto const& [pointer, state] : states_) {
      if (state.live) plan_.live_at_end.push_back({state.bytes, state.block, state.stream, 0});
    }
    std::sort(plan_.live_at_end.begin(), plan_.live_at_end.end(),
              [](operation const& a, operation const& b) { return a.block < b.block; });
  }

  gpumem::extend::trace_reader reader_;
  plan plan_;
  std::unordered_map<std::uint64_t, block_state> states_;
  std::unordered_map<std::uint64_t, std::uint32_t> streams_;
  std::unordered_map<std::uint64_t, std::uint32_t> threads_;
  std::vector<std::uint32_t> free_slots_;
  std::uint64_t live_bytes_ = 0;
  std::uint64_t latest_ = 0;  // time of day of the latest row, in microseconds
  std::uint64_t elapsed_ = 0; // microseconds from the first row to the latest
};

} // namespace detail

plan make_plan(std::string text, std::string const& name) {
  return detail::plan_builder{std::move(text), name}.build();
}

plan first_operations(plan const& whole, std::size_t count) {
  plan part;
  count = std::min(count, whole.operations.size());
  auto const copy = [count](auto const& from, auto& to) {
    to.assign(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(count));
  };
  copy(whole.operations, part.operations);
  copy(whole.microseconds, part.microseconds);
  copy(whole.threads, part.threads);
  copy(whole.lines, part.lines);
  part.blocks = whole.blocks;
  part.streams = whole.streams;
  std::vector<operation const*> live(whole.blocks);
  std::uint64_t live_bytes = 0;
  for (operation const& next : part.operations) {
    bool const elsewhere = !next.allocates && live[next.block]->stream != next.stream;
    part.allocations += next.allocates;
    part.frees_elsewhere += elsewhere ? 1 : 0;
    live_bytes += next.allocates ? next.bytes : std::uint64_t{0} - next.bytes;
    part.peak_live_bytes = std::max(part.peak_live_bytes, live_bytes);
    live[next.block] = next.allocates ? &next : nullptr;
  }
  for (operation const* each : live) {
    if (each != nullptr) part.live_at_end.push_back({each->bytes, each->block, each->stream, 0});
  }
  return part;
}

void require_times(plan const& of, std::string const& name) {
  if (of.microseconds.back() == 0) { throw gpumem::extend::trace_error(name, 0, "all its calls have the same time"); }
}

} // namespace replay
