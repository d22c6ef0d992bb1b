// The table of contents: every partition, from the ground up.
// SPDX-License-Identifier: Apache-2.0
export module gpumem;

import :std; // for the others: not exported
export import :cuda;
export import :fork;
export import :driver;
export import :sync;
export import :coroutine;
export import :error;
export import :device;
export import :timeline;
export import :hash;
export import :timeline_registry;
export import :timeline_table;
export import :stream;
export import :event;

export import :misuse;
export import :executor;
export import :thread_pool_executor;
export import :executor_adaptor;
export import :suspension;
export import :waiter;
export import :lifetime;
export import :services;
export import :allocation;
export import :stop_token;
export import :acquire;
export import :resource;
export import :any_pool;

export import :trace;

export import :source_state;
export import :device_source;
export import :cuda_resource;
export import :managed_resource;
export import :pinned_resource;
export import :host_resource;
export import :async_options;
export import :driver_pool;
export import :async_resource;
export import :async_resource_view;
export import :async_managed_resource_view;
export import :async_pinned_resource_view;
export import :async_managed_resource;
export import :async_pinned_resource;
export import :virtual_pages;

export import :tags;
export import :relaxed;
export import :block;
export import :records;
export import :block_table;
export import :size_bins;
export import :time_budget;
export import :size_class;
export import :spans;
export import :shelf;
export import :ranges;
export import :chunks;
export import :live_meter;
export import :shards;
export import :credit;
export import :cabinet;
export import :recent_blocks;
export import :magazines;
export import :pool_order;
export import :pool_request;
export import :page_growth;
export import :pool_ladder;
export import :pool_supply;
export import :leftover;
export import :pool_engine;
export import :pattern;
export import :block_history;
export import :guarded_block;
export import :quarantine;
export import :hardening;
export import :pool_resource;

export import :adaptor_base;
export import :statistics_adaptor;
export import :logging_adaptor;

export import :bytes;
export import :stream_pool;
export import :current_resource;
export import :any_memory;
export import :stream_work;
export import :buffer;
export import :uninitialized_vector;
export import :scalar;
export import :polymorphic_allocator;
export import :stream_allocator;

export import :awaitable;
export import :coroutine_result;
export import :task;
export import :joined;
export import :sync_wait;
export import :when_all;
export import :lane;
export import :reactor;
export import :completion;
