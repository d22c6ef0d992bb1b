// scope: an adaptor that records the memory, name and age of one unit of work.
// SPDX-License-Identifier: Apache-2.0
module;
#include <string>
#include <utility>
export module gpumem:scope;
import :adaptor_base;
import :cuda;
import :deadlock_monitor;
import :error;
import :holder;
import :std;
import :stream;
import :waiter;

namespace gpumem {

/// Options of a scope.
export struct scope_options {
  int priority = 0; ///< the priority of all requests of the scope; that of acquire_options is ignored
};

namespace detail {

template <class Upstream>
class scope_state final : public adaptor_state<scope_state<Upstream>, Upstream>, public holder {
  using base = adaptor_state<scope_state, Upstream>;

public:
  scope_state(Upstream upstream, std::string name, scope_options const& options)
      : base{std::move(upstream), false}, holder{std::move(name), options.priority} {
    tell(holder_event::begins);
    deadlock_monitor::get().add(*this);
  }

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
    return base::try_allocate(key.for_unit(*this), bytes, alignment);
  }
  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept {
    base::deallocate(key.for_unit(*this), pointer, bytes, alignment);
  }

  bool admit(waiter& item) noexcept
    requires requires(base& b) { b.admit(item); }
  {
    item.set_holder(*this);
    return base::admit(item);
  }
  // Handles the events (begin, end, wait) of scopes whose upstream is this scope.
  void on_holder_event(holder& unit, holder_event event) noexcept
    requires requires(base& b) { b.on_holder_event(unit, event); }
  {
    if (event == holder_event::begins) unit.set_parent(*this);
    base::on_holder_event(unit, event);
  }

private:
  ~scope_state() override {
    deadlock_monitor::get().remove(*this);
    tell(holder_event::ends);
  }
  void tell(holder_event event) noexcept {
    if constexpr (requires(base& b) { b.on_holder_event(*this, event); }) base::on_holder_event(*this, event);
  }
  friend class adaptor_state<scope_state, Upstream>;
  void on_granted(stream_key const& key, void* pointer, std::size_t bytes) noexcept {
    this->count_bytes(key, static_cast<std::ptrdiff_t>(bytes));
    if (key.context().unit() == this) this->set_label(pointer, this->label());
  }
  void on_free(stream_key const& key, void*, std::size_t bytes) noexcept {
    this->count_bytes(key, -static_cast<std::ptrdiff_t>(bytes));
  }
  void on_refused_free(stream_key const& key, std::size_t bytes) noexcept {
    this->count_bytes(key, static_cast<std::ptrdiff_t>(bytes));
  }
};

} // namespace detail

/// Marks the work of a scope as waiting for something other than memory (a queue, a network) until the mark is
/// destroyed. Move-only.
export class [[nodiscard]] waiting_mark {
public:
  /// Tells the resource that the holder waits; see scope::waiting_elsewhere.
  waiting_mark(services_handle services, holder& unit) noexcept : services_{services}, unit_{&unit} {
    unit_->mark();
    if (services_.table->on_holder_event) services_.table->on_holder_event(services_.state, unit_, holder_event::waits);
  }
  waiting_mark(waiting_mark&& other) noexcept
      : services_{other.services_}, unit_{std::exchange(other.unit_, nullptr)} {}
  waiting_mark& operator=(waiting_mark&&) = delete;
  ~waiting_mark() {
    if (!unit_) return;
    unit_->unmark();
    if (services_.table->on_holder_event)
      services_.table->on_holder_event(services_.state, unit_, holder_event::resumes);
  }

private:
  services_handle services_;
  holder* unit_;
};

/// A resource through which one unit of work (a batch, a query) gets its memory from `upstream`, usually a shared pool.
/// The pool then knows how much memory the work holds, and serves the requests of older scopes first. So work that has
/// begun can end and free its memory. While a request of a scope waits, the pool assumes that the scope frees nothing.
/// So each part of the work that runs concurrently with other parts needs a scope of its own.
///
/// A scope over another scope is a part of its work. It has the age of the outer scope and is rolled back with it. A
/// request of it is also one of the outer scope. While only the outer scope waits, the memory of the inner one counts
/// as held by running work.
///
/// The pool prevents deadlocks between scopes that wait, here or at a limiting_adaptor or bin in front of the pool.
/// Work that with_retry runs can roll back: it can free its memory and run again later. If an older request waits, the
/// pool looks at younger scopes that also wait and can roll back. If the memory of these younger scopes would satisfy
/// the older request, their requests end with outcome::preempted: one after another, the youngest first. If waiting
/// scopes hold all memory of the pool and none can roll back, the youngest request of a scope that holds memory ends
/// with outcome::stalled.
///
/// Memory that was allocated without a scope counts as held by work that still runs. This assumption ends when no grant
/// or free has happened for the pool's `stall_timeout`. Then a request ends as described above. If no waiting scope
/// holds memory, the first request in the queue ends.
///
/// The upstream must outlive the scope and its blocks, also if the upstream is a pool_ref. Copies are handles to the
/// same scope; see adaptor_base. Any thread.
export template <class Upstream>
class scope : public adaptor_base<scope<Upstream>, detail::scope_state<Upstream>, Upstream> {
  using base = adaptor_base<scope, detail::scope_state<Upstream>, Upstream>;

public:
  /// The age of the scope counts from its construction. Reports show `name`. Throws std::bad_alloc.
  explicit scope(Upstream upstream, std::string name = "scope", scope_options const& options = {})
      : base{new detail::scope_state<Upstream>{std::move(upstream), std::move(name), options}} {}

  /// Returns the name that reports show.
  std::string const& name() const { return this->shared().name(); }
  /// Returns the bytes of the scope's live blocks, as requested.
  std::size_t held() const { return this->shared().held(); }

  /// Returns a mark. While the mark lives, the pool assumes that the scope frees nothing, as if a request of the scope
  /// waited. Use it while the work waits for other work, or keeps memory for long, such as the weights of a model.
  /// Destroy the mark before the scope's last handle.
  waiting_mark waiting_elsewhere() const { return {this->services(), this->shared()}; }

  /// Returns the scope's state as a `holder`, the base class by which the pool knows a unit of work. with_retry uses
  /// it.
  holder& as_holder() const { return this->shared(); }
};

} // namespace gpumem
