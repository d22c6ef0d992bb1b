// Computes the figures of a report in two passes over the events: the curves and their extremes, then the maps and the
// holders at the moments that the first pass has found.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>
module report:summary.impl;
import :event_list;
import :events;
import :range_set;
import :summary;

namespace report {

namespace detail {

std::string hexadecimal(std::uint64_t value) {
  char text[16];
  return "0x" + std::string(text, std::to_chars(text, text + sizeof text, value, 16).ptr);
}

std::size_t bin_of(std::uint64_t bytes) {
  return std::min<std::size_t>(bytes == 0 ? 0 : std::bit_width(bytes) - 1, size_bins - 1);
}

struct block {
  std::uint64_t bytes = 0;
  std::uint16_t stream = 0, thread = 0, label = 0;
  bool in_memory = false; // all of it was free
};

// The first address after the block. Pools hand out multiples of 256 bytes.
std::uint64_t end_of(std::uint64_t pointer, std::uint64_t bytes) {
  constexpr std::uint64_t granule = 256;
  return pointer + (std::max<std::uint64_t>(bytes, 1) + granule - 1) / granule * granule;
}

// Blocks and memory after a row. `with_free`: also the free ranges.
template <bool with_free> class memory_state {
public:
  explicit memory_state(bool regions_join) : regions_join_{regions_join} {}

  // Returns false for the free of an unknown block.
  bool apply(event const& row) {
    switch (row.action) {
    case trace_action::allocate: allocate(row); return true;
    case trace_action::free: return free(row.pointer);
    case trace_action::label:
      if (auto const found = blocks_.find(row.pointer); found != blocks_.end()) found->second.label = row.label;
      return true;
    case trace_action::map:
    case trace_action::move: map(row.pointer, row.pointer + row.bytes); return true;
    case trace_action::unmap: unmap(row.pointer, row.pointer + row.bytes); return true;
    default: return true;
    }
  }

  moment now(std::size_t row, std::uint64_t microseconds) const {
    return {row, microseconds, live_, blocks_.size(), mapped_.bytes(), free_.bytes(), free_.largest()};
  }
  // Returns the bytes of the live block at this address; 0 if there is none.
  std::uint64_t bytes_of(std::uint64_t pointer) const {
    auto const found = blocks_.find(pointer);
    return found == blocks_.end() ? 0 : found->second.bytes;
  }
  std::unordered_map<std::uint64_t, block> const& blocks() const noexcept { return blocks_; }
  range_set<false> const& mapped() const noexcept { return mapped_; }

private:
  void map(std::uint64_t begin, std::uint64_t end) {
    mapped_.add(begin, end);
    if constexpr (!with_free) return;
    if (!regions_join_) {
      free_.add_wall(begin);
      free_.add_wall(end);
    }
    free_.add(begin, end);
  }
  void unmap(std::uint64_t begin, std::uint64_t end) {
    mapped_.remove(begin, end);
    if constexpr (!with_free) return;
    free_.remove(begin, end);
    if (regions_join_) return;
    free_.remove_wall(begin);
    free_.remove_wall(end);
  }
  void allocate(event const& row) {
    free(row.pointer); // the log has lost its free
    block made{row.bytes, row.stream, row.thread, row.label, false};
    if constexpr (with_free) made.in_memory = free_.remove(row.pointer, end_of(row.pointer, row.bytes));
    blocks_.emplace(row.pointer, made);
    live_ += row.bytes;
  }
  bool free(std::uint64_t pointer) {
    auto const found = blocks_.find(pointer);
    if (found == blocks_.end()) return false;
    live_ -= found->second.bytes;
    if constexpr (with_free)
      if (found->second.in_memory) free_.add(pointer, end_of(pointer, found->second.bytes));
    blocks_.erase(found);
    return true;
  }

  bool regions_join_;
  std::unordered_map<std::uint64_t, block> blocks_; // by address
  range_set<false> mapped_;
  range_set<true> free_;
  std::uint64_t live_ = 0;
};

std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint16_t> in_order(wait_span const& each) {
  return {each.begin, each.end, each.bytes, each.stream};
}

// Requests that wait. A grant has the stream and the bytes of its request; equal requests are granted in their order.
class wait_list {
public:
  void begin(event const& row) {
    open_[{row.stream, row.bytes}].push_back(row.microseconds);
    ++waiting_;
  }
  void end(event const& row, bool refused) {
    auto found = open_.find({row.stream, row.bytes});
    if (found == open_.end() && !refused) {
      // A log may have one wait for all blocks of a request, and then grants of the blocks one after the other.
      if (parts_ == 0) parts_stream_ = row.stream;
      parts_ += row.bytes;
      found = open_.find({parts_stream_, parts_});
      if (found == open_.end()) return; // more blocks come, or the wait began before the log
    }
    parts_ = 0;
    if (found != open_.end()) add(*found, row.microseconds, refused);
  }
  std::uint32_t waiting() const noexcept { return waiting_; }
  // Returns all waits in the order of their begins; those that have not ended end now.
  std::vector<wait_span> finish(std::uint64_t microseconds) {
    while (!open_.empty()) add(*open_.begin(), microseconds, false);
    std::ranges::sort(ended_, {}, in_order);
    return std::move(ended_);
  }

private:
  using key = std::pair<std::uint16_t, std::uint64_t>;
  void add(std::pair<key const, std::deque<std::uint64_t>>& of, std::uint64_t end, bool refused) {
    ended_.push_back({of.second.front(), end, of.first.second, of.first.first, refused});
    of.second.pop_front();
    if (of.second.empty()) open_.erase(key{of.first});
    --waiting_;
  }

