// The library thread's work for requests that wait.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:request_passes;
import :deadlock_monitor;
import :frees;
import :holder;
import :pool_parts;
import :pressure_call;
import :progress_monitor;
import :request_queue;
import :std;
import :waiter;
import :waiting_requests;

namespace gpumem::detail {

/// Does what the progress_monitor decides: calls pressure callbacks, makes the deadlock_monitor look for requests that
/// must end, and polls for work that has completed. Takes the locks of all shards.
export class request_passes final : public pressure_call::observer, public waiting_place {
public:
  /// Keeps references to all arguments.
  request_passes(pool_parts& parts, deferred_frees& deferred, waiting_requests& waiting, progress_monitor& monitor,
                 request_queue& queue) noexcept
      : parts_{parts}, deferred_{deferred}, waiting_{waiting}, monitor_{monitor}, queue_{queue} {
    deadlock_monitor::get().add(*this);
  }
  ~request_passes() { deadlock_monitor::get().remove(*this); }

  /// Called by the library thread in each of its passes over the pool.
  void run() noexcept;
  void on_holder_event(holder& unit, holder_event what) noexcept;
  /// Throws std::bad_alloc.
  void add_pressure_call(pressure_call& item);
  void remove_pressure_call(pressure_call& item) noexcept;

private:
  void call_pressure() noexcept;
  void end_deadlocks() noexcept;
  void poll() noexcept;
  void show(visitor& to) noexcept override;
  void end_wait(waiter& item, woken_waiters& woken) noexcept override;
  std::size_t begin_pressure(pressure_call& call) noexcept override;
  void end_pressure(pressure_call& call, std::size_t freed) noexcept override;

  pool_parts& parts_;
  deferred_frees& deferred_;
  waiting_requests& waiting_;
  progress_monitor& monitor_;
  request_queue& queue_;
};

} // namespace gpumem::detail
