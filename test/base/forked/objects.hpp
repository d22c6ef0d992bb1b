// The objects that a process may have when it forks. Include it after `import gpumem;`, the standard's headers and
// those of the bridge: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace forked {

/// A work item that deletes itself when it runs.
class leaf final : public gpumem::extend::work_item {
  void resume() noexcept override { delete this; }
};

/// A timer that never expires.
class late final : public gpumem::detail::timer {
public:
  late() { gpumem::detail::start_timer(*this, gpumem::detail::sync::now() + std::chrono::hours{1}); }
  ~late() { gpumem::detail::cancel_timer(*this); }

private:
  void expire() noexcept override {}
};

/// Objects that all threads share.
struct shared_objects {
  static constexpr std::size_t MiB = std::size_t{1} << 20;

  gpumem::device device{0};
  gpumem::pool_resource<gpumem::cuda_resource> pages{device, {}, {.address_space = 1024 * MiB, .exportable = true}};
  gpumem::pool_resource<gpumem::cuda_resource> chunks{gpumem::cuda_resource{device}};
  gpumem::pool_resource<gpumem::cuda_resource> hardened{gpumem::cuda_resource{device}, {.hardened = {.enabled = true}}};
  gpumem::statistics_adaptor<gpumem::pool_resource<gpumem::cuda_resource>> counted{pages};
  std::ostringstream text;
  gpumem::logging_adaptor<gpumem::pool_resource<gpumem::cuda_resource>> logged{pages, gpumem::extend::log_sink{text}};
  gpumem::cuda_resource cuda{device};
  gpumem::managed_resource managed{device};
  gpumem::tracking_adaptor<gpumem::pool_resource<gpumem::cuda_resource>> tracked{pages};
  gpumem::fallback_adaptor<gpumem::pool_resource<gpumem::cuda_resource>, gpumem::managed_resource> fallback{pages,
                                                                                                            managed};
  gpumem::thread_safe_adaptor<gpumem::pool_resource<gpumem::cuda_resource>> locked{pages};
  gpumem::pinned_resource pinned{device};
  gpumem::host_resource host;
  gpumem::async_resource async{device};
  gpumem::async_resource_view view{device};
  gpumem::any_pool erased{pages};
  gpumem::stream_pool streams{device, 2};
  gpumem::thread_executor thread;
  gpumem::thread_pool_executor threads{2};
  gpumem::inline_executor here;
};

/// Objects that one thread owns.
struct own_objects {
  static constexpr std::size_t bytes = 1000;

  explicit own_objects(shared_objects& shared) : all{shared} {
    gpumem::device_guard const scope{all.device};
    gpumem::driver_api::check(gpumem::driver_api::driver().stream_create(&foreign, CU_STREAM_NON_BLOCKING),
                              "cuStreamCreate");
    happened.record(a);
  }

  shared_objects& all;
  gpumem::stream a{all.device}, b{all.device};
  CUstream foreign = nullptr;
  gpumem::event happened{all.device};
  void* page = all.pages.allocate(a, bytes);
  void* chunk = all.chunks.allocate(a, bytes);
  void* hard = all.hardened.allocate(a, bytes);
  gpumem::allocation block = all.pages.acquire(a, bytes).wait();
  gpumem::buffer buffer{a, all.pages, bytes};
  gpumem::uninitialized_vector<int> vector{a, all.pages, 10};
  gpumem::scalar<int> scalar{a, all.pages, 1};
  late timer;
  std::optional<gpumem::scoped_current_resource> scope{std::in_place, all.device, gpumem::any_pool{all.pages}};
};

/// A call that both a thread of the parent and the forked child make. `make` returns whether it behaved in the child as
/// it must.
struct call {
  char const* name;
  bool (*make)(own_objects& o);
};

/// Returns all calls that could take a lock or call the driver; the last one also destroys the shared objects.
std::span<call const> calls();

/// Runs all destructors; only the child calls it.
void destroy(own_objects* own);

} // namespace forked
