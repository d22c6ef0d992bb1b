// The options of a driver pool, and what it tells of itself.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:async_options;
import :device;
import :std;

export namespace gpumem {

/// How memory of a driver pool may be handed to other processes.
enum class export_handle : unsigned char {
  none,
  file_descriptor,
  fabric, ///< needs a fabric, and leave to use it
};

/// Options of an own driver pool; sizes in bytes. The driver keeps them, in its own granularity of some MiB.
struct async_options {
  std::size_t initial_size = 0; ///< reserved at construction
  std::size_t limit = 0;        ///< most that may be reserved; 0: what the driver sets
  /// Reserved memory beyond this that is not in use is given back whenever the host waits for a stream, event or
  /// context.
  std::size_t release_threshold = (std::numeric_limits<std::size_t>::max)();
  bool reuse_after_events = true;      ///< across streams, where an order by events is there
  bool reuse_completed = true;         ///< across streams, what has completed though no order is there
  bool reuse_by_inserted_waits = true; ///< across streams, behind a wait that the driver inserts, as a last resort
  export_handle exported_as = export_handle::none;
  bool hardware_decompression = false; ///< memory that the device's decompression engine reaches
  std::vector<device> peers = {};      ///< other devices that may read and write the memory
  int numa_node = -1;                  ///< of pinned memory: the host node it is on; -1: any
};

/// What a driver pool has, in bytes, as the driver tells; peaks since the pool was made or `reset_peaks()`.
struct driver_pool_usage {
  std::size_t reserved = 0;
  std::size_t peak_reserved = 0;
  std::size_t used = 0; ///< given out, rounded up
  std::size_t peak_used = 0;

  friend bool operator==(driver_pool_usage const&, driver_pool_usage const&) = default;
};

} // namespace gpumem
