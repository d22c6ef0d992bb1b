// Ends uses of graph memory, and finds ranges whose uses the captured graph orders before the work of a request. The
// end of a use is a set of nodes of the graph.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cuda.h>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>
module gpumem:graph_memory_uses.impl;
import :graph_memory;
import :block;
import :captured_order;
import :free_lists;
import :range_allocator;
import :stream;
import :stream_identity;
import :stream_timeline;

namespace gpumem::detail {
namespace {

// Finds the smallest range that fits and whose uses all are the stream's own, or come before the stream's next work.
// Asks the driver only if a range fits and the ends of its other uses are known.
class ordered_search {
public:
  ordered_search(captured_order& order, stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept
      : order_{order}, key_{key}, bytes_{bytes}, alignment_{alignment} {}

  void visit(block& range) {
    std::size_t position = 0;
    if ((best && best->bytes <= range.bytes) || !fits(range, bytes_, alignment_, position)) return;
    if (!all_uses(range, [](stream_use const& use) { return use.newest < captured_order::own_end; })) return;
    if (!next_) next_ = order_.look_at(key_);
    if (!*next_ || !all_uses(range, [&](stream_use const& use) { return order_.is_before(use.newest, **next_); }))
      return;
    best = &range;
    offset = position;
  }

  block* best = nullptr;
  std::size_t offset = 0; // of the block in `best`

private:
  // Returns whether each use of a range is the stream's own or accepted. A use that was declared outside the capture
  // (no_end) has no order with the graph, even if its stream has joined the capture since.
  template <class Accept> bool all_uses(block const& range, Accept accept) const {
    return std::ranges::all_of(range.uses, [&](stream_use const& use) {
      return use.newest != captured_order::no_end && (use.timeline == &key_.identity().timeline() || accept(use));
    });
  }

  captured_order& order_;
  stream_key const& key_;
  std::size_t const bytes_, alignment_;
  std::optional<captured_order::position const*> next_; // nullopt until the driver is asked
};

// Adds a use. A range has room for uses by four streams. If there is a fifth stream, all uses of the range count as
// never ending (no_end), so that the range serves no stream.
void add_use(block& block, stream_use const& use) noexcept {
  if (block.uses.add(use)) return;
  auto const before = block.uses;
  for (auto const& each : before) block.uses.add({each.timeline, captured_order::no_end});
}

} // namespace

graph_uses::~graph_uses() {
  for (auto* const each : timelines_) each->remove_keeper();
}

std::uint64_t graph_uses::note_request(stream_key const& key) {
  keep_timeline(key.identity().timeline());
  return order_.note_request(key);
}

void graph_uses::keep_timeline(stream_timeline& timeline) {
  if (timelines_.contains(&timeline)) return;
  drop_dead_timelines();
  timelines_.insert(&timeline);
  timeline.add_keeper();
}

// Lets go of the timelines of dead streams, but for those on which live blocks were allocated. Otherwise a program that
// captures on a new stream each time would keep a timeline for each. The captures in which these streams took part have
// ended.
void graph_uses::drop_dead_timelines() {
  if (std::ranges::none_of(timelines_, &stream_timeline::is_dead)) return;
  std::vector<block*> used_blocks;
  chunks_.visit([&](chunk const& each) {
    each.visit([&](block& one) {
      if (std::ranges::any_of(one.uses, [](stream_use const& use) { return use.timeline->is_dead(); }))
        used_blocks.push_back(&one);
    });
  });
  for (auto* const each : timelines_) {
    if (each->is_dead()) order_.leave(*each);
  }
  for (auto* const each : used_blocks) rename_dead(*each);
  std::erase_if(timelines_, [named = named_timelines()](stream_timeline* each) {
    if (!each->is_dead() || named.contains(each)) return false;
    each->remove_keeper();
    return true;
  });
}

// Gives the uses of dead streams the name for their graph, unless other captures are open. If the graph of a use is not
// known, no work is known to come after the use: it never ends.
void graph_uses::rename_dead(block& block) {
  stream_uses renamed;
  for (auto const& use : block.uses) {
    if (!use.timeline->is_dead() || order_.is_recent(use.newest)) {
      renamed.add(use);
    } else if (auto* const graph = order_.graph_of(use.newest)) {
      renamed.add({&name_of_dead(graph), use.newest});
    } else {
      renamed.add({&stream_key::host().identity().timeline(), captured_order::no_end});
    }
  }
  ranges_.lists().reserve();
  bool const listed = block.is_free();
  if (listed) ranges_.free_ranges().extract(block);
  block.uses = renamed;
  if (listed) ranges_.free_ranges().insert(block);
}

// Returns the name for a graph. Gives it a name that no block uses any more, or a new one. A name is the timeline of no
// stream.
stream_timeline& graph_uses::name_of_dead(CUgraph graph) {
  auto dead_entry = std::ranges::find(dead_, graph, &dead_streams::graph);
  if (dead_entry == dead_.end()) {
    dead_entry = std::ranges::find_if(
        dead_, [named = named_timelines()](dead_streams const& each) { return !named.contains(each.name.get()); });
  }
  if (dead_entry == dead_.end()) {
    auto const index = ~static_cast<std::uint32_t>(dead_.size());
    auto name = std::make_unique<stream_timeline>(stream_kind::foreign, index, 0, -1, CUcontext{}, CUstream{}, nullptr);
    dead_entry = dead_.insert(dead_.end(), {nullptr, std::move(name)});
  }
  dead_entry->graph = graph;
  return *dead_entry->name;
}

// Returns the timelines that uses and live blocks name.
std::set<stream_timeline const*> graph_uses::named_timelines() const {
  std::set<stream_timeline const*> named;
  chunks_.visit([&](chunk const& each) {
    each.visit([&](block const& one) {
      if (one.is_live()) named.insert(one.stream);
      for (auto const& use : one.uses) named.insert(use.timeline);
    });
  });
  return named;
}

stream_timeline* graph_uses::find_stream(std::uint64_t id) const noexcept {
  auto const found = std::ranges::find_if(timelines_, [&](stream_timeline const* each) { return each->id() == id; });
  return found == timelines_.end() ? nullptr : *found;
}

void graph_uses::note_allocation(block const& live, std::uint64_t capture) noexcept {
  try {
    if (capture != 0) allocated_in_.insert_or_assign(&live, capture);
  } catch (std::bad_alloc const&) {} // then the block counts as allocated outside the capture
}

std::uint64_t graph_uses::capture_of(block const& live) const noexcept {
  auto const found = allocated_in_.find(&live);
  return found == allocated_in_.end() ? 0 : found->second;
}

std::uint64_t graph_uses::capture_worked_on_here(block const& live) const noexcept {
  auto const capture = capture_of(live);
  return order_.is_worked_on_here(capture) ? capture : 0;
}

graph_uses::fit graph_uses::find_ordered(stream_key const& key, std::size_t bytes, std::size_t alignment) {
  ordered_search search{order_, key, bytes, alignment};
  auto const visit = [&](block& range) { search.visit(range); };
  auto& lists = ranges_.lists();
  lists.multi_stream().bins().visit_from(bytes, visit);
  for (auto const* const each : lists.single_stream()) {
    if (each->timeline() != &key.identity().timeline()) each->bins().visit_from(bytes, visit);
  }
  return {search.best, search.offset};
}

// A free by the host leaves the range to the stream for which the block was allocated. If the host has no memory to
// record where in the graph the use ends, the range serves only the stream of the free. If it has no memory to retain
// the stream's timeline, the range also gets a use that never ends (no_end), and serves no stream.
void graph_uses::end(block& block, stream_key const& key, ended_by reason) noexcept {
  auto& timeline = key.identity().is_host() ? *block.stream : key.identity().timeline();
  try {
    keep_timeline(timeline);
  } catch (std::bad_alloc const&) {
    add_use(block, {&stream_key::host().identity().timeline(), captured_order::no_end});
  }
  auto end = captured_order::own_end;
  try {
    ranges_.lists().reserve();
    if (order_.is_full()) drop_unused_ends();
    if (!key.identity().is_host()) end = order_.end_use(key, capture_of(block));
  } catch (std::bad_alloc const&) {}
  auto const* const earlier = block.uses.find(timeline);
  if (reason == ended_by::declaration) {
    if (end == captured_order::own_end) end = captured_order::no_end;
  } else if (earlier && earlier->newest == captured_order::no_end) { // the free comes after this declared use
    block.uses.remove(timeline);
    end = captured_order::own_end;
  }
  add_use(block, {&timeline, end});
}

void graph_uses::drop_unused_ends() {
  std::vector<epoch> used;
  chunks_.visit([&](chunk const& each) {
    each.visit([&](block const& one) {
      for (auto const& use : one.uses) used.push_back(use.newest);
    });
  });
  order_.keep_only(used);
}

} // namespace gpumem::detail