  std::map<key, std::deque<std::uint64_t>> open_;
  std::uint64_t parts_ = 0; // bytes of the last grants that ended no wait
  std::uint16_t parts_stream_ = 0;
  std::vector<wait_span> ended_;
  std::uint32_t waiting_ = 0;
};

void join(column& first, column const& second) {
  first.live_least = std::min(first.live_least, second.live_least);
  first.live_most = std::max(first.live_most, second.live_most);
  first.reserved_most = std::max(first.reserved_most, second.reserved_most);
  if (second.worst.scattered() > first.worst.scattered()) first.worst = second.worst;
  for (std::size_t i = 0; i < reasons; ++i) first.served[i] += second.served[i];
  first.waiting = std::max(first.waiting, second.waiting);
}

// Columns of equally many rows. When there are too many, each two become one.
class column_list {
public:
  explicit column_list(std::size_t most) : most_{std::max<std::size_t>(most / 2 * 2, 2)} {}

  void add(column const& row) {
    if (!columns_.empty() && filled_ < rows_) {
      join(columns_.back(), row);
      ++filled_;
      return;
    }
    if (columns_.size() == most_) halve();
    columns_.push_back(row);
    filled_ = 1;
  }
  std::size_t rows_of_column() const noexcept { return rows_; }
  std::vector<column> take() { return std::move(columns_); }

private:
  void halve() {
    for (std::size_t i = 0; i < most_ / 2; ++i) {
      columns_[i] = columns_[2 * i];
      join(columns_[i], columns_[2 * i + 1]);
    }
    columns_.resize(most_ / 2);
    rows_ *= 2;
  }

  std::size_t most_; // even
  std::size_t rows_ = 1, filled_ = 0;
  std::vector<column> columns_;
};

// The first pass: what changes over time. Also collects all addresses that were ever mapped.
class curves {
public:
  curves(summary& made, recording const& of, std::size_t most)
      : made_{made}, state_{of.regions_join}, initial_{of.initial}, columns_{most}, label_bytes_(of.labels.size()) {}

  void add(std::size_t row, event const& next) {
    count(row, next);
    if (!state_.apply(next)) ++made_.main.unknown_frees;
    figures& all = made_.main;
    moment const now = state_.now(row, next.microseconds);
    if (row == 0 || now.live > all.peak_live.live) all.peak_live = now;
    if (row == 0 || now.reserved > all.peak_reserved.reserved) all.peak_reserved = now;
    all.last = now;
    column one{.microseconds = now.microseconds,
               .live_least = now.live,
               .live_most = now.live,
               .reserved_most = now.reserved,
               .worst = now,
               .served = {},
               .waiting = waits_.waiting()};
    if (next.action == trace_action::allocate && row >= initial_) one.served[static_cast<std::size_t>(next.served)] = 1;
    columns_.add(one);
  }

