// A resource whose requests can wait: host memory up to a capacity, first come first served. Include it after
// `import gpumem;` and after <cstdlib>, <mutex>, <utility>: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

class parking_state final : public gpumem::extend::shared_state {
public:
  parking_state(gpumem::device where, std::size_t capacity) noexcept : device_{where}, capacity_{capacity} {}

  gpumem::expected<void*, gpumem::failure> try_allocate(gpumem::extend::stream_key const&, std::size_t bytes,
                                                        std::size_t alignment) noexcept {
    gpumem::detail::sync::lock const held{mutex_};
    ++tries_;
    if (bytes > capacity_) return fail(gpumem::outcome::too_large, bytes);
    if (closed_) return fail(gpumem::outcome::closed, bytes);
    if (!queue_.empty() || !fits(bytes)) return fail(gpumem::outcome::exhausted, bytes);
    return take(bytes, alignment);
  }

  void deallocate(gpumem::extend::stream_key const&, void* pointer, std::size_t bytes, std::size_t) noexcept {
    std::free(pointer);
    {
      gpumem::detail::sync::lock held{mutex_};
      used_ -= bytes;
      serve(held);
    }
    drop_live();
  }

  bool admit(gpumem::extend::waiter& request) noexcept {
    gpumem::detail::sync::lock const held{mutex_};
    if (closed_) return request.complete(fail(gpumem::outcome::closed, request.bytes())), false;
    if (queue_.empty() && fits(request.bytes())) {
      request.complete(take(request.bytes(), request.alignment()));
      return false;
    }
    if (!queue_.park(request)) return false;
    ++parked_;
    return true;
  }

  bool cancel_waiter(gpumem::extend::waiter& request) noexcept {
    gpumem::detail::sync::lock held{mutex_};
    if (!queue_.remove(request)) return false;
    serve(held); // the later requests may have waited only for this one
    return true;
  }

  gpumem::device where() noexcept { return device_; }

  gpumem::statistics read_statistics() noexcept {
    gpumem::detail::sync::lock const held{mutex_};
    gpumem::statistics statistics;
    statistics.live = used_;
    statistics.limit = capacity_;
    return statistics;
  }

  std::size_t used() {
    gpumem::detail::sync::lock const held{mutex_};
    return used_;
  }
  std::size_t parked() {
    gpumem::detail::sync::lock const held{mutex_};
    return parked_;
  }
  std::size_t tries() {
    gpumem::detail::sync::lock const held{mutex_};
    return tries_;
  }
  bool idle() {
    gpumem::detail::sync::lock const held{mutex_};
    return queue_.empty();
  }

  /// Refuses all waiting and all later requests.
  void close() noexcept {
    gpumem::detail::sync::lock held{mutex_};
    closed_ = true;
    while (auto* const first = queue_.first()) {
      queue_.remove(*first);
      held.unlock();
      first->refuse({gpumem::outcome::closed, 0, first->bytes()});
      held.lock();
    }
  }

private:
  static gpumem::expected<void*, gpumem::failure> fail(gpumem::outcome what, std::size_t bytes) noexcept {
    return gpumem::unexpected<gpumem::failure>{gpumem::failure{what, 0, bytes}};
  }
  bool fits(std::size_t bytes) const noexcept { return bytes <= capacity_ - used_; }
  void* take(std::size_t bytes, std::size_t alignment) noexcept {
    used_ += bytes;
    add_live();
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  void serve(gpumem::detail::sync::lock& held) noexcept {
    while (queue_.first() && fits(queue_.first()->bytes())) {
      auto* const first = queue_.first();
      queue_.remove(*first);
      auto* const pointer = take(first->bytes(), first->alignment());
      held.unlock();
      first->grant(pointer);
      held.lock();
    }
  }

  gpumem::device device_;
  gpumem::detail::sync::mutex mutex_;
  gpumem::extend::waiter_list queue_;
  std::size_t capacity_;
  std::size_t used_ = 0;
  std::size_t parked_ = 0;
  std::size_t tries_ = 0;
  bool closed_ = false;
};

class parking_resource
    : public gpumem::extend::resource_base<parking_resource, parking_state, gpumem::mr::device_accessible> {
public:
  explicit parking_resource(std::size_t capacity, gpumem::device where = gpumem::device{0})
      : state_{new parking_state{where, capacity}} {}

  parking_state& state() const noexcept { return *state_; }
  friend bool operator==(parking_resource const& a, parking_resource const& b) noexcept { return a.state_ == b.state_; }

private:
  gpumem::extend::state_ptr<parking_state> state_;
};

/// The state of an adaptor that counts the grants, whether or not a request waited.
template <class Upstream>
class counting_state final : public gpumem::extend::shared_state, public gpumem::extend::grant_hook {
public:
  explicit counting_state(Upstream upstream) noexcept : upstream_{std::move(upstream)} {}

  gpumem::expected<void*, gpumem::failure> try_allocate(gpumem::extend::stream_key const& key, std::size_t bytes,
                                                        std::size_t alignment) noexcept {
    auto const result = upstream_.state().try_allocate(key, bytes, alignment);
    if (result) grant();
    return result;
  }
  void deallocate(gpumem::extend::stream_key const& key, void* pointer, std::size_t bytes,
                  std::size_t alignment) noexcept {
    count(-1);
    upstream_.state().deallocate(key, pointer, bytes, alignment);
    drop_live();
  }
  bool admit(gpumem::extend::waiter& request) noexcept {
    return request.add_hook(*this) && upstream_.state().admit(request);
  }
  bool cancel_waiter(gpumem::extend::waiter& request) noexcept { return upstream_.state().cancel_waiter(request); }
  gpumem::device where() noexcept { return upstream_.state().where(); }

  void on_grant(gpumem::extend::waiter const&, gpumem::extend::request_part const&) noexcept override { grant(); }
  long live() {
    gpumem::detail::sync::lock const held{mutex_};
    return live_;
  }

private:
  void grant() noexcept {
    add_live();
    count(1);
  }
  void count(long change) noexcept {
    gpumem::detail::sync::lock const held{mutex_};
    live_ += change;
  }
  Upstream upstream_;
  gpumem::detail::sync::mutex mutex_;
  long live_ = 0;
};

template <class Upstream>
class counting_adaptor : public gpumem::extend::resource_base<counting_adaptor<Upstream>, counting_state<Upstream>,
                                                              gpumem::mr::device_accessible> {
public:
  explicit counting_adaptor(Upstream upstream) : state_{new counting_state<Upstream>{std::move(upstream)}} {}
  counting_state<Upstream>& state() const noexcept { return *state_; }
  friend bool operator==(counting_adaptor const& a, counting_adaptor const& b) noexcept { return a.state_ == b.state_; }

private:
  gpumem::extend::state_ptr<counting_state<Upstream>> state_;
};

} // namespace test
