// Upstreams that detect whether a limit was exceeded, and the stacks of adaptors over them in which random requests
// wait. Include it after `import gpumem;` and waiter_races.hpp: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

/// The bytes that are granted now, and their peak.
class granted_bytes {
public:
  /// Adds the bytes unless the sum exceeds the capacity; returns whether it did.
  bool add_within(std::size_t capacity, std::size_t bytes) noexcept {
    gpumem::detail::sync::lock const held{mutex_};
    if (now_ + bytes > capacity) return false;
    now_ += bytes;
    most_ = std::max(most_, now_);
    return true;
  }
  void remove(std::size_t bytes) noexcept {
    gpumem::detail::sync::lock const held{mutex_};
    now_ -= bytes;
  }
  std::size_t now() const noexcept { return now_; }
  std::size_t most() const noexcept { return most_; }

private:
  gpumem::detail::sync::mutex mutex_;
  std::size_t now_ = 0;
  std::size_t most_ = 0;
};

/// An adaptor that counts what its upstream grants, and refuses requests beyond a capacity. It lets requests wait if
/// its upstream does.
template <class Upstream>
class counted_state final : public gpumem::extend::shared_state, public gpumem::extend::grant_hook {
  using inner = Upstream::state_type;

public:
  counted_state(Upstream upstream, granted_bytes& counts, std::size_t capacity)
      : upstream_{std::move(upstream)}, counts_{counts}, capacity_{capacity} {}

  gpumem::expected<void*, gpumem::failure> try_allocate(gpumem::extend::stream_key const& key, std::size_t bytes,
                                                        std::size_t alignment) noexcept {
    if (!counts_.add_within(capacity_, bytes)) {
      return gpumem::unexpected<gpumem::failure>{gpumem::failure{gpumem::outcome::exhausted, 0, bytes}};
    }
    auto const result = below().try_allocate(key, bytes, alignment);
    if (result) {
      add_live();
    } else {
      counts_.remove(bytes);
    }
    return result;
  }
  void deallocate(gpumem::extend::stream_key const& key, void* pointer, std::size_t bytes,
                  std::size_t alignment) noexcept {
    below().deallocate(key, pointer, bytes, alignment);
    counts_.remove(bytes);
    drop_live();
  }
  auto where() noexcept { return below().where(); }
  bool admit(gpumem::extend::waiter& item) noexcept
    requires gpumem::extend::waiting_state<inner>
  {
    return item.add_hook(*this) && below().admit(item);
  }
  bool cancel_waiter(gpumem::extend::waiter& item) noexcept
    requires gpumem::extend::waiting_state<inner>
  {
    return below().cancel_waiter(item);
  }

  void on_grant(gpumem::extend::waiter const&, gpumem::extend::request_part const& part) noexcept override {
    counts_.add_within(SIZE_MAX, part.bytes);
    add_live();
  }

private:
  inner& below() noexcept { return *static_cast<inner*>(upstream_.services().state); }
  Upstream upstream_;
  granted_bytes& counts_;
  std::size_t capacity_;
};

template <class Upstream>
class counted
    : public gpumem::extend::resource_base<counted<Upstream>, counted_state<Upstream>, gpumem::mr::device_accessible> {
  using base = gpumem::extend::resource_base<counted, counted_state<Upstream>, gpumem::mr::device_accessible>;

public:
  /// `counts` must outlive it.
  counted(Upstream upstream, granted_bytes& counts, std::size_t capacity = SIZE_MAX)
      : state_{new counted_state<Upstream>{std::move(upstream), counts, capacity}} {}
  friend bool operator==(counted const& a, counted const& b) noexcept { return a.state_ == b.state_; }

private:
  friend base;
  counted_state<Upstream>& state() const noexcept { return *state_; }
  gpumem::extend::state_ptr<counted_state<Upstream>> state_;
};

/// The stacks for random requests: limits of `limit` bytes over counted upstreams, which can grant at least `least`
/// bytes to one request.
struct limited_stacks {
  std::size_t limit;
  std::size_t least;
  unsigned max_overtakes = 16;
  granted_bytes below{}, between{};

  gpumem::limiting_options options() const { return {.limit = limit, .max_overtakes = max_overtakes}; }
  auto over_source() { return gpumem::limiting_adaptor{counted{gpumem::cuda_resource{}, below}, options()}; }
  auto over_scarce_source() {
    return gpumem::limiting_adaptor{counted{gpumem::cuda_resource{}, below, least}, options()};
  }
  auto pool(std::size_t its_limit) {
    return gpumem::pool_resource{gpumem::device{0}, {.limit = its_limit, .pages = false}};
  }
  auto over_pool() { return gpumem::limiting_adaptor{counted{pool(least), below}, options()}; }
  auto over_limit_over_pool() {
    gpumem::limiting_adaptor inner{counted{pool(limit), below}, {.limit = least, .max_overtakes = max_overtakes}};
    return gpumem::limiting_adaptor{counted{std::move(inner), between}, options()};
  }

  /// Returns what is wrong when no request waits any more; empty if nothing is.
  template <class Subject> std::string wrong_in(Subject const& subject) const {
    std::string wrong;
    if (subject.in_use() != 0) wrong += "bytes were lost; ";
    if (subject.statistics().waiting != 0) wrong += "a request still waits; ";
    if (below.now() != 0) wrong += "upstream has live memory; ";
    if (std::max(below.most(), between.most()) > limit) wrong += "the limit was exceeded; ";
    for (auto const& each : gpumem::simulator::take_findings()) wrong += each.text + "; ";
    return wrong;
  }
};

} // namespace test
