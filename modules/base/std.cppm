// The names of the standard library that the interfaces use, in one unit. A header that each interface included would
// be written into each compiled module (BMI) and merged again by each importer. That takes long in clang, by design
// (llvm-project#97239). Remove this unit when all supported compilers have `import std` in C++20.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>
export module gpumem:std;
import :namespaces;

// Exports no operators, and no functions that classes of the standard library declare as friends: clang 19 to 21 reject
// such a friend if its name is also exported (llvm-project#156604). Remove this rule when clang >= 22 is required.
export namespace std {

using std::byte;
using std::int64_t;
using std::ptrdiff_t;
using std::size_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;
using std::uintptr_t;

using std::array;
using std::nullopt;
using std::optional;
using std::unique_ptr;
using std::enable_shared_from_this;
using std::function;
using std::shared_ptr;
using std::span;
using std::adopt_lock;
using std::adopt_lock_t;
using std::try_to_lock_t;
using std::unique_lock;
using std::vector;
using std::monostate;
using std::reference_wrapper;

using std::atomic;
using std::atomic_flag;
using std::atomic_signal_fence;
using std::memory_order_acq_rel;
using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;
using std::memory_order_seq_cst;

using std::addressof;
using std::bit_cast;
using std::bit_width;
using std::countr_one;
using std::countr_zero;
using std::declval;
using std::exchange;
using std::forward;
using std::has_single_bit;
using std::make_unique;
using std::max;
using std::min;
using std::move;

using std::constructible_from;
using std::convertible_to;
using std::copyable;
using std::invocable;
using std::same_as;
using std::conditional_t;
using std::false_type;
using std::is_const_v;
using std::is_nothrow_invocable_v;
using std::is_object_v;
using std::is_rvalue_reference_v;
using std::is_trivially_copyable_v;
using std::is_void_v;
using std::numeric_limits;
using std::remove_cvref_t;
using std::true_type;

using std::bad_alloc;
using std::bad_array_new_length;
using std::current_exception;
using std::exception_ptr;
using std::invalid_argument;
using std::logic_error;
using std::out_of_range;
using std::overflow_error;
using std::rethrow_exception;
using std::terminate;
using std::runtime_error;

} // namespace std

// Exports the operators of the standard library's iterators, because templates of the interfaces use them in dependent
// expressions. The standard does not keep a declaration of the global module fragment that only such expressions use.
// Reduced BMIs then lack it; llvm-project#60488 shows the error. From release 16 on, libstdc++ declares them in the
// iterators' classes, where they are kept.
#if !defined(_GLIBCXX_RELEASE)
#error "gpumem needs libstdc++: compile with -stdlib=libstdc++"
#elif _GLIBCXX_RELEASE < 16
export namespace __gnu_cxx {
using __gnu_cxx::operator==;
using __gnu_cxx::operator<=>;
using __gnu_cxx::operator-;
using __gnu_cxx::operator+;
} // namespace __gnu_cxx
#endif
