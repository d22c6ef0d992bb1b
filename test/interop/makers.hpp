// Makers of all resources that have to keep the contract, by name; for files that have imported gpumem.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace makers {

using gpumem::mr::device_accessible;
using gpumem::mr::host_accessible;

struct cuda {
  static constexpr char const* name = "cuda";
  static auto make() { return gpumem::cuda_resource{}; }
};
struct second_device {
  static constexpr char const* name = "second_device";
  static auto make() { return gpumem::cuda_resource{gpumem::device{1}}; }
};
struct managed {
  static constexpr char const* name = "managed";
  static auto make() { return gpumem::managed_resource{}; }
};
struct system {
  static constexpr char const* name = "system";
  static auto make() { return gpumem::system_resource{}; }
};
struct pinned {
  static constexpr char const* name = "pinned";
  static auto make() { return gpumem::pinned_resource{}; }
};
struct async {
  static constexpr char const* name = "async";
  static auto make() { return gpumem::async_resource{}; }
};
struct async_managed {
  static constexpr char const* name = "async_managed";
  static auto make() { return gpumem::async_managed_resource{gpumem::device{1}}; }
};
struct async_pinned {
  static constexpr char const* name = "async_pinned";
  static auto make() { return gpumem::async_pinned_resource{}; }
};
struct default_pool {
  static constexpr char const* name = "async_view";
  static auto make() { return gpumem::async_resource_view{}; }
};
struct host {
  static constexpr char const* name = "host";
  static auto make() { return gpumem::host_resource{}; }
};
template <class Upstream> struct pool {
  static constexpr char const* name = "pool";
  static auto make() { return gpumem::pool_resource{Upstream::make()}; }
};
template <class Upstream> struct hardened {
  static constexpr char const* name = "hardened";
  static auto make() {
    return gpumem::pool_resource{Upstream::make(), gpumem::pool_options{.hardened = {.enabled = true}}};
  }
};
template <class Upstream> struct statistics {
  static constexpr char const* name = "statistics";
  static auto make() { return gpumem::statistics_adaptor{Upstream::make()}; }
};
template <class Upstream> struct logging {
  static constexpr char const* name = "logging";
  static auto make() { return gpumem::logging_adaptor{Upstream::make(), gpumem::extend::log_sink{"/dev/null"}}; }
};
template <class Upstream> struct limiting {
  static constexpr char const* name = "limiting";
  static auto make() { return gpumem::limiting_adaptor{Upstream::make(), {.limit = PTRDIFF_MAX}}; }
};
template <class Upstream> struct checked {
  static constexpr char const* name = "checked";
  static auto make() { return gpumem::simulator::checked{Upstream::make()}; }
};
template <class Upstream> struct any_pool {
  static constexpr char const* name = "any_pool";
  static auto make() { return gpumem::any_pool{Upstream::make()}; }
};
/// A resource that is not gpumem's, as `checked` over an erased one.
template <class Upstream> struct foreign {
  static constexpr char const* name = "foreign";
  static auto make() { return gpumem::simulator::checked{any_pool<Upstream>::make()}; }
};
template <class Upstream> struct pool_ref {
  static constexpr char const* name = "pool_ref";
  static auto make() {
    static auto target = Upstream::make();
    return target.ref();
  }
};
template <class Upstream, class Property> struct any {
  static constexpr char const* name = "any_resource";
  static auto make() { return gpumem::mr::any_resource<Property>{Upstream::make()}; }
};
template <class Upstream, class Property> struct reference {
  static constexpr char const* name = "resource_ref";
  static auto make() {
    static auto target = Upstream::make();
    return gpumem::mr::resource_ref<Property>{target};
  }
};
template <class Upstream> struct shared {
  static constexpr char const* name = "shared_resource";
  static auto make() { return gpumem::mr::make_shared_resource<decltype(Upstream::make())>(Upstream::make()); }
};
/// Type-erased with its services, then narrowed.
template <class Upstream> struct narrowed {
  static constexpr char const* name = "narrowed";
  static auto make() { return gpumem::mr::any_resource<device_accessible>{any_pool<Upstream>::make()}; }
};

