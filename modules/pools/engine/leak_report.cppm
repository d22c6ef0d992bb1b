// Reports, when the process exits, the blocks of pools that were never freed.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:leak_report;
import :block_info;
import :intrusive_list;
import :std;

namespace gpumem::detail {

/// Returns whether GPUMEM_REPORT_LEAKS asks for the reports. Throws std::invalid_argument for a value other than 0, 1,
/// off and on.
export bool reports_leaks();

/// Lists a pool for the report while it lives. When the process exits, a line on standard error tells for each listed
/// pool with live blocks how many these are, and the largest ones. It is written just before the driver shuts down.
/// Afterwards frees do nothing. So a block of an object that is destroyed even later counts as never freed. Any thread.
export class leak_report {
public:
  using reader = live_blocks (*)(void* pool);

  /// Calls `read(pool)` for the report. The name and the pool must outlive this object.
  leak_report(char const* name, reader read, void* pool);
  ~leak_report();
  leak_report(leak_report const&) = delete;
  leak_report& operator=(leak_report const&) = delete;

private:
  friend class intrusive_list<leak_report>;
  static void write_all() noexcept;
  void write() const noexcept;

  char const* const name_;
  reader const read_;
  void* const pool_;
  list_links<leak_report> links_;
};

} // namespace gpumem::detail
