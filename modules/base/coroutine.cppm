// The names that a translation unit needs in scope to define a coroutine, so that `import gpumem;` is enough.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
export module gpumem:coroutine;

// A module that only includes <coroutine> in its global fragment leaves the importer without these declarations.
export namespace std {
using std::coroutine_handle;
using std::coroutine_traits;
using std::noop_coroutine;
using std::suspend_always;
using std::suspend_never;
} // namespace std
