// tracking_adaptor: records blocks, detects wrong frees, and writes the report.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <new>
#include <optional>
#include <ostream>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>
module gpumem:tracking_adaptor.impl;
import :tracking_adaptor;
import :misuse;
import :process;
import :stack_trace;
import :stream;
import :sync;
import :waiter;

namespace gpumem {
namespace {

constexpr std::size_t max_stack_depth = 256;

thread_local tracking_label const* newest_label = nullptr;

// The innermost frames of each captured stack belong to this file and are dropped: capture_stack(), make_node(), and
// add() or prepare(). The compiler must not inline these functions.
constexpr std::size_t own_frames = 3;

inline std::vector<void*> stack_of_caller(std::size_t depth) {
  if (depth == 0) return {};
  std::array<void*, max_stack_depth + own_frames> frames; // not initialized: most traces fill only a small part
  auto const count = detail::capture_stack(std::span{frames}.first(depth + own_frames));
  auto const first = frames.begin() + std::min(count, own_frames);
  return std::vector<void*>(first, frames.begin() + count); // with braces this would be a vector of two elements
}

block_event event_of(block_event::kind kind, tracked_block const& block) noexcept {
  return {kind, block.thread, block.sequence, block.stream, block.pointer, block.bytes};
}

std::string counted_bytes(std::size_t blocks, std::size_t bytes) {
  return std::to_string(blocks) + (blocks == 1 ? " block, " : " blocks, ") + std::to_string(bytes) + " bytes";
}

// Live blocks that have the same label and stack trace.
struct block_group {
  tracked_block const* first = nullptr;
  std::size_t blocks = 0;
  std::size_t bytes = 0;
};

std::vector<block_group> groups_of(std::vector<tracked_block> const& blocks) {
  std::map<std::pair<std::string, std::vector<void*>>, block_group> groups;
  for (auto const& each : blocks) {
    auto& group = groups[{each.label, each.stack}];
    if (!group.first) group.first = &each;
    ++group.blocks;
    group.bytes += each.bytes;
  }
  std::vector<block_group> sorted;
  for (auto const& [key, group] : groups) sorted.push_back(group);
  std::ranges::sort(sorted, [](auto const& a, auto const& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.first->sequence < b.first->sequence;
  });
  return sorted;
}

std::string text_of(block_group const& group) {
  auto const& first = *group.first;
  auto text = "  " + counted_bytes(group.blocks, group.bytes);
  if (!first.label.empty()) text += ", label \"" + first.label + "\"";
  text += ", first: number " + std::to_string(first.sequence) + ", thread " + std::to_string(first.thread) +
          ", stream " + std::to_string(first.stream) + "\n";
  for (auto* const frame : first.stack) text += "    " + detail::describe_frame(frame) + "\n";
  return text;
}

} // namespace

tracking_label::tracking_label(std::string_view text) noexcept : text_{text}, outer_{newest_label} {
  newest_label = this;
}

tracking_label::~tracking_label() { newest_label = outer_; }

std::string_view tracking_label::current() noexcept { return newest_label ? newest_label->text_ : std::string_view{}; }

namespace detail {

tracked_blocks::tracked_blocks(tracking_options options) : options_{std::move(options)} {
  throw_if_child();
  if (options_.stack_depth > max_stack_depth)
    throw std::invalid_argument{"gpumem: tracking_options: `stack_depth` must be 256 at most"};
}

[[gnu::noinline]] tracked_blocks::live_map::node_type tracked_blocks::make_node(stream_key const& key,
                                                                                std::size_t bytes) const {
  live_map one;
  one.emplace(nullptr, tracked_block{nullptr, bytes, key.identity().id(), sync::thread_index(), 0,
                                     std::string{tracking_label::current()}, stack_of_caller(options_.stack_depth)});
  return one.extract(one.begin());
}

void tracked_blocks::insert(live_map::node_type node, void const* pointer) noexcept {
  node.key() = node.mapped().pointer = pointer;
  node.mapped().sequence = ++allocations_;
  live_.insert(std::move(node));
}

// Makes room in the table of live blocks for `more` nodes (records of blocks), and for the prepared nodes of requests
// that still wait. So no insertion makes the table grow. The standard library's reserve() may shrink the table, which
// moves all nodes. To avoid that, this reserves only if room is missing, and then twice the count. The one bucket of a
// new table has no room for a node.
void tracked_blocks::reserve(std::size_t more) {
  auto const count = live_.size() + prepared_ + more;
  if (count >= live_.bucket_count()) live_.reserve(2 * count);
}

[[gnu::noinline]] bool tracked_blocks::add(stream_key const& key, void const* pointer, std::size_t bytes) noexcept try {
  auto node = make_node(key, bytes);
  sync::lock const lock{mutex_};
  reserve(1);
  insert(std::move(node), pointer);
  return true;
} catch (std::bad_alloc const&) { return false; }

[[gnu::noinline]] bool tracked_blocks::prepare(waiter& item) noexcept try {
  if (item.asks_for_turn()) return true;
  {
    sync::lock const lock{mutex_};
    if (waiting_.contains(&item)) return true;
  }
  node_list nodes;
  for (std::size_t i = 0; i < item.parts(); ++i) {
    auto const& part = item.part(i);
    if (part.bytes > 0) nodes.push_back(make_node(part.stream, part.bytes));
  }
  sync::lock const lock{mutex_};
  reserve(nodes.size());
  auto const count = nodes.size();
  waiting_.emplace(&item, std::move(nodes));
  prepared_ += count;
  return true;
} catch (std::bad_alloc const&) { return false; }

// Records the block that a waiting request has got for its `part`. Parts are granted in the order of the request, so
// the first prepared node of the request belongs to `part`. The last part ends the request.
void tracked_blocks::add_prepared(waiter const& item, request_part const& part) noexcept {
  sync::lock const lock{mutex_};
  auto const found = waiting_.find(&item);
  auto& nodes = found->second;
  insert(std::move(nodes.front()), part.pointer);
  nodes.erase(nodes.begin());
  --prepared_;
  if (nodes.empty()) waiting_.erase(found);
}

void tracked_blocks::forget(waiter const& item) noexcept {
  sync::lock const lock{mutex_};
  auto const found = waiting_.find(&item);
  if (found == waiting_.end()) return;
  prepared_ -= found->second.size();
  waiting_.erase(found);
}

// Remembers a freed block. If the host has no memory for it, the free is not remembered.
void tracked_blocks::remember(tracked_block const& block, stream_key const& key) noexcept {
  if (options_.freed_remembered == 0) return;
  auto freed = event_of(block_event::kind::freed, block);
  freed.thread = sync::thread_index();
  freed.stream = key.identity().id();
  freed.sequence = allocations_;
  try {
    freed_.push_back({event_of(block_event::kind::allocated, block), freed});
  } catch (std::bad_alloc const&) { return; }
  if (freed_.size() > options_.freed_remembered) freed_.pop_front();
}

bool tracked_blocks::remove(stream_key const& key, void const* pointer, std::size_t bytes) noexcept {
  misuse wrong{.what = misuse::kind::foreign_pointer,
               .pointer = pointer,
               .given = bytes,
               .stream = key.identity().id(),
               .resource = "tracking_adaptor"};
  std::array<block_event, 2> history;
  {
    sync::lock const lock{mutex_};
    auto const entry = live_.find(pointer);
    if (entry != live_.end()) {
      auto const& block = entry->second;
      if (block.bytes == bytes) {
        remember(block, key);
        live_.erase(entry);
        return true;
      }
      wrong.what = misuse::kind::wrong_size;
      wrong.expected = block.bytes;
      history[wrong.events++] = event_of(block_event::kind::allocated, block);
    } else if (auto const before = std::ranges::find(freed_.rbegin(), freed_.rend(), pointer,
                                                     [](freed_block const& each) { return each.free.pointer; });
               before != freed_.rend()) {
      wrong.what = misuse::kind::double_free;
      wrong.expected = before->free.bytes;
      history = {before->allocation, before->free};
      wrong.events = history.size();
    }
  }
  wrong.history = history.data();
  report_misuse(wrong);
  return false;
}

std::vector<tracked_block> tracked_blocks::outstanding() {
  std::vector<tracked_block> all;
  if (forked()) return all;
  {
    sync::lock const lock{mutex_};
    all.reserve(live_.size());
    for (auto const& [pointer, block] : live_) all.push_back(block);
  }
  std::ranges::sort(all, {}, &tracked_block::sequence);
  return all;
}

std::string tracked_blocks::report() {
  auto const blocks = outstanding();
  std::size_t bytes = 0;
  for (auto const& each : blocks) bytes += each.bytes;
  auto text = "gpumem: tracking_adaptor: live: " + counted_bytes(blocks.size(), bytes) + "\n";
  for (auto const& each : groups_of(blocks)) text += text_of(each);
  return text;
}

// If the report cannot be made or written, it is lost, and the program goes on.
void tracked_blocks::report_at_end() noexcept {
  if (!options_.report_at_end) return;
  try {
    {
      sync::lock const lock{mutex_};
      if (live_.empty()) return;
    }
    (options_.report_at_end->output() << report()).flush();
  } catch (...) { return; }
}

} // namespace detail
} // namespace gpumem
