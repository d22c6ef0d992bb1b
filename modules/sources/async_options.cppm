// Options and usage figures of a driver pool.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:async_options;
import :device;
import :std;

export namespace gpumem {

/// How memory of a driver pool may be handed to other processes.
enum class export_handle : unsigned char {
  none,
  file_descriptor,
  fabric, ///< needs an NVLink fabric, and permission to use it
};

/// Options of a driver pool that gpumem creates; sizes in bytes. The driver rounds sizes to its own granularity of some
/// MiB.
struct async_options {
  std::size_t initial_size = 0; ///< bytes that are reserved at construction
  std::size_t limit = 0;        ///< most bytes that may be reserved; 0: the driver's own limit
  /// Whenever the host waits for a stream, event or context, the driver returns unused reserved memory above this many
  /// bytes.
  std::size_t release_threshold = (std::numeric_limits<std::size_t>::max)();
  bool reuse_after_events = true;      ///< reuse on another stream that an event orders after the free
  bool reuse_completed = true;         ///< reuse on another stream without such an order, once the free is complete
  bool reuse_by_inserted_waits = true; ///< reuse on another stream after a wait that the driver inserts; last resort
  export_handle exported_as = export_handle::none; ///< how other processes may get the memory
  bool hardware_decompression = false;             ///< whether the device's decompression engine can access the memory
  std::vector<device> peers = {};                  ///< other devices that may read and write the memory
  int numa_node = -1;                              ///< NUMA node of the host on which pinned memory lies; -1: any
};

/// Bytes of a driver pool, as the driver reports them. Peaks count from the pool's creation or the last reset_peaks().
struct driver_pool_usage {
  std::size_t reserved = 0;      ///< bytes that the pool has from the device
  std::size_t peak_reserved = 0; ///< highest `reserved`
  std::size_t used = 0;          ///< bytes of live blocks, rounded up by the driver
  std::size_t peak_used = 0;     ///< highest `used`

  bool operator==(driver_pool_usage const&) const = default;
};

} // namespace gpumem
