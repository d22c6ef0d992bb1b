// Counts what one stack has of a source that other stacks use too. Include it after `import gpumem;`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/lock_attributes.hpp>
#include <algorithm>
#include <cstddef>
#include <utility>

#include "../support/guarded_mutex.hpp"

namespace gpumem::c {

/// The state of a counted_source.
template <class Source> class counted_state final : public extend::adaptor_state<counted_state<Source>, Source> {
public:
  explicit counted_state(Source source) : extend::adaptor_state<counted_state, Source>{std::move(source)} {}

  /// Each block is memory of its own of the source, so its bytes are live, allocated and reserved alike.
  gpumem::statistics read_statistics() {
    support::scoped_lock const lock{mutex_};
    auto now = counts_;
    now.allocated = now.reserved = now.live;
    now.peak_reserved = now.peak_live;
    now.upstream_allocations = now.allocations;
    now.upstream_frees = now.frees;
    return now;
  }
  void reset_peaks() {
    support::scoped_lock const lock{mutex_};
    counts_.peak_live = counts_.live;
  }

  void on_granted(extend::stream_key const&, void*, std::size_t bytes) noexcept {
    support::scoped_lock const lock{mutex_};
    ++counts_.allocations;
    counts_.live += bytes;
    counts_.reserved_in_all += bytes;
    counts_.peak_live = std::max(counts_.peak_live, counts_.live);
  }
  void on_free(extend::stream_key const&, void*, std::size_t bytes) noexcept {
    support::scoped_lock const lock{mutex_};
    ++counts_.frees;
    counts_.live -= bytes;
  }
  void on_refused_free(extend::stream_key const&, std::size_t bytes) noexcept {
    support::scoped_lock const lock{mutex_};
    --counts_.frees;
    counts_.live += bytes;
  }
  void on_failure(extend::stream_key const&, std::size_t) noexcept {
    support::scoped_lock const lock{mutex_};
    ++counts_.failures;
  }

private:
  support::guarded_mutex mutex_;
  gpumem::statistics counts_ GPUMEM_GUARDED_BY(mutex_);
};

/// An adaptor over a source of the whole process. Its statistics are those of its own blocks only. Any thread.
template <class Source>
class counted_source : public extend::adaptor_base<counted_source<Source>, counted_state<Source>, Source> {
  using base = extend::adaptor_base<counted_source, counted_state<Source>, Source>;

public:
  explicit counted_source(Source source) : base{new counted_state<Source>{std::move(source)}} {}
  void reset_peaks() const { this->shared().reset_peaks(); }
};

} // namespace gpumem::c
