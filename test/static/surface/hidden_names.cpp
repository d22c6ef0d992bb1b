// Names that `import gpumem;` does not show: each of these lines must fail to compile. CMake gives the number of one;
// line 0 compiles.
// SPDX-License-Identifier: Apache-2.0
import gpumem;

#if LINE == 0
using user = gpumem::pool_ref;
#elif LINE == 1
using of_cuda = CUstream;
#elif LINE == 2
using of_authors = gpumem::waiter;
#elif LINE == 3
using of_driver = gpumem::driver_table;
#elif LINE == 4
using of_library = gpumem::sync::mutex;
#endif
