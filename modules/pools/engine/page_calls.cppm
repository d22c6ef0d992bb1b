// The calls of users that concern the pages of a pool.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:page_calls;
import :device;
import :error;
import :pool_parts;
import :request_queue;
import :std;

namespace gpumem::detail {

/// Keeps pages in place, and gives other devices and processes access to them. Each function takes the locks of all
/// shards. Any thread.
export class page_calls {
public:
  /// Keeps references to both.
  page_calls(pool_parts& parts, request_queue& queue) noexcept : parts_{parts}, queue_{queue} {}

  /// Keeps the pages of these bytes mapped in place until unpin() was called as often as pin(). Returns false if a byte
  /// is not the pool's.
  bool pin(void const* pointer, std::size_t bytes);
  void unpin(void const* pointer, std::size_t bytes);
  /// Lets another device read and write the pages of the pool. Does nothing if the pool has chunks. Throws cuda_error,
  /// std::bad_alloc.
  void open_to(device peer);
  /// Returns a file descriptor of the page that holds the pointer, as virtual_pages::export_page does. Fails with
  /// outcome::invalid_argument if the pool has no such page.
  expected<int, failure> export_page(void const* pointer);

private:
  pool_parts& parts_;
  request_queue& queue_;
};

} // namespace gpumem::detail
