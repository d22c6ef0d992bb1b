// One random program over a pool: its live blocks, which thread uses which stream, and its result. Include it after
// `import gpumem;`, the headers beside it and the standard's: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

namespace simulator = gpumem::simulator;
inline constexpr std::size_t MiB = std::size_t{1} << 20;

inline constexpr std::size_t loan_addresses = 24 * MiB;

struct live_block {
  void* pointer = nullptr;
  std::size_t bytes = 0;
  int home = 0;      // the block's stream; -1: the host
  int thread = -1;   // the only thread that may use it, since its stream handle means another stream to other threads
  bool read = false; // recorded uses read it, so no other work may write it before its free
};

// The memory of a program's pool: parts of a region, or pages of the device. Each class makes the pool and counts the
// memory that has not returned.
class region_memory {
public:
  using pool = gpumem::pool_resource<simulator::checked<region_upstream>>;
  static constexpr char const* growths = "growths";
  static constexpr char const* returns = "chunks given back";
  static constexpr bool lends = false;

  pool make(random_source& c, gpumem::pool_options options, std::uint64_t) {
    region_.base = fixed().region;
    if (!c.one_in(4)) options.limit = c.of({std::size_t{3}, std::size_t{5}, std::size_t{9}}) * MiB;
    region_.capacity = c.of({std::size_t{4}, std::size_t{6}, std::size_t{12}}) * MiB;
    region_.fail_every = c.one_in(3) ? 2 + static_cast<unsigned>(c.below(4)) : 0;
    if (c.one_in(4)) options.initial_size = 1 * MiB;
    return pool{simulator::checked{region_upstream{region_}}, options};
  }
  std::uint64_t offset(void const* p) const { return reinterpret_cast<std::uintptr_t>(p) - region_.base; }
  std::size_t outstanding() { return region_.drawn(); }
  static bool may_wait_for_host() { return true; }

private:
  region region_;
};

class page_memory {
public:
  using pool = gpumem::pool_resource<gpumem::cuda_resource>;
  static constexpr char const* growths = "growths by pages";
  static constexpr char const* returns = "runs of pages given back";
  static constexpr bool lends = true;

  // In one program of five the process has few addresses, so that the pool gets chunks too: 6 MiB beside the
  // borrower's.
  static constexpr std::size_t few_addresses = loan_addresses + 6 * MiB;
  static bool has_few_addresses(std::uint64_t seed) { return seed % 5 == 0; }

  pool make(random_source& c, gpumem::pool_options options, std::uint64_t seed) {
    before_ = simulator::report().bytes_allocated;
    if (!c.one_in(4)) options.limit = c.of({std::size_t{4}, std::size_t{6}, std::size_t{10}}) * MiB;
    options.effort = c.of({0., 0.05, 1.});
    if (c.one_in(4)) options.initial_size = 2 * MiB;
    unsigned const fail_every = c.one_in(3) ? 2 + static_cast<unsigned>(c.below(4)) : 0;
    auto const refuse_some = [fail_every, maps = 0u](void*, std::size_t) mutable {
      return fail_every == 0 || ++maps % fail_every != 0;
    };
    few_addresses_ = has_few_addresses(seed);
    if (few_addresses_) {
      options.initial_size = 0; // the borrower reserves its addresses first
      return pool{fixed().device, options};
    }
    return pool{fixed().device, options, {.address_space = 32 * MiB, .on_mapped = refuse_some}};
  }
  std::uint64_t offset(void const* p) const { return reinterpret_cast<std::uintptr_t>(p) % (2 * MiB); }
  std::size_t outstanding() { return simulator::report().bytes_allocated - before_; }
  // A free of a chunk by the driver waits for all work, so none may wait for a thread that waits for the pool.
  bool may_wait_for_host() const { return !few_addresses_; }

private:
  bool few_addresses_ = false;
  std::size_t before_ = 0;
};

