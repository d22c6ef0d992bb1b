// The attributes of clang's thread-safety analysis: which lock guards a member, and which locks a function needs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef __clang__
#define GPUMEM_LOCK_ATTRIBUTE(...) __attribute__((__VA_ARGS__))
#else
#define GPUMEM_LOCK_ATTRIBUTE(...)
#endif

#define GPUMEM_CAPABILITY(kind) GPUMEM_LOCK_ATTRIBUTE(capability(kind)) // a class of locks
#define GPUMEM_SCOPED_LOCK GPUMEM_LOCK_ATTRIBUTE(scoped_lockable)       // a class whose objects hold a lock

#define GPUMEM_GUARDED_BY(lock) GPUMEM_LOCK_ATTRIBUTE(guarded_by(lock))

// The caller of the function holds these locks, or one of the locks of a role; or it holds none of them.
#define GPUMEM_REQUIRES(...) GPUMEM_LOCK_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define GPUMEM_REQUIRES_SHARED(...) GPUMEM_LOCK_ATTRIBUTE(requires_shared_capability(__VA_ARGS__))
#define GPUMEM_EXCLUDES(...) GPUMEM_LOCK_ATTRIBUTE(locks_excluded(__VA_ARGS__))

// The function locks or unlocks these locks; without an argument, the object itself.
#define GPUMEM_ACQUIRES(...) GPUMEM_LOCK_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define GPUMEM_ACQUIRES_SHARED(...) GPUMEM_LOCK_ATTRIBUTE(acquire_shared_capability(__VA_ARGS__))
#define GPUMEM_TRY_ACQUIRES(...) GPUMEM_LOCK_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define GPUMEM_RELEASES(...) GPUMEM_LOCK_ATTRIBUTE(release_capability(__VA_ARGS__))

// The analysis takes for granted that these locks are held.
#define GPUMEM_ASSERTS(...) GPUMEM_LOCK_ATTRIBUTE(assert_capability(__VA_ARGS__))
#define GPUMEM_ASSERTS_SHARED(...) GPUMEM_LOCK_ATTRIBUTE(assert_shared_capability(__VA_ARGS__))

#define GPUMEM_NO_LOCK_ANALYSIS GPUMEM_LOCK_ATTRIBUTE(no_thread_safety_analysis)