template <class Upstream> struct arena {
  static constexpr char const* name = "arena";
  static auto make() { return gpumem::arena_resource{Upstream::make()}; }
};
template <class Upstream> struct monotonic {
  static constexpr char const* name = "monotonic";
  static auto make() { return gpumem::monotonic_resource{Upstream::make()}; }
};
template <class Upstream> struct binning {
  static constexpr char const* name = "binning";
  static auto make() { return gpumem::binning_resource{Upstream::make(), {.min_exponent = 18, .max_exponent = 20}}; }
};
template <class Upstream> struct aligned {
  static constexpr char const* name = "aligned";
  static auto make() { return gpumem::aligned_adaptor{Upstream::make(), {.alignment = 4096}}; }
};
template <class First, class Second> struct fallback {
  static constexpr char const* name = "fallback";
  static auto make() { return gpumem::fallback_adaptor{First::make(), Second::make()}; }
};
template <class Upstream> struct failure_callback {
  static constexpr char const* name = "failure_callback";
  static auto make() {
    return gpumem::failure_callback_adaptor{Upstream::make(), {.callback = [](auto const&) { return false; }}};
  }
};
template <class Upstream> struct thread_safe {
  static constexpr char const* name = "thread_safe";
  static auto make() { return gpumem::thread_safe_adaptor{Upstream::make()}; }
};
template <class Upstream> struct tracking {
  static constexpr char const* name = "tracking";
  static auto make() { return gpumem::tracking_adaptor{Upstream::make(), {.stack_depth = 4}}; }
};
template <class Upstream> struct prefetch {
  static constexpr char const* name = "prefetch";
  static auto make() { return gpumem::prefetch_adaptor{Upstream::make()}; }
};

// Ten stacks as programs build them.
using training = statistics<pool<cuda>>;
using seeds_example = binning<pool<managed>>;
using shared_card = limiting<prefetch<pool<managed>>>;
using spilling = failure_callback<limiting<pool<cuda>>>;
using overflowing = fallback<pool<cuda>, managed>;
using leak_hunt = tracking<hardened<cuda>>;
using storage = aligned<pool<pinned>>;
using step_scratch = logging<monotonic<pool<cuda>>>;
using service = tracking<limiting<arena<async>>>;
using foreign_below = aligned<thread_safe<foreign<binning<cuda>>>>;

using resources = testing::Types<
    training, seeds_example, shared_card, spilling, overflowing, leak_hunt, storage, step_scratch, service,
    foreign_below, cuda, second_device, host, statistics<cuda>, logging<cuda>, statistics<host>, logging<host>,
    statistics<logging<cuda>>, statistics<any_pool<logging<cuda>>>, statistics<foreign<cuda>>,
    checked<statistics<cuda>>, logging<any<host, host_accessible>>, any_pool<cuda>, any_pool<statistics<cuda>>,
    pool_ref<cuda>, pool_ref<logging<cuda>>, any<cuda, device_accessible>, any<statistics<host>, host_accessible>,
    reference<statistics<cuda>, device_accessible>, reference<host, host_accessible>, shared<cuda>,
    shared<statistics<cuda>>, narrowed<statistics<cuda>>, pool<cuda>, pool<host>, pool<statistics<cuda>>,
    statistics<pool<cuda>>, any_pool<pool<cuda>>, checked<pool<cuda>>, managed, system, pool<system>, pinned, async,
    async_managed, async_pinned, default_pool, pool<async>, pool<managed>, pool<pinned>, pool<async_pinned>,
    statistics<async>, foreign<async>, limiting<cuda>, limiting<host>, limiting<pool<cuda>>,
    limiting<statistics<any_pool<cuda>>>, any_pool<limiting<foreign<cuda>>>, pool<limiting<cuda>>, checked<pool<async>>,
    any_pool<async>, hardened<cuda>, hardened<async>, hardened<second_device>, hardened<managed>, hardened<host>,
    pool<hardened<cuda>>, statistics<hardened<pinned>>, checked<hardened<cuda>>, checked<hardened<async>>>;

} // namespace makers
