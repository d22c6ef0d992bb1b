// Every public name but what the pools are made of, named after `import gpumem;` alone.
// SPDX-License-Identifier: Apache-2.0
import gpumem;

namespace named {

// base
using gpumem::acquire_error;
using gpumem::check;
using gpumem::cuda_error;
using gpumem::current_device;
using gpumem::device;
using gpumem::device_memory;
using gpumem::device_ref;
using gpumem::driver;
using gpumem::driver_alive;
using gpumem::driver_available;
using gpumem::driver_calls;
using gpumem::driver_table;
using gpumem::event;
using gpumem::event_ref;
using gpumem::exhaustion;
using gpumem::expected;
using gpumem::failure;
using gpumem::identify;
using gpumem::out_of_memory;
using gpumem::outcome;
using gpumem::span;
using gpumem::sticky;
using gpumem::queueing;
using gpumem::stream;
using gpumem::stream_key;
using gpumem::stream_ref;
using gpumem::throw_cuda_error;
using gpumem::throw_failure;
using gpumem::to_string;
using gpumem::unexpect;
using gpumem::unexpected;
using gpumem::sync::clock;
using gpumem::sync::condition;
using gpumem::sync::duration;
using gpumem::sync::lock;
using gpumem::sync::mark;
using gpumem::sync::mutex;
using gpumem::sync::most_owners;
using gpumem::sync::no_number;
using gpumem::sync::now;
using gpumem::sync::owned_mutex;
using gpumem::sync::quick_condition;
using gpumem::sync::quick_lock;
using gpumem::sync::quick_mutex;
using gpumem::sync::sleep_for;
using gpumem::sync::thread;
using gpumem::sync::thread_number;
using gpumem::sync::time_point;

// CCCL's vocabulary
using gpumem::mr::any_resource;
using gpumem::mr::any_synchronous_resource;
using gpumem::mr::device_accessible;
using gpumem::mr::dynamic_accessibility_property;
using gpumem::mr::dynamic_resource_cast;
using gpumem::mr::forward_property;
using gpumem::mr::get_memory_resource;
using gpumem::mr::get_memory_resource_t;
using gpumem::mr::has_property;
using gpumem::mr::has_property_with;
using gpumem::mr::host_accessible;
using gpumem::mr::make_any_resource;
using gpumem::mr::make_shared_resource;
using gpumem::mr::memory_resource_base;
using gpumem::mr::properties_list;
using gpumem::mr::property_with_value;
using gpumem::mr::resource;
using gpumem::mr::resource_cast;
using gpumem::mr::resource_ref;
using gpumem::mr::resource_with;
using gpumem::mr::shared_resource;
using gpumem::mr::synchronous_resource;
using gpumem::mr::synchronous_resource_adapter;
using gpumem::mr::synchronous_resource_ref;
using gpumem::mr::synchronous_resource_with;

// the driver's own names that appear in signatures
using ::CUcontext;
using ::CUdevice;
using ::CUdeviceptr;
using ::CUevent;
using ::CUgraph;
using ::CUresult;
using ::CUstream;
using ::CUstreamCaptureMode;

// core
using gpumem::acquire;
using gpumem::acquire_awaitable;
using gpumem::acquire_operation;
using gpumem::acquire_options;
using gpumem::allocation;
using gpumem::any_pool;
using gpumem::executor;
using gpumem::executor_adaptor;
using gpumem::figures;
using gpumem::figures_of;
using gpumem::grant_hook;
using gpumem::inline_executor;
using gpumem::library_executor;
using gpumem::lifetime;
using gpumem::measured_state;
using gpumem::block_event;
using gpumem::describe;
using gpumem::misuse;
using gpumem::misuse_handler;
using gpumem::never_stop_token;
using gpumem::pool_ref;
using gpumem::report_misuse;
using gpumem::resource_base;
using gpumem::resource_state;
using gpumem::resumption;
using gpumem::resumption_job;
using gpumem::resumption_queue;
using gpumem::services;
using gpumem::services_handle;
using gpumem::services_of;
using gpumem::services_table;
using gpumem::set_misuse_handler;
using gpumem::state_handle;
using gpumem::stop_callback_t;
using gpumem::stoppable_token;
using gpumem::stream_use;
using gpumem::thread_executor;
using gpumem::thread_pool_executor;
using gpumem::trim;
using gpumem::trimmable_state;
using gpumem::called_waiters;
using gpumem::waiter;
using gpumem::waiter_list;
using gpumem::waiting_state;

// coroutines
using gpumem::await_result_t;
using gpumem::awaitable;
using gpumem::awaiter;
using gpumem::completion;
using gpumem::completion_awaitable;
using gpumem::completion_operation;
using gpumem::completion_options;
using gpumem::completion_rounds;
using gpumem::latency;
using gpumem::sync_wait;
using gpumem::task;
using gpumem::when_all;
using gpumem::when_all_awaitable;

// observe
using gpumem::format_row;
using gpumem::trace_action;
using gpumem::trace_error;
using gpumem::trace_header;
using gpumem::trace_reader;
using gpumem::trace_record;
using gpumem::trace_row;
using gpumem::trace_writer;

// sources
using gpumem::async_managed_resource;
using gpumem::async_options;
using gpumem::async_pinned_resource;
using gpumem::async_resource;
using gpumem::async_resource_view;
using gpumem::cuda_resource;
using gpumem::driver_pool_usage;
using gpumem::export_handle;
using gpumem::host_resource;
using gpumem::managed_resource;
using gpumem::pinned_resource;

// pools
using gpumem::block_info;
using gpumem::pool_options;
using gpumem::pool_resource;
using gpumem::reuse;

// adaptors
using gpumem::adaptor_base;
using gpumem::counter;
using gpumem::log_sink;
using gpumem::logging_adaptor;
using gpumem::statistics;
using gpumem::statistics_adaptor;

// containers
using gpumem::any_memory;
using gpumem::buffer;
using gpumem::current_resource;
using gpumem::format_bytes;
using gpumem::make_any_memory;
using gpumem::parse_bytes;
using gpumem::percent_of_free_device_memory;
using gpumem::polymorphic_allocator;
using gpumem::reset_current_resource;
using gpumem::scalar;
using gpumem::scoped_current_resource;
using gpumem::set_current_resource;
using gpumem::stream_allocator;
using gpumem::stream_pool;
using gpumem::uninitialized_vector;
using gpumem::operator""_GiB;
using gpumem::operator""_KiB;
using gpumem::operator""_MiB;
using gpumem::operator""_TiB;
using gpumem::literals::operator""_KiB;

} // namespace named

// Concepts are named by being used.
static_assert(gpumem::awaitable<gpumem::task<int>>);
static_assert(gpumem::stoppable_token<gpumem::never_stop_token>);
