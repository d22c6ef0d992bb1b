// Every pool and every adaptor over a resource, type-erased, and a resource of another library; for files that have
// imported gpumem.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

/// A resource of another library over managed memory. It aligns to 256 bytes only. A freed block serves the next
/// request of the same stream, as in a pool of the driver: only the work of the stream comes after its earlier uses.
class foreign_managed {
public:
  explicit foreign_managed(gpumem::device where) : state_{std::make_shared<state>(where)} {}

  void* allocate(gpumem::stream_ref stream, std::size_t bytes, std::size_t alignment = 256) {
    auto& freed = state_->freed;
    if (freed.pointer && freed.bytes == bytes && freed.stream == stream.get())
      return std::exchange(freed.pointer, nullptr);
    return allocate_sync(bytes, alignment);
  }
  void deallocate(gpumem::stream_ref stream, void* pointer, std::size_t bytes, std::size_t = 256) noexcept {
    give_back();
    state_->freed = {pointer, bytes, stream.get()};
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment = 256) {
    if (alignment > 256) throw std::invalid_argument{"this resource aligns to 256 bytes only"};
    give_back();
    return static_cast<std::byte*>(state_->memory.allocate_sync(bytes + 256)) + 256;
  }
  void deallocate_sync(void* pointer, std::size_t bytes, std::size_t = 256) noexcept {
    state_->memory.deallocate_sync(static_cast<std::byte*>(pointer) - 256, bytes + 256);
  }
  friend bool operator==(foreign_managed const& a, foreign_managed const& b) { return a.state_ == b.state_; }
  friend constexpr void get_property(foreign_managed const&, gpumem::mr::device_accessible) noexcept {}
  friend constexpr void get_property(foreign_managed const&, gpumem::mr::host_accessible) noexcept {}

private:
  struct block {
    void* pointer = nullptr;
    std::size_t bytes = 0;
    CUstream stream = nullptr;
  };
  struct state {
    explicit state(gpumem::device where) : memory{where} {}
    gpumem::managed_resource memory;
    block freed;
  };
  void give_back() {
    auto const old = std::exchange(state_->freed, {});
    if (!old.pointer) return;
    gpumem::stream_ref{old.stream}.sync();
    deallocate_sync(old.pointer, old.bytes);
  }
  std::shared_ptr<state> state_;
};

/// A resource over a form of a source.
struct erased_stack {
  char const* name;
  std::function<gpumem::extend::any_memory()> make;
};

/// Returns a pool of each kind, and each adaptor below and above a pool, over the upstream.
template <class Upstream> std::vector<erased_stack> stacks_over(Upstream const& up) {
  using namespace gpumem;
  using extend::make_any_memory;
  auto const pooled = [](auto adaptor) { return make_any_memory(pool_resource{std::move(adaptor)}); };
  constexpr std::size_t mib = std::size_t{1} << 20;
  return {
      {"pool", [=] { return pooled(up); }},
      {"chunks", [=] { return make_any_memory(pool_resource{up, {.chunk_size = 2 * mib}}); }},
      {"hardened", [=] { return make_any_memory(pool_resource{up, {.hardened = {.enabled = true}}}); }},
      {"pass_through", [=] { return make_any_memory(pool_resource{up, {.pass_through = true}}); }},
      {"fixed_size", [=] { return make_any_memory(fixed_size_resource{up, {.block_size = mib}}); }},
      {"arena", [=] { return make_any_memory(arena_resource{up}); }},
      {"monotonic", [=] { return make_any_memory(monotonic_resource{up}); }},
      {"binning", [=] { return make_any_memory(binning_resource{up, {.min_exponent = 12, .max_exponent = 20}}); }},
      {"pool over pool", [=] { return pooled(pool_resource{up}); }},
      {"pool over fixed_size", [=] { return pooled(fixed_size_resource{up, {.block_size = 64 * mib}}); }},
      {"pool over monotonic", [=] { return pooled(monotonic_resource{up, {.region_size = 64 * mib}}); }},
      {"pool over binning", [=] { return pooled(binning_resource{up, {.min_exponent = 20, .max_exponent = 25}}); }},
      {"pool over graph memory", [=] { return pooled(graph_resource{up}); }},
      {"pool over statistics", [=] { return pooled(statistics_adaptor{up}); }},
      {"pool over logging", [=] { return pooled(logging_adaptor{up, extend::log_sink{"/dev/null"}}); }},
      {"pool over tracking", [=] { return pooled(tracking_adaptor{up, {.stack_depth = 0}}); }},
      {"pool over limiting", [=] { return pooled(limiting_adaptor{up, {.limit = std::size_t{1} << 40}}); }},
      {"pool over aligned", [=] { return pooled(aligned_adaptor{up, {.alignment = 4096}}); }},
      {"pool over failing", [=] { return pooled(failing_adaptor{up, {}}); }},
      {"pool over prefetch", [=] { return pooled(prefetch_adaptor{up, {.location = device{1}}}); }},
      {"pool over thread_safe", [=] { return pooled(thread_safe_adaptor{up}); }},
      {"pool over scope", [=] { return pooled(scope{up}); }},
      {"pool over fallback", [=] { return pooled(fallback_adaptor{up, up}); }},
      {"pool over failure_callback",
       [=] { return pooled(failure_callback_adaptor{up, {.callback = [](auto const&) { return false; }}}); }},
      {"pool over any_memory", [=] { return pooled(make_any_memory(up)); }},
      {"pool over checked", [=] { return pooled(simulator::checked{up}); }},
      {"statistics", [=] { return make_any_memory(statistics_adaptor{pool_resource{up}}); }},
      {"aligned", [=] { return make_any_memory(aligned_adaptor{pool_resource{up}, {.alignment = 4096}}); }},
      {"checked", [=] { return make_any_memory(simulator::checked{pool_resource{up}}); }},
  };
}
