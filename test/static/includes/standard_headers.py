# A table of standard headers, with a pattern of the names that each declares. Several headers may declare one name.
# SPDX-License-Identifier: Apache-2.0

# Macros of C and POSIX: no module exports them.
MACROS = {
    "cassert": r"assert",
    "cerrno": r"errno|E(2BIG|AGAIN|BUSY|EXIST|INTR|INVAL|IO|NOENT|NOMEM|NOSYS|PERM|RANGE)",
    "cfloat": r"(FLT|DBL|LDBL)_(DIG|EPSILON|MANT_DIG|MAX|MIN)",
    "cinttypes": r"(PRI|SCN)[diouxX](\d+|MAX|PTR)",
    "climits": r"CHAR_BIT|(S?CHAR|SHRT|INT|LONG|LLONG)_(MIN|MAX)|(UCHAR|USHRT|UINT|ULONG|ULLONG|SSIZE)_MAX|PATH_MAX",
    "clocale": r"LC_\w+",
    "cmath": r"INFINITY|NAN|HUGE_VALF?|M_(E|PI)",
    "csignal": r"SIG(ABRT|ALRM|BUS|FPE|HUP|ILL|INT|KILL|PIPE|SEGV|STOP|TERM|USR1|USR2|_DFL|_IGN|_ERR)",
    "cstdarg": r"va_(list|start|end|arg|copy)",
    "cstddef": r"offsetof|NULL",
    "cstdint": r"SIZE_MAX|PTRDIFF_(MIN|MAX)|U?INT(_LEAST|_FAST)?(8|16|32|64|PTR|MAX)_(MIN|MAX|C)",
    "cstdio": r"stdin|stdout|stderr|EOF|BUFSIZ|SEEK_(CUR|END|SET)|FILENAME_MAX",
    "cstdlib": r"EXIT_(SUCCESS|FAILURE)|RAND_MAX",
    "ctime": r"CLOCKS_PER_SEC|CLOCK_(REALTIME|MONOTONIC|PROCESS_CPUTIME_ID|THREAD_CPUTIME_ID)",
    "dlfcn.h": r"RTLD_\w+",
    "fcntl.h": r"O_(RDONLY|WRONLY|RDWR|CREAT|EXCL|TRUNC|APPEND|CLOEXEC|NONBLOCK)|FALLOC_FL_\w+|[FS]_(GETFD|SETFD)",
    "linux/futex.h": r"FUTEX_\w+",
    "linux/membarrier.h": r"MEMBARRIER_CMD_\w+",
    "sched.h": r"CPU_(ZERO|SET|ISSET|CLR|COUNT|SETSIZE)",
    "sys/mman.h": r"(PROT|MAP|MADV|MFD|MREMAP)_[A-Z_]+",
    "sys/prctl.h": r"PR_[A-Z_]+",
    "sys/resource.h": r"RLIMIT_[A-Z]+|RUSAGE_[A-Z]+",
    "sys/syscall.h": r"(SYS|__NR)_\w+",
    "sys/wait.h": r"W(IFEXITED|EXITSTATUS|IFSIGNALED|TERMSIG|NOHANG)",
    "unistd.h": r"STD(IN|OUT|ERR)_FILENO|_SC_\w+",
}

