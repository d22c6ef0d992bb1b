// The library thread's work for requests that wait. That thread is the one of default_executor().
// SPDX-License-Identifier: Apache-2.0
export module gpumem:request_passes;
import :deferred_frees;
import :holder;
import :pool_parts;
import :pressure_call;
import :progress_monitor;
import :request_queue;
import :std;
import :waiting_requests;

namespace gpumem::detail {

/// Does what the progress_monitor decides: calls functions that free memory, ends requests so that others go on, and
/// polls for work that has completed. Takes the locks of all shards, the parts of the pool.
export class request_passes final : public pressure_call::observer {
public:
  /// Keeps references to all arguments.
  request_passes(pool_parts& parts, deferred_frees& deferred, waiting_requests const& waiting,
                 progress_monitor& monitor, request_queue& queue) noexcept
      : parts_{parts}, deferred_{deferred}, waiting_{waiting}, monitor_{monitor}, queue_{queue} {}

  /// Called by the library thread in each of its passes over the pool.
  void run() noexcept;
  void on_holder_event(holder& unit, holder_event what) noexcept;
  /// Throws std::bad_alloc.
  void add_pressure_call(pressure_call& item);
  void remove_pressure_call(pressure_call& item) noexcept;

private:
  void call_pressure() noexcept;
  bool abort_one() noexcept; // ends one request; returns false if no request must end
  void poll() noexcept;
  std::size_t begin_pressure(pressure_call& call) noexcept override;
  void end_pressure(pressure_call& call, std::size_t freed) noexcept override;

  pool_parts& parts_;
  deferred_frees& deferred_;
  waiting_requests const& waiting_;
  progress_monitor& monitor_;
  request_queue& queue_;
};

} // namespace gpumem::detail
