// CUDA events that the process keeps for reuse.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:pooled_event;
import :cuda;
import :std;

namespace gpumem::detail {

/// A CUDA event from a pool of events; each context has such a pool. After give_event() other streams reuse the event,
/// which still has its last record until they record it again.
export struct pooled_event {
  CUevent handle = nullptr;
  CUcontext context = nullptr;
  pooled_event* next = nullptr; ///< in the list that holds the event
  bool reused = true;           ///< false: give_event() destroys the event
};

/// Returns a spare event of the context; creates one if there is none. Throws cuda_error, std::bad_alloc. This function
/// and those below may be called by any thread.
export pooled_event* take_event(CUcontext context);
/// Creates an event that has no record, which give_event() destroys. Throws cuda_error, std::bad_alloc.
export pooled_event* make_unrecorded_event(CUcontext context);
/// Returns a spare event of the context; null if there is none. No allocation, no driver call.
export pooled_event* take_spare_event(CUcontext context) noexcept;
/// Gives the event back to its pool, or destroys it.
export void give_event(pooled_event* event) noexcept;
/// Creates events until the context has `tuning::spare_events` spare ones. Frees record events but allocate nothing, so
/// allocations call this function to make events in advance. Throws cuda_error, std::bad_alloc.
export void make_spare_events(CUcontext context);
/// Set while all contexts together have fewer than `tuning::spare_events` spare events.
export inline constinit std::atomic<bool> spares_low{true};

} // namespace gpumem::detail