# The names after `std::`. For a nested namespace only its name counts, except for `ranges`, whose members count.
STD = {
    "algorithm": r"(ranges::)?(adjacent_find|all_of|any_of|binary_search|clamp|copy(_if|_n)?|count(_if)?|equal|"
                 r"fill(_n)?|find(_if)?|for_each|generate|includes|is_sorted|lower_bound|(max|min|minmax)(_element)?|"
                 r"none_of|nth_element|partition|remove(_if)?|replace|reverse|rotate|search|shuffle|(stable_)?sort|"
                 r"transform|unique|upper_bound)",
    "array": r"array|get|tuple_(size|element)",
    "atomic": r"atomic(_ref|_flag)?|memory_order(_\w+)?|atomic_(signal|thread)_fence",
    "barrier": r"barrier",
    "bit": r"bit_(cast|ceil|floor|width)|count[lr]_(one|zero)|endian|has_single_bit|popcount|rot[lr]",
    "charconv": r"chars_format|from_chars(_result)?|to_chars(_result)?",
    "chrono": r"chrono(_literals)?|micro|milli|nano",
    "clocale": r"setlocale",
    "cmath": r"abs|ceil|cos|exp2?|floor|fmod|isfinite|isinf|isnan|l?lround|log(2|10|1p)?|pow|round|signbit|sin|sqrt",
    "concepts": r"assignable_from|constructible_from|convertible_to|copyable|copy_constructible|default_initializable|"
                r"derived_from|destructible|(signed_|unsigned_)?integral|floating_point|invocable|movable|"
                r"move_constructible|predicate|regular|regular_invocable|same_as|semiregular|swappable",
    "condition_variable": r"condition_variable(_any)?|cv_status",
    "coroutine": r"coroutine_(handle|traits)|noop_coroutine|suspend_(always|never)",
    "csignal": r"raise|signal|sig_atomic_t",
    "cstddef": r"byte|max_align_t|nullptr_t|ptrdiff_t|size_t|to_integer",
    "cstdint": r"u?int(_least|_fast)?(8|16|32|64)_t|u?int(ptr|max)_t",
    "cstdio": r"FILE|f(close|error|flush|open|printf|puts|read|seek|tell|write)|printf|puts|remove|rename|s?scanf|"
              r"size_t|snprintf|tmpfile",
    "cstdlib": r"_Exit|abort|abs|aligned_alloc|at_quick_exit|atexit|ato[fil]|exit|free|getenv|malloc|quick_exit|"
               r"realloc|size_t|strto\w+|system",
    "cstring": r"size_t|mem(chr|cmp|cpy|move|set)|str(chr|cmp|error|len|ncmp|rchr|str)",
    "ctime": r"clock|gmtime|localtime|size_t|strftime|time|time_t|timespec|tm",
    "deque": r"deque|erase(_if)?",
    "forward_list": r"forward_list|erase(_if)?",
    "exception": r"current_exception|exception|exception_ptr|make_exception_ptr|rethrow_exception|set_terminate|"
                 r"terminate|uncaught_exceptions",
    "filesystem": r"filesystem",
    "fstream": r"[io]?fstream|ios|istream|ostream|streamsize",
    "functional": r"equal_to|function|greater(_equal)?|hash|invoke|less(_equal)?|minus|plus|reference_wrapper|c?ref",
    "future": r"async|future|launch",
    "initializer_list": r"initializer_list",
    "ios": r"ios|ios_base|streamsize|fixed|hex",
    "iosfwd": r"istream|ostream|ios",
    "iostream": r"cerr|cin|clog|cout|ios|istream|ostream|streamsize",
    "istream": r"ios|istream|streamsize",
    "iterator": r"advance|(back_)?inserter|begin|data|default_sentinel(_t)?|distance|empty|end|input_iterator|"
                r"istreambuf_iterator|istream_iterator|iterator_traits|next|ostream_iterator|prev|reverse_iterator|"
                r"s?size|\w+_iterator_tag|sentinel_for",
    "latch": r"latch",
    "limits": r"numeric_limits",
    "list": r"list|erase(_if)?",
    "locale": r"locale|numpunct",
    "map": r"(multi)?map|erase_if",
    "memory": r"addressof|align|allocator(_traits)?|assume_aligned|construct_at|default_delete|destroy(_at|_n)?|"
              r"enable_shared_from_this|make_shared|make_unique|pointer_traits|shared_ptr|to_address|"
              r"uninitialized_\w+|unique_ptr|weak_ptr",
    "mutex": r"(recursive_|timed_)?mutex|adopt_lock(_t)?|call_once|defer_lock|lock|lock_guard|once_flag|scoped_lock|"
             r"try_to_lock(_t)?|unique_lock",
    "new": r"align_val_t|bad_alloc|bad_array_new_length|hardware_\w+|launder|nothrow(_t)?|set_new_handler",
    "numeric": r"accumulate|exclusive_scan|gcd|inclusive_scan|inner_product|iota|lcm|midpoint|partial_sum|reduce|"
               r"transform_reduce",
    "optional": r"bad_optional_access|in_place|make_optional|nullopt(_t)?|optional",
    "ostream": r"endl|flush|ios|ostream|streamsize",
    "queue": r"(priority_)?queue",
    "random": r"\w+_distribution|minstd_rand|mt19937(_64)?|random_device|seed_seq",
    "ranges": r"views|ranges::(begin|data|empty|end|iota_view|size|subrange|\w*range|range_\w+|view\w*)",
    "ratio": r"atto|femto|giga|kilo|mega|micro|milli|nano|pico|ratio",
    "set": r"(multi)?set|erase_if",
    "span": r"as_(writable_)?bytes|dynamic_extent|span",
    "sstream": r"[io]?stringstream|ios|istream|ostream|streamsize",
    "stdexcept": r"domain_error|invalid_argument|length_error|logic_error|out_of_range|overflow_error|range_error|"
                 r"runtime_error|underflow_error",
    "stop_token": r"nostopstate|stop_(callback|source|token)",
    "streambuf": r"streambuf",
    "string": r"basic_string|char_traits|erase(_if)?|getline|sto(d|i|l|ul|ll|ull)|string|string_literals|to_string",
    "string_view": r"string_view|string_view_literals",
    "system_error": r"errc|error_(category|code|condition)|(generic|system)_category|make_error_(code|condition)|"
                    r"system_error",
    "thread": r"jthread|this_thread|thread",
    "tuple": r"apply|forward_as_tuple|get|ignore|make_from_tuple|make_tuple|tie|tuple|tuple_(cat|element|size)",
    "type_traits": r"(add|remove)_(const|cv|cvref|extent|lvalue_reference|pointer|reference)(_t)?|aligned_storage_t|"
                   r"bool_constant|common_type(_t)?|conditional(_t)?|conjunction_v|decay(_t)?|disjunction_v|"
                   r"enable_if(_t)?|extent_v|false_type|has_\w+_v|integral_constant|invoke_result(_t)?|is_\w+_v|"
                   r"is_constant_evaluated|is_(function|same|void)|make_(un)?signed(_t)?|negation_v|true_type|"
                   r"type_identity(_t)?|underlying_type(_t)?|void_t",
    "typeinfo": r"type_info",
    "unordered_map": r"unordered_(multi)?map|erase_if",
    "unordered_set": r"unordered_(multi)?set|erase_if",
    "utility": r"as_const|cmp_\w+|declval|exchange|forward|get|in_place(_t|_type|_index)?|in_range|index_sequence\w*|"
               r"integer_sequence|make_(index|integer)_sequence|make_pair|move|pair|piecewise_construct|swap|"
               r"tuple_(element|size)|unreachable",
    "variant": r"get(_if)?|holds_alternative|in_place_(type|index)|monostate|variant|visit",
    "vector": r"erase(_if)?|vector",
}
