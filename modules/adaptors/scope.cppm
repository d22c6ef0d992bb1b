// A unit of work: what it holds of a resource, by name, and how old it is.
// SPDX-License-Identifier: Apache-2.0
module;
#include <string>
#include <utility>
export module gpumem:scope;
import :adaptor_base;
import :cuda;
import :error;
import :holder;
import :std;
import :stream;
import :waiter;

namespace gpumem {

/// Options of a scope.
export struct scope_options {
  int priority = 0; ///< of all its requests; in its place the priority of acquire_options is ignored
};

namespace detail {

template <class Upstream>
class scope_state final : public adaptor_state<scope_state<Upstream>, Upstream>, public holder {
  using base = adaptor_state<scope_state, Upstream>;

public:
  scope_state(Upstream upstream, std::string name, scope_options const& options)
      : base{std::move(upstream)}, holder{std::move(name), options.priority} {
    tell(holder_event::begins);
  }

  bool admit(waiter& item) noexcept
    requires requires(base& b) { b.admit(item); }
  {
    item.set_holder(*this);
    return base::admit(item);
  }
  // Of scopes over this one.
  void on_holder_event(holder& unit, holder_event what) noexcept
    requires requires(base& b) { b.on_holder_event(unit, what); }
  {
    if (what == holder_event::begins) unit.set_nested();
    base::on_holder_event(unit, what);
  }

private:
  ~scope_state() override { tell(holder_event::ends); }
  void tell(holder_event what) noexcept {
    if constexpr (requires(base& b) { b.on_holder_event(*this, what); }) base::on_holder_event(*this, what);
  }
  friend class adaptor_state<scope_state, Upstream>;
  void on_granted(stream_key const&, void*, std::size_t bytes) noexcept { this->add(bytes); }
  void on_free(stream_key const&, void*, std::size_t bytes) noexcept { this->remove(bytes); }
  void on_failure(stream_key const&, std::size_t) noexcept {}
};

} // namespace detail

/// Says that the work of a scope waits for something that is not memory, a queue or a network, until it is destroyed.
/// Move-only.
export class [[nodiscard]] waiting_mark {
public:
  waiting_mark(services_handle where, holder& unit) noexcept : where_{where}, unit_{&unit} {
    if (where_.table->on_holder_event) where_.table->on_holder_event(where_.state, unit_, holder_event::waits);
  }
  waiting_mark(waiting_mark&& other) noexcept : where_{other.where_}, unit_{std::exchange(other.unit_, nullptr)} {}
  waiting_mark& operator=(waiting_mark&&) = delete;
  ~waiting_mark() {
    if (unit_ && where_.table->on_holder_event)
      where_.table->on_holder_event(where_.state, unit_, holder_event::resumes);
  }

private:
  services_handle where_;
  holder* unit_;
};

/// A resource through which a unit of work, a batch or a query, gets its memory from `upstream`, usually a pool that
/// others share. The pool then knows what the work holds, and serves the requests of older scopes first: those that
/// have begun can end, and free what they hold. A scope is one line of work: while a request of it waits it frees
/// nothing. Work that has several lines needs a scope for each.
///
/// Work that waits frees nothing. Where an older request waits as well, and could be met with what younger requests
/// hold whose work can be rolled back (see with_retry), these end with outcome::preempted, one after the other, the
/// youngest first. Where all memory of a pool is held by scopes whose requests wait, and none can be rolled back, the
/// youngest request of a scope that holds memory ends with outcome::stalled. Memory that was not got through a scope
/// counts as held by work that goes on, until nothing has been granted or freed for the pool's `stall_timeout`. Then a
/// request ends in the same way; where no scope whose request waits holds memory, the first in line.
///
/// The upstream must live as long as the scope or a block of it, also where it is a pool_ref. A handle; see
/// adaptor_base. Any thread.
export template <mr::resource Upstream>
class scope : public adaptor_base<scope<Upstream>, detail::scope_state<Upstream>, Upstream> {
  using base = adaptor_base<scope, detail::scope_state<Upstream>, Upstream>;

public:
  /// As old as its making. `name` is in reports. Throws std::bad_alloc.
  explicit scope(Upstream upstream, std::string name = "scope", scope_options const& options = {})
      : base{new detail::scope_state<Upstream>{std::move(upstream), std::move(name), options}} {}

  std::string const& name() const noexcept { return this->shared().name(); }
  /// Requested bytes that it holds.
  std::size_t held() const noexcept { return this->shared().held(); }

  /// While the mark lives the pool counts the scope as one that frees nothing, as if a request of it waited: for work
  /// that waits for other work, and for memory that is kept for long, as a model's weights. The mark must die before
  /// the scope's last handle.
  waiting_mark waiting_elsewhere() const noexcept { return {this->services(), this->shared()}; }

  /// The scope as its pool sees it; with_retry uses it.
  holder& as_holder() const noexcept { return this->shared(); }
};

} // namespace gpumem