  // Returns the addresses that were ever mapped.
  std::vector<address_run> finish(std::size_t most_waits) {
    figures& all = made_.main;
    all.rows = all.last.row + 1;
    all.microseconds = all.last.microseconds;
    made_.rows_of_column = columns_.rows_of_column();
    made_.columns = columns_.take();
    all.worst = all.peak_live;
    for (column const& each : made_.columns) {
      bool const in_use = each.worst.live >= all.peak_live.live / 2;
      if (in_use && each.worst.scattered() > all.worst.scattered()) all.worst = each.worst;
    }
    made_.waits = waits_.finish(all.microseconds);
    for (wait_span const& each : made_.waits) all.waited += each.end - each.begin;
    if (made_.waits.size() > most_waits) {
      auto const by_length = [](wait_span const& each) {
        return std::tuple{~(each.end - each.begin), each.begin, each.bytes, each.stream}; // the longest first
      };
      std::ranges::sort(made_.waits, {}, by_length);
      made_.waits.resize(most_waits);
      std::ranges::sort(made_.waits, {}, in_order);
    }
    std::vector<address_run> runs;
    for (auto const& [begin, end] : addresses_.all()) runs.push_back({begin, end});
    return runs;
  }

  // Returns the labels that blocks have had, those with the most bytes first.
  std::vector<std::uint16_t> labels_by_bytes() const {
    std::vector<std::uint16_t> sorted(label_bytes_.size());
    std::iota(sorted.begin(), sorted.end(), std::uint16_t{0});
    std::erase_if(sorted, [&](std::uint16_t number) { return label_bytes_[number] == 0; });
    std::ranges::sort(sorted, {}, [&](std::uint16_t number) { return std::pair{~label_bytes_[number], number}; });
    return sorted;
  }

private:
  void count(std::size_t row, event const& next) {
    figures& all = made_.main;
    if (is_memory(next.action) && next.action != trace_action::unmap)
      addresses_.add(next.pointer, next.pointer + next.bytes);
    if (next.action == trace_action::allocate) label_bytes_[next.label] += next.bytes;
    if (next.action == trace_action::label) label_bytes_[next.label] += state_.bytes_of(next.pointer);
    if (row < initial_) return;
    switch (next.action) {
    case trace_action::allocate: {
      ++all.allocations;
      ++all.served[static_cast<std::size_t>(next.served)];
      size_bin& bin = made_.sizes[bin_of(next.bytes)];
      ++bin.blocks;
      bin.bytes += next.bytes;
      if (next.served == served_by::turn) waits_.end(next, false);
      break;
    }
    case trace_action::free: ++all.frees; break;
    case trace_action::allocate_failure: ++all.failures; break;
    case trace_action::move:
      ++all.moves;
      all.moved_bytes += next.bytes;
      break;
    case trace_action::map: ++all.maps; break;
    case trace_action::unmap: ++all.unmaps; break;
    case trace_action::wait:
      ++all.waits;
      waits_.begin(next);
      break;
    case trace_action::refusal:
      ++all.refusals;
      waits_.end(next, true);
      break;
    case trace_action::label: break;
    }
  }

  summary& made_;
  memory_state<true> state_;
  std::size_t initial_; // rows that describe what was there before
  column_list columns_;
  wait_list waits_;
  range_set<false> addresses_;
  std::vector<std::uint64_t> label_bytes_; // of all allocations, by the number of the label
};

// Where an address is in the maps, which show the runs side by side.
class layout {
public:
  layout(std::vector<address_run> const& runs, std::size_t most_cells) : runs_{runs} {
    for (address_run const& each : runs_) {
      offsets_.push_back(bytes_);
      bytes_ += each.end - each.begin;
    }
    cell_bytes_ = std::bit_ceil(std::max<std::uint64_t>((bytes_ + most_cells - 1) / most_cells, 256));
  }
  std::uint64_t cell_bytes() const noexcept { return cell_bytes_; }
  std::size_t cells() const noexcept { return static_cast<std::size_t>((bytes_ + cell_bytes_ - 1) / cell_bytes_); }

  // Calls visit(cell, bytes) for each cell with bytes of the range.
  template <class Visit> void each_cell(std::uint64_t begin, std::uint64_t end, Visit const& visit) const {
    auto const after = std::ranges::upper_bound(runs_, begin, {}, &address_run::begin);
    if (after == runs_.begin()) return;
    auto const run = std::prev(after);
    end = std::min(end, run->end);
    if (begin >= end) return;
    std::uint64_t const base = offsets_[static_cast<std::size_t>(run - runs_.begin())] - run->begin;
    for (std::uint64_t at = base + begin; at < base + end;) {
      std::uint64_t const next = std::min(base + end, (at / cell_bytes_ + 1) * cell_bytes_);
      visit(static_cast<std::size_t>(at / cell_bytes_), next - at);
      at = next;
    }
  }

private:
  std::vector<address_run> const& runs_;
  std::vector<std::uint64_t> offsets_;
  std::uint64_t bytes_ = 0, cell_bytes_ = 0;
};

// The cells of one map, colored by a number of each block.
class colored_cells {
public:
  colored_cells(std::size_t cells, std::size_t colors) : colors_{colors}, bytes_(cells * colors) {}

