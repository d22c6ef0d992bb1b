// The lines that make each resource, and the choice.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>
module advise:candidate.impl;
import gpumem;
import replay;
import :candidate;

namespace advise {

namespace detail {

inline constexpr double most_calls = 2;         // times the fewest
inline constexpr double most_memory = 1.02;     // times the least
inline constexpr double move_microseconds = 40; // with which a pool charges a moved page at first
inline constexpr std::uint64_t few_calls = 100; // take a few milliseconds

candidate pool_with(std::string_view resource, std::string title, std::string members, std::string options) {
  std::string const braces = members.empty() ? "" : ", {" + members + "}";
  std::string const torch = options.empty() ? "" : "\"" + options + "\"";
  return {.resource = resource,
          .title = std::move(title),
          .cpp = "gpumem::pool_resource memory{gpumem::device{0}" + braces + "};",
          .options = std::move(options),
          .torch = "gpumem_torch.install(" + torch + ")"};
}

candidate fixed_for(replay::fixed_blocks blocks) {
  std::string const bytes = std::to_string(blocks.bytes);
  std::string const count = std::to_string(blocks.count);
  return {.resource = "fixed",
          .title = "blocks of one size",
          .cpp = "gpumem::fixed_size_resource memory{gpumem::cuda_resource{gpumem::device{0}}, {.block_size = " +
                 bytes + ", .blocks_per_chunk = " + count + "}};",
          .options = "fixed(block_size=" + bytes + ",blocks_per_chunk=" + count + ")"};
}

candidate& find(std::vector<candidate>& all, std::string_view resource) {
  return *std::ranges::find(all, resource, &candidate::resource);
}

verdict verdict_of(figures const& counted, std::uint64_t memory) {
  if (!counted.completed) return verdict::incomplete;
  return memory != 0 && counted.reserved > memory ? verdict::too_large : verdict::chosen;
}

// Sets the verdict of those whose figure is more than `factor` times the least one, and more than `bearable`. Returns
// the least figure.
std::uint64_t leave_out(std::span<candidate const> all, std::vector<verdict>& verdicts, std::uint64_t figures::* figure,
                        double factor, std::uint64_t bearable, verdict because) {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (verdicts[i] == verdict::chosen) least = std::min(least, all[i].counted.*figure);
  }
  double const most = std::max(factor * static_cast<double>(least), static_cast<double>(bearable));
  for (std::size_t i = 0; i < all.size(); ++i) {
    bool const more = static_cast<double>(all[i].counted.*figure) > most;
    if (verdicts[i] == verdict::chosen && more) verdicts[i] = because;
  }
  return least;
}

} // namespace detail

std::vector<candidate> candidates_for(replay::plan const& of, std::uint64_t memory) {
  std::vector<candidate> all{{.resource = "cuda",
                              .title = "cuMemAlloc",
                              .cpp = "gpumem::cuda_resource memory{gpumem::device{0}};",
                              .options = "cuda",
                              .torch = "PYTORCH_NO_CUDA_MEMORY_CACHING=1"}};
  if (of.blocks <= most_driver_blocks) {
    all.push_back({.resource = "async",
                   .title = "the driver's pool",
                   .cpp = "gpumem::async_resource memory{gpumem::device{0}};",
                   .options = "async",
                   .torch = "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync"});
  }
  auto const blocks = replay::fixed_blocks_of(of);
  if (blocks.bytes * blocks.count <= 2 * of.peak_live_bytes) all.push_back(detail::fixed_for(blocks));
  all.push_back(detail::pool_with("pool", "the pool", "", ""));
  all.push_back(detail::pool_with("pool_effort_1", "the pool with effort 1", ".effort = 1", "effort=1"));
  all.push_back(detail::pool_with("pool_effort_0", "the pool with effort 0", ".effort = 0", "effort=0"));
  all.push_back(detail::pool_with("pool_chunks", "the pool over chunks", ".pages = false", "pages=off"));
  all.push_back({.resource = "binning_effort_1",
                 .title = "bins over the pool",
                 .cpp = "gpumem::binning_resource memory{gpumem::pool_resource{gpumem::device{0}, {.effort = 1}}, "
                        "{.min_exponent = 18, .max_exponent = 22}};",
                 .options = "binning(pool(effort=1),min_exponent=18,max_exponent=22)"});
  all.push_back({.resource = "arena",
                 .title = "arenas",
                 .cpp = "gpumem::arena_resource memory{gpumem::cuda_resource{gpumem::device{0}}};",
                 .options = "arena()"});
  if (memory != 0) {
    std::string const limit = std::to_string(memory);
    all.push_back(detail::pool_with("limit", "the pool with a limit", ".limit = " + limit, "limit=" + limit));
  }
  return all;
}

figures scaled_driver(replay::plan const& of, figures const& some, std::uint64_t calls) {
  figures scaled = some;
  std::uint64_t bytes = 0;
  for (replay::operation const& next : of.operations) {
    std::uint64_t const block = replay::driver_bytes(next.bytes);
    bytes += next.allocates ? block : std::uint64_t{0} - block;
    scaled.reserved = std::max(scaled.reserved, bytes);
  }
  double const factor = static_cast<double>(of.operations.size()) / static_cast<double>(calls);
  scaled.memory_calls = of.operations.size();
  scaled.driver_calls = static_cast<std::uint64_t>(static_cast<double>(some.driver_calls) * factor);
  return scaled;
}

void fill_default_pool(std::vector<candidate>& all, replay::plan const& of) {
  candidate& pool = detail::find(all, "pool");
  figures const& unbounded = detail::find(all, "pool_effort_1").counted;
  figures const& none = detail::find(all, "pool_effort_0").counted;
  double const saved = gpumem::pool_options{}.effort * static_cast<double>(of.microseconds.back());
  bool const pays = unbounded.completed && static_cast<double>(unbounded.moved) * detail::move_microseconds <= saved;
  pool.counted = pays ? unbounded : none;
  pool.note = pays ? "as effort 1, whose moves the recorded time allows"
                   : "as effort 0, since the recorded time allows fewer moves than effort 1 makes";
}

choice choose(std::span<candidate const> all, std::uint64_t calls, std::uint64_t memory) {
  choice made;
  for (candidate const& each : all) made.verdicts.push_back(detail::verdict_of(each.counted, memory));
  made.fewest_calls = detail::leave_out(all, made.verdicts, &figures::memory_calls, detail::most_calls,
                                        std::max(calls / 2, detail::few_calls), verdict::many_calls);
  made.least = detail::leave_out(all, made.verdicts, &figures::reserved, detail::most_memory, 0, verdict::much_memory);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (made.verdicts[i] != verdict::chosen) continue;
    if (made.place)
      made.verdicts[i] = verdict::less_simple;
    else
      made.place = i;
  }
  return made;
}

} // namespace advise
