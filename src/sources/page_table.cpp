// Finds mapped pages, and the holes between them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <utility>
module gpumem:page_table.impl;
import :page_table;

namespace gpumem::detail {

page_map plan_pages(page_extent run, std::size_t page) {
  page_map made;
  for (auto at = run.offset; at < run.end();) {
    auto const bytes = std::min(page, run.end() - at);
    auto of = std::make_shared<physical_page>();
    of->bytes = bytes;
    made.emplace_hint(made.end(), at, mapped_page{std::move(of)});
    at += bytes;
  }
  return made;
}

page_info info_of(page_map::value_type const& page) noexcept {
  auto const& of = *page.second.of;
  return {{page.first, of.bytes}, of.pins > 0, of.mappings > 1};
}

bool any_pinned(page_span const& pages) noexcept {
  return std::ranges::any_of(pages, [](auto const& each) { return each.second.of->pins > 0; });
}

page_map::const_iterator page_table::find_containing(std::size_t offset) const noexcept {
  auto const above = pages_.upper_bound(offset);
  if (above == pages_.begin()) return pages_.end();
  auto const found = std::prev(above);
  return offset - found->first < found->second.of->bytes ? found : pages_.end();
}

page_span page_table::pages_holding(page_extent run) const noexcept {
  auto const first = find_containing(run.offset);
  if (first == pages_.end() || run.bytes == 0 || run.bytes > mapped_end() - run.offset) return {};
  auto last = first;
  auto next = first->first;
  for (; last != pages_.end() && last->first == next && next < run.end(); ++last) next += last->second.of->bytes;
  return next >= run.end() ? page_span{first, last} : page_span{};
}

page_span page_table::pages_of(page_extent run) const noexcept {
  auto const first = pages_.find(run.offset);
  auto last = first;
  auto next = run.offset;
  for (; last != pages_.end() && last->first == next && next < run.end(); ++last) next += last->second.of->bytes;
  return next == run.end() ? page_span{first, last} : page_span{};
}

bool page_table::is_unmapped(page_extent run) const noexcept {
  auto const above = pages_.lower_bound(run.offset);
  if (above != pages_.end() && above->first < run.end()) return false;
  if (above != pages_.begin()) {
    auto const& [offset, page] = *std::prev(above);
    if (offset + page.of->bytes > run.offset) return false;
  }
  return std::none_of(unreleased_.begin(), unreleased_.end(), [&](auto const& kept) {
    return kept.second.mapped && kept.first < run.end() && kept.first + kept.second.of->bytes > run.offset;
  });
}

std::size_t page_table::mapped_end() const noexcept {
  std::size_t end = 0;
  if (!pages_.empty()) end = pages_.rbegin()->first + pages_.rbegin()->second.of->bytes;
  for (auto const& [offset, page] : unreleased_) {
    if (page.mapped) end = std::max(end, offset + page.of->bytes);
  }
  return end;
}

std::optional<std::size_t> page_table::find_extent(std::size_t bytes, std::size_t space) const noexcept {
  std::optional<page_extent> best;
  std::size_t at = 0;
  for (auto const& [offset, page] : pages_) {
    page_extent const hole{at, offset - at};
    bool const better = hole.bytes >= bytes && (!best || hole.bytes < best->bytes);
    if (better && is_unmapped({at, bytes})) best = hole;
    at = offset + page.of->bytes;
  }
  if (best) return best->offset;
  auto const end = mapped_end();
  return bytes <= space - end ? std::optional{end} : std::nullopt;
}

void page_table::add(page_map& made) noexcept { pages_.merge(made); }

page_map page_table::take(page_span const& pages) noexcept {
  page_map taken;
  for (auto at = pages.begin(); at != pages.end();) taken.insert(pages_.extract(at++));
  return taken;
}

void page_table::keep_unreleased(page_map& refused) noexcept {
  while (!refused.empty()) unreleased_.insert(refused.extract(refused.begin()));
}

} // namespace gpumem::detail
