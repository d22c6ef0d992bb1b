# Debug information in every kind of build: gdb's printers, and the types that users see and the printers read.
# Included by modules/CMakeLists.txt, whose folder the properties of the files belong to.
# SPDX-License-Identifier: Apache-2.0

# clang describes a class of a named module only where it compiles the interface, never in a program that imports it.
# With a reduced BMI it does not do so there either: it describes what the functions of that one file use. So these
# interfaces are compiled with -g and have full BMIs. They make a program's file 2 MiB larger; nothing of it is loaded.
# device.cppm is not among them: its object would hold the path of a header of CCCL, in spite of -fmacro-prefix-map. So the
# printers read a device without its type.
option(GPUMEM_DEBUG_TYPES "Describe the library's types to debuggers, in Release builds too" ON)
set(GPUMEM_DESCRIBED "")
if(GPUMEM_DEBUG_TYPES AND NOT GPUMEM_SANITIZE AND NOT GPUMEM_PARTITIONS)
  set(GPUMEM_DESCRIBED "${CMAKE_CURRENT_BINARY_DIR}/gpumem/gpumem.cppm")
elseif(GPUMEM_DEBUG_TYPES AND NOT GPUMEM_SANITIZE)
  set(GPUMEM_DESCRIBED
    base/error.cppm
    base/stream_identity.cppm
    base/stream_epochs.cppm
    base/stream_timeline.cppm
    base/stream.cppm
    base/event.cppm
    core/executor.cppm
    core/thread_pool_executor.cppm
    core/executor_adaptor.cppm
    core/allocation.cppm
    core/acquire_options.cppm
    observe/trace.cppm
    sources/cuda_resource.cppm
    sources/managed_resource.cppm
    sources/pinned_resource.cppm
    sources/host_resource.cppm
    sources/system_resource.cppm
    sources/callback_resource.cppm
    sources/prefetch.cppm
    sources/async_options.cppm
    sources/async_resource.cppm
    sources/async_resource_view.cppm
    sources/async_managed_resource.cppm
    sources/async_managed_resource_view.cppm
    sources/async_pinned_resource.cppm
    sources/async_pinned_resource_view.cppm
    sources/page_table.cppm
    sources/page_mapper.cppm
    sources/virtual_pages.cppm
    pools/ranges/block.cppm
    pools/ranges/chunk.cppm
    pools/shards/peak_tracker.cppm
    pools/shards/pool_shard.cppm
    pools/shards/shard_list.cppm
    pools/backend/chunk_list.cppm
    pools/backend/backend_parts.cppm
    pools/backend/pool_backend.cppm
    pools/parts/pool_parts.cppm
    pools/engine/block_info.cppm
    pools/engine/pool_engine.cppm
    pools/pool_base.cppm
    pools/fixed_size_resource.cppm
    pools/arena_resource.cppm
    pools/monotonic_resource.cppm
    pools/binning_resource.cppm
    adaptors/statistics_adaptor.cppm
    adaptors/logging_adaptor.cppm
    adaptors/limiting_adaptor.cppm
    adaptors/failing_adaptor.cppm
    adaptors/prefetch_adaptor.cppm
    adaptors/aligned_adaptor.cppm
    adaptors/failure_callback_adaptor.cppm
    adaptors/tracking_adaptor.cppm
    adaptors/scope.cppm
    containers/stream_pool.cppm
    containers/current_resource.cppm
    containers/buffer.cppm
    coroutines/completion.cppm)
  list(TRANSFORM GPUMEM_DESCRIBED PREPEND "${PROJECT_SOURCE_DIR}/modules/")
endif()

# Gives the files of the library's target their options; called after gpumem_add_module_library().
function(gpumem_add_debug_information)
  # In a release no path of this machine: neither of the project nor of the headers.
  set(maps -fdebug-compilation-dir=.)
  foreach(folder IN ITEMS "${PROJECT_BINARY_DIR}" "${PROJECT_SOURCE_DIR}" "${GPUMEM_CUDA_INCLUDE_DIR}" "${GPUMEM_CCCL_INCLUDE_DIR}")
    list(APPEND maps "-fdebug-prefix-map=${folder}/=")
  endforeach()
  set(options "$<$<CONFIG:Release>:${maps}>")
  if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 22)
    list(APPEND options -fno-modules-reduced-bmi)
  endif()
  set_property(SOURCE ${GPUMEM_DESCRIBED} APPEND PROPERTY COMPILE_OPTIONS -g "${options}")
  set(carrier "${PROJECT_SOURCE_DIR}/src/base/debugging.cpp" "${CMAKE_CURRENT_BINARY_DIR}/gpumem/base.debugging.cpp")
  set_property(SOURCE ${carrier} APPEND PROPERTY COMPILE_OPTIONS "-I${PROJECT_SOURCE_DIR}/src/base")
  set_property(SOURCE ${carrier} APPEND PROPERTY OBJECT_DEPENDS "${PROJECT_SOURCE_DIR}/src/base/gdb_printers.py")
endfunction()
