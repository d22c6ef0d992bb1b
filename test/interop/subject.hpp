// Any resource behind one interface, so that the tests of the contract are compiled once. Include it after
// `import gpumem;`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace conformance {

class subject {
public:
  virtual ~subject() = default;
  virtual void* allocate(gpumem::stream_ref stream, std::size_t bytes, std::size_t alignment) = 0;
  virtual void deallocate(gpumem::stream_ref stream, void* pointer, std::size_t bytes,
                          std::size_t alignment) noexcept = 0;
  virtual void* allocate_sync(std::size_t bytes, std::size_t alignment) = 0;
  virtual void deallocate_sync(void* pointer, std::size_t bytes, std::size_t alignment) noexcept = 0;
  virtual gpumem::expected<gpumem::allocation, gpumem::failure> try_acquire(gpumem::stream_ref stream,
                                                                            std::size_t bytes) = 0;
  virtual gpumem::statistics statistics() = 0;
  virtual std::size_t trim() = 0;
  virtual int ordinal() = 0; // of its device; -1 without one
  virtual std::unique_ptr<subject> copy() = 0;
  virtual bool equals(subject const& other) const = 0;
};

template <class R> class held_subject final : public subject {
public:
  explicit held_subject(R resource) : value_{std::move(resource)} {}
  void* allocate(gpumem::stream_ref stream, std::size_t bytes, std::size_t alignment) override {
    return value_.allocate(stream, bytes, alignment);
  }
  void deallocate(gpumem::stream_ref stream, void* pointer, std::size_t bytes,
                  std::size_t alignment) noexcept override {
    value_.deallocate(stream, pointer, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) override {
    return value_.allocate_sync(bytes, alignment);
  }
  void deallocate_sync(void* pointer, std::size_t bytes, std::size_t alignment) noexcept override {
    value_.deallocate_sync(pointer, bytes, alignment);
  }
  gpumem::expected<gpumem::allocation, gpumem::failure> try_acquire(gpumem::stream_ref stream,
                                                                    std::size_t bytes) override {
    return gpumem::acquire(value_, stream, bytes).try_now();
  }
  gpumem::statistics statistics() override { return gpumem::statistics_of(value_).value_or(gpumem::statistics{}); }
  std::size_t trim() override { return gpumem::trim(value_); }
  int ordinal() override {
    auto const services = gpumem::extend::services_of(value_);
    return services.table->device(services.state);
  }
  std::unique_ptr<subject> copy() override { return std::make_unique<held_subject>(value_); }
  bool equals(subject const& other) const override {
    auto const* const same = dynamic_cast<held_subject const*>(&other);
    return same && value_ == same->value_ && !(value_ != same->value_);
  }

private:
  R value_;
};

/// A way to make a resource, and the largest request that it serves.
struct stack {
  std::string name;
  std::function<std::unique_ptr<subject>()> make;
  std::size_t largest = std::size_t{1} << 30;
  bool on_device = true; ///< whether kernels may use the memory
};

/// Stacks that are tested as one test.
struct group {
  std::string name;
  std::vector<stack> stacks;
};

std::vector<group> const& all_groups();
inline void PrintTo(group const& of, std::ostream* out) { *out << of.name; }

} // namespace conformance
