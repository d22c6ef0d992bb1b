// The calls by which users keep pages of a pool in place, or open pages to other devices and processes.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:page_calls;
import :device;
import :error;
import :page_store;
import :pool_parts;
import :request_queue;
import :std;

namespace gpumem::detail {

/// Serves these calls. Each function takes the locks of all shards. Any thread.
export class page_calls {
public:
  /// Keeps references to both arguments.
  page_calls(pool_parts& parts, request_queue& queue) noexcept : parts_{parts}, queue_{queue} {}

  /// Keeps the pages of these bytes mapped in place until unpin() was called as often as pin(). Returns false if a byte
  /// is not the pool's.
  bool pin(void const* pointer, std::size_t bytes);
  void unpin(void const* pointer, std::size_t bytes);
  /// Lets another device read and write the pages of the pool. Does nothing if the pool has chunks. Throws cuda_error,
  /// std::bad_alloc.
  void open_to(device peer);
  /// Returns the page that holds the pointer, with a file descriptor by which another process can map it. Pins it.
  /// Fails with outcome::invalid_argument if the pool has no such page, or its pages are not exportable.
  expected<exported_page, failure> export_page(void const* pointer);

private:
  pool_parts& parts_;
  request_queue& queue_;
};

} // namespace gpumem::detail
