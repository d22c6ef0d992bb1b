// pool_resource: a pool over any resource, or over virtual pages of a device.
// SPDX-License-Identifier: Apache-2.0
module;
#include <concepts>
#include <memory>
#include <utility>
export module gpumem:pool_resource;
import :cuda;
import :cuda_resource;
import :device;
import :held_upstream;
import :pool_base;
import :pool_options;
import :std;
import :virtual_pages;

namespace gpumem {

/// A pool over any resource, or over virtual pages of a device: keeps freed blocks for later requests. Any thread.
///
/// Stream order: free a block on a stream that is ordered after its allocation. Other streams get the memory only after
/// its free and the uses that `record_use` declares. The pool relies on the order that events give, on completed
/// events, or on a wait that it inserts (see reuse_policy).
///
/// Errors: a request that no state of the pool can serve is `too_large`; one that finds no memory is `exhausted`. A
/// request by `acquire` that finds no memory waits instead, in order of priority and then of arrival. Such a request is
/// `exhausted` only if no live block is left. Without a limit, it is `too_large` if it exceeds the device's memory.
/// Memory that is freed outside the pool does not wake waiting requests. A thread that waits for memory that it holds
/// itself waits for ever, unless there is a `stall_timeout`. A `hardened` pool also reports double frees, frees of a
/// wrong size and overwritten bytes to the misuse handler.
///
/// Ownership: an object is a handle of 8 bytes; copies are the same pool and compare equal. The pool lives until its
/// last handle is gone and its last block is freed. Its memory goes back to the upstream when the host has seen all
/// uses complete.
export template <class Upstream> class pool_resource : public detail::pool_base<pool_resource<Upstream>, Upstream> {
  using base = detail::pool_base<pool_resource, Upstream>;

public:
  /// Reserves `options.initial_size` now. Throws std::invalid_argument for options that contradict each other, and what
  /// `throw_failure` throws if the upstream has no memory.
  explicit pool_resource(Upstream upstream, pool_options options = {})
      : base{std::make_unique<detail::held_upstream<Upstream>>(std::move(upstream)), std::move(options)} {}

  /// Makes a pool over virtual pages of a device: addresses to which the pool maps pages as it grows, and from which it
  /// unmaps any free pages. The pool uses chunks of cuda_resource instead if the device has no virtual memory, if
  /// `options.pages` is false, or if `options.chunk_size` is set. It also uses chunks if the limit is less than a page
  /// of 2 MiB and `pages` has its defaults. Throws what the other constructor throws. Throws std::invalid_argument for
  /// `pages` that virtual_pages refuses, and for `pages` other than the defaults if `options` ask for chunks.
  explicit pool_resource(gpumem::device where, pool_options options = {}, virtual_pages_options pages = {})
    requires std::same_as<Upstream, cuda_resource>
      : base{detail::held_pages(where, options, std::move(pages)), std::move(options)} {}
};

/// A pool that is made for a device uses virtual pages, unless the options say otherwise.
export pool_resource(gpumem::device) -> pool_resource<cuda_resource>;
export pool_resource(gpumem::device, pool_options) -> pool_resource<cuda_resource>;
export pool_resource(gpumem::device, pool_options, virtual_pages_options) -> pool_resource<cuda_resource>;

} // namespace gpumem