  void add(std::size_t cell, std::size_t color, std::uint64_t bytes) { bytes_[cell * colors_ + color] += bytes; }
  // Returns the color with the most bytes.
  std::uint8_t color_of(std::size_t cell) const {
    auto const first = bytes_.begin() + static_cast<std::ptrdiff_t>(cell * colors_);
    return static_cast<std::uint8_t>(std::max_element(first, first + static_cast<std::ptrdiff_t>(colors_)) - first);
  }

private:
  std::size_t colors_;
  std::vector<std::uint64_t> bytes_;
};

// The second pass: the state at some rows.
class snapshots {
public:
  snapshots(summary& made, recording const& of, std::vector<std::uint16_t> const& labels, bounds const& most)
      : made_{made}, of_{of}, layout_{made.runs, most.cells}, state_{of.regions_join} {
    made.cell_bytes = layout_.cell_bytes();
    auto const colors = std::min(of.streams.size(), most.colors);
    for (std::size_t i = 0; i < colors; ++i) made.colors.push_back(stream_name(of, static_cast<std::uint16_t>(i)));
    if (of.streams.size() > colors) made.colors.back() = "other streams";
    if (of.labels.size() > 1 && !labels.empty()) color_labels(labels, most.colors);
    if (made.memory != memory_source::none) choose_rows(most.frames);
  }

  void add(std::size_t row, event const& next) {
    if (next.action != trace_action::label) note_peak(); // with the label that the last block may get after its row
    state_.apply(next);
    at_peak_ |= row == made_.main.peak_live.row;
    if (row + 1 == made_.main.rows) {
      note_peak();
      note_holders(made_.at_end, &size_bin::blocks_at_end, &size_bin::bytes_at_end);
    }
    if (next_ < rows_.size() && rows_[next_] == row) {
      draw(row, next.microseconds);
      ++next_;
    }
  }

private:
  void color_labels(std::vector<std::uint16_t> const& labels, std::size_t most) {
    auto const colors = std::min(labels.size(), most);
    label_color_.assign(of_.labels.size(), colors - 1);
    for (std::size_t i = 0; i < colors; ++i) {
      label_color_[labels[i]] = i;
      made_.label_colors.push_back(label_name(of_, labels[i]));
    }
    if (labels.size() > colors) made_.label_colors.back() = "other labels";
  }

  void choose_rows(std::size_t frames) {
    std::uint64_t const last = made_.main.rows - 1;
    if (made_.timed) {
      for (std::size_t i = 0; i < frames; ++i) rows_.push_back(last * i / std::max<std::size_t>(frames - 1, 1));
      for (moment const* each : {&made_.main.peak_live, &made_.main.peak_reserved, &made_.main.worst})
        rows_.push_back(each->row);
    }
    if (!made_.timed || made_.snapshot) rows_.push_back(last);
    std::ranges::sort(rows_);
    rows_.erase(std::ranges::unique(rows_).begin(), rows_.end());
  }

  void note_peak() {
    if (std::exchange(at_peak_, false))
      note_holders(made_.at_peak, &size_bin::blocks_at_peak, &size_bin::bytes_at_peak);
  }

  void note_holders(holder_lists& lists, std::uint64_t size_bin::* blocks, std::uint64_t size_bin::* bytes) {
    std::map<std::uint16_t, holder> streams, threads, labels;
    auto const add = [](holder& to, std::uint64_t size) {
      to.bytes += size;
      ++to.blocks;
    };
    for (auto const& [pointer, each] : state_.blocks()) {
      add(streams[each.stream], each.bytes);
      if (!of_.threads.empty()) add(threads[each.thread], each.bytes);
      if (of_.labels.size() > 1) add(labels[each.label], each.bytes);
      size_bin& bin = made_.sizes[bin_of(each.bytes)];
      ++(bin.*blocks);
      bin.*bytes += each.bytes;
    }
    auto const list = [](auto const& all, auto const& name) {
      std::vector<holder> sorted;
      for (auto const& [number, each] : all) sorted.push_back({name(number), each.bytes, each.blocks});
      std::ranges::sort(sorted, [](holder const& a, holder const& b) {
        return a.bytes != b.bytes ? a.bytes > b.bytes : a.name < b.name;
      });
      return sorted;
    };
    lists.streams = list(streams, [&](std::uint16_t number) { return stream_name(of_, number); });
    lists.threads =
        list(threads, [&](std::uint16_t number) { return "thread " + std::to_string(of_.threads[number]); });
    lists.labels = list(labels, [&](std::uint16_t number) { return label_name(of_, number); });
  }

