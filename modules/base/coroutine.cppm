// The names that a translation unit needs in scope to define a coroutine, so that `import gpumem;` is enough.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
export module gpumem:coroutine;

// Clang through 22 and GCC look up these names where a coroutine is defined, so the importer must see them. No report
// of this to the compilers' authors is known. To reproduce it, include <coroutine> in the global fragment of a module
// `m` and export a coroutine type `task` from it. Then compile `import m; task f() { co_return; }`: the compiler asks
// for <coroutine>.
export namespace std {
using std::coroutine_handle;
using std::coroutine_traits;
using std::noop_coroutine;
using std::suspend_always;
using std::suspend_never;
} // namespace std
