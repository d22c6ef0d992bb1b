// Keeps all timelines of the process. Those of dead streams are reused.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:timeline_store;
import :cuda;
import :intrusive_list;
import :std;
import :stream_identity;
import :stream_timeline;

namespace gpumem::detail {

/// Makes timelines and keeps them. The timeline of a dead stream serves another stream of the same context once all
/// work of the dead stream is known to be complete. Not thread-safe: guarded by the lock of the timeline_registry.
export class timeline_store {
public:
  // Returns a timeline for a stream that may die. Reuses the timeline of a dead stream if a few tries find one that can
  // be reused; otherwise makes a timeline. Throws std::bad_alloc, cuda_error.
  stream_timeline& take(stream_kind kind, std::uint64_t id, int device, CUcontext context, CUstream handle);
  // Makes a timeline. `may_die`: whether the stream may die at any time. Throws std::bad_alloc, cuda_error.
  stream_timeline& make(stream_kind kind, std::uint64_t id, int device, CUcontext context, CUstream handle,
                        bool may_die);
  // Takes over the timeline of a stream that has died, for reuse.
  void retire(stream_timeline& dead) noexcept;
  inline std::vector<std::unique_ptr<stream_timeline>> const& timelines() const noexcept { return timelines_; }

private:
  stream_timeline* take_dead(CUcontext context) noexcept;
  stream_timeline* take_spare(CUcontext context) noexcept;
  void make_spares(int device, CUcontext context) noexcept;

  std::vector<std::unique_ptr<stream_timeline>> timelines_;
  intrusive_list<stream_timeline> dead_;  // newest first
  intrusive_list<stream_timeline> spare_; // not used yet; for a new stream while the host has no memory
  std::size_t stranded_ = 0;              // number of dead streams with frees after which no event was recorded
  std::size_t stranded_bytes_ = 0;        // bytes of these frees
};

} // namespace gpumem::detail
