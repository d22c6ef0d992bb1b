// The report about blocks that were never freed, which is written when the process exits.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:leak_report;
import :block_info;
import :intrusive_list;
import :std;

namespace gpumem::detail {

/// Returns whether the environment variable GPUMEM_REPORT_LEAKS is 1 or on; false if it is unset, empty, 0 or off.
/// Throws std::invalid_argument for any other value.
export bool reports_leaks();

/// Adds a pool to the report as long as this object lives. When the process exits, the report is written to standard
/// error, just before the driver shuts down. For each pool with live blocks it tells their number, and describes the
/// largest ones. Later frees do nothing, so a block whose owner is destroyed after the report counts as never freed.
/// Any thread.
export class leak_report {
public:
  using reader = live_blocks (*)(void* pool);

  /// `read(pool)` returns the live blocks of the pool, and may throw. The name and the pool must outlive this object.
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
