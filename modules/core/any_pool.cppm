// Erased resources that keep gpumem's services, and the makers of them.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:any_pool;
import :cuda;
import :services;

export namespace gpumem {

/// An owning, erased, device-accessible resource with gpumem's services; `acquire`, `trim` and `statistics_of` work on
/// it and on what is narrowed from it. Never empty, unless moved from; copying it may allocate on the host. A unit that
/// includes CCCL's headers, imports gpumem and asks for a property with try_get_property includes
/// <gpumem/services.hpp>.
using gpumem::any_pool;

/// The same without ownership: 16 bytes; what it refers to must outlive it.
using gpumem::pool_ref;

} // namespace gpumem
