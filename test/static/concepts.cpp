// Compile-time checks: which types satisfy each concept and which do not, sizes, and moves that do not throw.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <new>
#include <stop_token>
#include <type_traits>

import gpumem;

namespace {

using gpumem::device;
using gpumem::expected;
using gpumem::failure;
using gpumem::extend::stream_key;

// The minimum that the author of a resource writes.
struct least_state {
  expected<void*, failure> try_allocate(stream_key const&, std::size_t, std::size_t) noexcept;
  void deallocate(stream_key const&, void*, std::size_t, std::size_t) noexcept;
  device where() noexcept;
};
static_assert(gpumem::extend::resource_state<least_state>);
static_assert(!gpumem::extend::waiting_state<least_state>);
static_assert(!gpumem::extend::trimmable_state<least_state>);
static_assert(!gpumem::extend::reporting_state<least_state>);

struct throwing_free : least_state {
  void deallocate(stream_key const&, void*, std::size_t, std::size_t);
};
struct throwing_allocation : least_state {
  expected<void*, failure> try_allocate(stream_key const&, std::size_t, std::size_t);
};
struct plain_pointer : least_state {
  void* try_allocate(stream_key const&, std::size_t, std::size_t) noexcept;
};
struct takes_a_stream : least_state {
  expected<void*, failure> try_allocate(gpumem::stream_ref, std::size_t, std::size_t) noexcept;
};
struct nowhere {
  expected<void*, failure> try_allocate(stream_key const&, std::size_t, std::size_t) noexcept;
  void deallocate(stream_key const&, void*, std::size_t, std::size_t) noexcept;
};
static_assert(!gpumem::extend::resource_state<throwing_free>);
static_assert(!gpumem::extend::resource_state<throwing_allocation>);
static_assert(!gpumem::extend::resource_state<plain_pointer>);
static_assert(!gpumem::extend::resource_state<takes_a_stream>);
static_assert(!gpumem::extend::resource_state<nowhere>);
static_assert(!gpumem::extend::resource_state<int>);

struct full_state : least_state {
  bool admit(gpumem::extend::waiter&) noexcept;
  bool cancel_waiter(gpumem::extend::waiter&) noexcept;
  std::size_t trim(std::size_t);
  gpumem::statistics read_statistics();
};
static_assert(gpumem::extend::waiting_state<full_state>);
static_assert(gpumem::extend::trimmable_state<full_state>);
static_assert(gpumem::extend::reporting_state<full_state>);

struct admits_only : least_state {
  bool admit(gpumem::extend::waiter&) noexcept;
};
struct throwing_withdraw : full_state {
  bool cancel_waiter(gpumem::extend::waiter&);
};
static_assert(!gpumem::extend::waiting_state<admits_only>);
static_assert(!gpumem::extend::waiting_state<throwing_withdraw>);

// Tokens.
struct foreign_token {
  template <class Function> struct callback_type {
    callback_type(foreign_token, Function);
  };
  bool stop_requested() const noexcept;
  bool stop_possible() const noexcept;
};
struct throwing_token {
  bool stop_requested() const;
  bool stop_possible() const noexcept;
};
struct move_only_token : foreign_token {
  move_only_token(move_only_token&&) = default;
};
static_assert(gpumem::extend::stoppable_token<std::stop_token>);
static_assert(gpumem::extend::stoppable_token<gpumem::extend::never_stop_token>);
static_assert(gpumem::extend::stoppable_token<foreign_token>);
static_assert(!gpumem::extend::stoppable_token<throwing_token>);
static_assert(!gpumem::extend::stoppable_token<move_only_token>);
static_assert(!gpumem::extend::stoppable_token<int>);
static_assert(!gpumem::extend::stoppable_token<std::stop_source>);
struct nothing {
  void operator()() const noexcept {}
};
static_assert(std::same_as<gpumem::extend::stop_callback_t<std::stop_token, nothing>, std::stop_callback<nothing>>);
static_assert(
    std::same_as<gpumem::extend::stop_callback_t<foreign_token, nothing>, foreign_token::callback_type<nothing>>);

// Awaitables.
struct operation {
  bool await_ready() const noexcept;
  void await_suspend(std::coroutine_handle<>) const noexcept;
  int& await_resume() const noexcept;
};
struct by_member {
  operation operator co_await() const noexcept { return {}; }
};
struct by_function {};
[[maybe_unused]] operation operator co_await(by_function const&) noexcept { return {}; }
struct for_expiring_only {
  operation operator co_await() && noexcept { return {}; }
};
struct without_resume {
  bool await_ready() const noexcept;
  void await_suspend(std::coroutine_handle<>) const noexcept;
};
struct leads_nowhere {
  int operator co_await() const noexcept { return 0; }
};
static_assert(gpumem::extend::awaiter<operation> && gpumem::extend::awaitable<operation>);
static_assert(gpumem::extend::awaitable<by_member> && !gpumem::extend::awaiter<by_member>);
static_assert(gpumem::extend::awaitable<by_function> && gpumem::extend::awaitable<by_function const&>);
static_assert(gpumem::extend::awaitable<for_expiring_only> && !gpumem::extend::awaitable<for_expiring_only&>);
static_assert(!gpumem::extend::awaitable<without_resume> && !gpumem::extend::awaitable<leads_nowhere> &&
              !gpumem::extend::awaitable<int>);
static_assert(std::same_as<gpumem::extend::await_result_t<by_member>, int&>);
static_assert(std::same_as<gpumem::extend::await_result_t<gpumem::task<int>>, int>);
static_assert(std::same_as<gpumem::extend::await_result_t<gpumem::task<int>&>, int&>);
static_assert(std::same_as<gpumem::extend::await_result_t<gpumem::task<int&>>, int&>);
static_assert(std::is_void_v<gpumem::extend::await_result_t<gpumem::task<>>>);

// gpumem's own awaitables can be moved; the operations that they make cannot.
using request = gpumem::extend::acquire_awaitable<>;
using wait = gpumem::extend::completion_awaitable<>;
static_assert(gpumem::extend::awaitable<request> && gpumem::extend::awaitable<request const&>);
static_assert(gpumem::extend::awaitable<wait> && gpumem::extend::awaitable<wait const&>);
static_assert(std::copyable<wait> && std::is_nothrow_move_constructible_v<request>);
static_assert(std::same_as<gpumem::extend::await_result_t<request>, gpumem::allocation>);
static_assert(std::is_void_v<gpumem::extend::await_result_t<wait>>);
static_assert(!std::movable<gpumem::extend::acquire_operation<gpumem::extend::never_stop_token>>);
static_assert(!std::movable<gpumem::extend::completion_operation<gpumem::extend::never_stop_token>>);

// Executors.
static_assert(std::derived_from<gpumem::inline_executor, gpumem::executor>);
static_assert(std::derived_from<gpumem::thread_executor, gpumem::executor>);
static_assert(std::derived_from<gpumem::thread_pool_executor, gpumem::executor>);
static_assert(!std::copyable<gpumem::thread_executor> && !std::movable<gpumem::thread_executor>);
static_assert(!std::copyable<gpumem::extend::work_item>);

// Sizes, and moves.
static_assert(sizeof(gpumem::allocation) == 48);
static_assert(sizeof(gpumem::pool_ref) == 16);
static_assert(sizeof(gpumem::stream_ref) == 8);
static_assert(sizeof(device) == sizeof(void*));
template <class T>
constexpr bool moves_only = std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T> &&
                            !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
static_assert(moves_only<gpumem::allocation>);
static_assert(moves_only<gpumem::stream>);
static_assert(moves_only<gpumem::event>);
static_assert(moves_only<gpumem::task<int>>);
static_assert(std::is_nothrow_move_constructible_v<gpumem::scoped_use>);
static_assert(std::is_nothrow_copy_constructible_v<stream_key>);
static_assert(std::is_nothrow_copy_constructible_v<device>);
static_assert(std::derived_from<gpumem::out_of_memory, std::bad_alloc>);
static_assert(std::is_nothrow_copy_constructible_v<gpumem::out_of_memory>);
static_assert(std::is_nothrow_copy_constructible_v<gpumem::acquire_error>);

// Containers: their element types, the resources they accept, and their moves.
template <class T>
concept can_be_held = requires { typename gpumem::uninitialized_vector<T>; };
struct copied_by_hand {
  copied_by_hand(copied_by_hand const&);
};
static_assert(can_be_held<int> && can_be_held<device>);
static_assert(!can_be_held<copied_by_hand> && !can_be_held<int const> && !can_be_held<int&>);
template <class R>
concept gives_memory = requires(R resource) { gpumem::extend::make_any_memory(resource); };
static_assert(gives_memory<gpumem::cuda_resource> && gives_memory<gpumem::host_resource>);
static_assert(gives_memory<gpumem::any_pool> && gives_memory<gpumem::pool_ref> &&
              gives_memory<gpumem::extend::any_memory>);
static_assert(!gives_memory<int> && !gives_memory<gpumem::stream>);
static_assert(moves_only<gpumem::buffer>);
static_assert(moves_only<gpumem::uninitialized_vector<int>>);
static_assert(moves_only<gpumem::scalar<int>>);
static_assert(!std::copyable<gpumem::stream_pool> && !std::movable<gpumem::stream_pool>);
static_assert(!std::copyable<gpumem::scoped_current_resource> && !std::movable<gpumem::scoped_current_resource>);
static_assert(std::copyable<gpumem::polymorphic_allocator<int>> && std::copyable<gpumem::stream_allocator<int>>);
template <class A, class B>
concept compares_with = requires(A const& a, B const& b) {
  { a == b } -> std::convertible_to<bool>;
};
static_assert(compares_with<gpumem::polymorphic_allocator<int>, gpumem::polymorphic_allocator<char>>);
static_assert(compares_with<gpumem::stream_allocator<int>, gpumem::stream_allocator<char>>);
static_assert(std::constructible_from<gpumem::polymorphic_allocator<int>, gpumem::polymorphic_allocator<char>>);
static_assert(std::constructible_from<gpumem::stream_allocator<int>, gpumem::stream_allocator<char>>);

} // namespace