// One program: a pool, its live blocks, and the streams that it makes and destroys.
template <class Memory> class random_program {
public:
  random_program(std::uint64_t seed, program_options const& how) : seed_{seed}, how_{how} {
    random_source c{seed};
    gpumem::pool_options options;
    if (c.one_in(4)) options.release_threshold = c.below(3) * 2 * MiB;
    options.cross_stream = c.one_in(7)   ? gpumem::reuse_policy::ordered
                           : c.one_in(6) ? gpumem::reuse_policy::completed
                                         : gpumem::reuse_policy::wait;
    for (auto which : {foreign_c, foreign_d}) {
      foreign_[which] = stream_fixtures::make_stream(c.one_in(2) ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT);
    }
    pool_.emplace(memory_.make(c, options, seed));
    checked_.emplace(*pool_);
    if constexpr (Memory::lends) lender_.emplace(*pool_, loan_addresses);
  }

  void body(int thread);
  program_result finish();

private:
  using pool = Memory::pool;
  using event_type = gpumem::event;
  struct actor {
    int thread;
    random_source random;
    event_type event{fixed().device};
  };

  auto& engine() { return static_cast<gpumem::detail::pool_state*>(pool_->services().state)->engine(); }
  void fail(std::string text) {
    std::scoped_lock const held{mutex_};
    if (result_.failure.empty()) result_.failure = std::move(text);
  }
  void note(std::uint64_t what) {
    std::scoped_lock const held{mutex_};
    trace_ = (trace_ ^ what) * 0x100000001b3u;
  }
  void count(char const* what) {
    std::scoped_lock const held{mutex_};
    ++result_.counts[what];
  }
  std::uint64_t offset(void const* p) const { return p ? memory_.offset(p) : ~std::uint64_t{0}; }
  cuda::stream_ref stream_of(int which) {
    auto& f = fixed();
    switch (which) {
    case own_a: return f.a;
    case own_b: return f.b;
    case spin: return f.spin;
    case adopted: return f.adopted;
    case legacy: return cuda::stream_ref{CU_STREAM_LEGACY};
    case null: return cuda::stream_ref{static_cast<CUstream>(nullptr)};
    case per_thread: return cuda::stream_ref{CU_STREAM_PER_THREAD};
    default: return cuda::stream_ref{foreign_[which]};
    }
  }

  // Marks a stream as used; a stream in use is not recycled.
  int enter(actor& self);
  void enter(int which);
  void leave(int which);
  std::optional<live_block> pick(actor& self);
  void put(live_block const& block);
  // Takes a block out of the list that only this thread may use.
  std::optional<live_block> take_own(std::vector<live_block>& from, int thread);

  void step(actor& self);
  void allocate(actor& self);
  void churn(actor& self);
  void allocate_by_host(actor& self);
  void use(actor& self);
  void free_at_home(actor& self);
  void free_elsewhere(actor& self);
  void free_by_identity(actor& self);
  void free_by_host(actor& self);
  void record_use(actor& self);
  void order_streams(actor& self);
  void look_for_completion(actor& self);
  void trim(actor& self);
  void reserve(actor& self);
  void spin_and_allocate(actor& self);
  void recycle_stream(actor& self);
  void serve_some(actor& self, cuda::stream_ref on);
  void live_shortly(actor& self);
  void live_shortly_as_a_thread(actor& self);
  void free_in_capture(actor& self);
  void pin(actor& self);
  void borrow(actor& self);
  void end_loan(actor& self, live_block const& loan);
  void end_loan(live_block const& loan, int on);
  void check_conservation(actor& self);

  void work(int which, live_block const& block) {
    simulator::work(stream_of(which), {simulator::write(block.pointer, block.bytes)}, std::chrono::microseconds{5});
  }
  void order(event_type& by, int from, int to) {
    by.record(stream_of(from));
    by.make_wait(stream_of(to));
  }
  void told_free(bool elsewhere) {
    std::scoped_lock const held{mutex_};
    ++result_.frees;
    result_.frees_elsewhere += elsewhere;
  }

  std::uint64_t const seed_;
  program_options const how_;
  Memory memory_;
  std::array<CUstream, stream_choices> foreign_{};
  std::array<int, stream_choices> users_{};
  std::array<bool, stream_choices> recycling_{};
  std::optional<pool> pool_;
  std::optional<simulator::checked<pool>> checked_;
  std::mutex mutex_; // never held at a schedule point
  std::vector<live_block> blocks_;
  std::optional<gpumem::detail::page_lender> lender_;
  std::uint64_t const borrower_ = simulator::detail::new_owner();
  std::vector<live_block> loans_;
  std::uint64_t trace_ = 0xcbf29ce484222325u;
  program_result result_;
};

} // namespace gpumem_test
