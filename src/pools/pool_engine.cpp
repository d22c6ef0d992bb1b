// A pool's beginning, its figures, and what it knows of a pointer.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>
module gpumem:pool_engine.impl;
import :pool_engine;
import :chunks;
import :cuda;
import :device;
import :driver;
import :error;
import :executor;
import :ranges;
import :stream;
import :sync;
import :tags;
import :timeline;

namespace gpumem::detail {
namespace {

pool_options checked_options(pool_options options) {
  if (options.cross_stream > reuse::wait) throw std::invalid_argument{"gpumem: a pool's cross_stream is unknown"};
  if (options.limit && options.initial_size > options.limit) {
    throw std::invalid_argument{"gpumem: a pool's initial_size is larger than its limit"};
  }
  if (options.initial_size > PTRDIFF_MAX || options.limit > PTRDIFF_MAX) {
    throw std::invalid_argument{"gpumem: a pool's initial_size and limit must be less than half the address space"};
  }
  if (options.limit && options.limit < granule) {
    throw std::invalid_argument{"gpumem: a pool's limit must be 256 bytes at least"};
  }
  return options;
}

std::size_t up_to_granule(std::size_t bytes) { return (bytes + granule - 1) / granule * granule; }

} // namespace

pool_engine::pool_engine(std::unique_ptr<pool_upstream> upstream, pool_options options)
    : upstream_{std::move(upstream)}, options_{checked_options(std::move(options))}, device_{upstream_->device()},
      chunks_{options_.limit / granule * granule} {
  library_executor(); // started here, because frees and destructors may not
  if (options_.initial_size == 0) return;
  auto const bytes = std::min(up_to_granule(options_.initial_size), options_.limit ? chunks_.limit() : SIZE_MAX);
  auto const drawn = upstream_->draw(stream_key::host(), bytes);
  if (!drawn) throw_failure(drawn.error());
  try {
    ranges_.add(chunks_.add(*drawn, bytes), {});
  } catch (...) {
    upstream_->give_back({reinterpret_cast<std::uintptr_t>(*drawn), bytes, 0});
    throw;
  }
  ++counts_.growths;
}

std::optional<block_info> pool_engine::find(void const* pointer) {
  sync::lock const held{guard_};
  auto const* const found = ranges_.covering(pointer);
  if (!found) return std::nullopt;
  bool const live = found->live && !found->deferred;
  return block_info{found->pointer(), live ? found->requested : 0, found->bytes, live ? found->stream->id() : 0, live};
}

figures pool_engine::read_figures() {
  sync::lock const held{guard_};
  auto f = counts_;
  f.reserved = chunks_.reserved() + chunks_.leaving();
  f.granted = chunks_.reserved() - ranges_.free_bytes();
  f.largest_free = ranges_.largest_free();
  f.limit = options_.limit;
  f.peak_reserved = chunks_.peak();
  f.joins_refused = ranges_.refused_joins();
  return f;
}

bool pool_engine::consistent() {
  sync::lock const held{guard_};
  std::size_t free = 0, live = 0, indexed = 0;
  std::uintptr_t end = 0;
  bool sound = true;
  ranges_.visit([&](block const& each) {
    sound = sound && each.base >= end && each.bytes > 0 && each.bytes % granule == 0 && each.home &&
            each.base >= each.home->base && each.end() <= each.home->base + each.home->bytes;
    // Side by side within a chunk, without a gap.
    sound = sound && (each.base == each.home->base || each.base == end);
    end = each.end();
    (each.live ? live : free) += each.bytes;
    sound = sound && each.tags.size() <= tag_set::most && (!each.live || each.requested <= each.bytes);
  });
  for (auto const* each : ranges_.by_size()) {
    sound = sound && !each->live;
    indexed += each->bytes;
  }
  return sound && free == indexed && free == ranges_.free_bytes() && live + free == chunks_.reserved();
}

void pool_engine::note_stream(timeline const& order) noexcept {
  if (!first_stream_) first_stream_ = &order;
  shared_ = shared_ || first_stream_ != &order;
}

// With `own`, memory stays with the streams that freed it, even when the host has seen them complete.
void pool_engine::prune(tag_set& tags) const noexcept {
  if (options_.cross_stream != reuse::own) tags.prune();
}

} // namespace gpumem::detail