  void draw(std::size_t row, std::uint64_t microseconds) {
    auto const cells = layout_.cells();
    std::vector<std::uint64_t> live(cells);
    colored_cells streams{cells, made_.colors.size()}, labels{cells, made_.label_colors.size()};
    memory_frame frame{
        state_.now(row, microseconds), std::vector<std::uint8_t>(cells), {}, std::vector<std::uint8_t>(cells)};
    for (auto const& [begin, end] : state_.mapped().all())
      layout_.each_cell(begin, end, [&](std::size_t cell, std::uint64_t) { frame.cells[cell] = 1; });
    for (auto const& [pointer, each] : state_.blocks()) {
      std::size_t const color = std::min<std::size_t>(each.stream, made_.colors.size() - 1);
      layout_.each_cell(pointer, end_of(pointer, each.bytes), [&](std::size_t cell, std::uint64_t bytes) {
        live[cell] += bytes;
        streams.add(cell, color, bytes);
        if (!label_color_.empty()) labels.add(cell, label_color_[each.label], bytes);
      });
    }
    if (!label_color_.empty()) frame.label_cells = frame.cells;
    for (std::size_t i = 0; i < cells; ++i) {
      if (live[i] == 0 || frame.cells[i] == 0) continue;
      frame.cells[i] = static_cast<std::uint8_t>(2 + streams.color_of(i));
      if (!label_color_.empty()) frame.label_cells[i] = static_cast<std::uint8_t>(2 + labels.color_of(i));
      auto const share = 255 * static_cast<double>(live[i]) / static_cast<double>(layout_.cell_bytes());
      frame.shares[i] = static_cast<std::uint8_t>(std::clamp(share, 1.0, 255.0));
    }
    made_.frames.push_back(std::move(frame));
  }

  summary& made_;
  recording const& of_;
  layout layout_;
  memory_state<false> state_;
  std::vector<std::size_t> label_color_; // by the number of the label; empty: there are no labels
  std::vector<std::size_t> rows_;
  std::size_t next_ = 0;
  bool at_peak_ = false; // the state is that of the peak
};

} // namespace detail

std::string stream_name(recording const& of, std::uint16_t number) {
  constexpr std::uint64_t most_ids = 4096; // a snapshot of gpumem has ids of streams, which are below
  std::uint64_t const handle = of.streams[number];
  bool const is_id = handle == 0 || (of.memory == memory_source::snapshot && handle < most_ids);
  return "stream " + (is_id ? std::to_string(handle) : detail::hexadecimal(handle));
}

std::string label_name(recording const& of, std::uint16_t number) {
  return number == 0 ? "no label" : of.labels[number];
}

summary summarize(recording const& of, bounds most, std::function<void()> const& tick) {
  summary made;
  made.name = of.name;
  made.file = of.file;
  made.memory = of.memory;
  made.timed = of.timed;
  made.snapshot = of.snapshot;
  made.sizes.resize(size_bins);
  if (of.events.empty() && !of.read_again) return made; // the snapshot of an empty pool
  detail::curves first{made, of, most.columns};
  auto const every = std::max(of.rows, of.events.size()) / (summary_ticks / 2) + 1;
  auto const pass = [&](auto& visitor) {
    std::size_t row = 0;
    each_event(of, [&](event const& next) {
      if (tick && row % every == 0) tick();
      visitor.add(row++, next);
    });
  };
  pass(first);
  made.runs = first.finish(most.waits);
  if (!of.timed) {
    figures& all = made.main;
    all.peak_live = all.peak_reserved = all.worst = all.last;
    made.columns.clear();
  }
  detail::snapshots second{made, of, first.labels_by_bytes(), most};
  pass(second);
  return made;
}

} // namespace report
