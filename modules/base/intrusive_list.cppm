// intrusive_list: a list whose items hold its links, so that it allocates nothing.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:intrusive_list;

namespace gpumem::detail {

template <class T> struct list_links {
  T* next = nullptr;
  T* previous = nullptr;
};

// A doubly linked list. An item has the member `list_links<T> links_`, and the list is its friend. An item is in at
// most one list. Not thread-safe: the caller holds a lock.
template <class T> class intrusive_list {
public:
  inline T* first() const noexcept { return first_; }
  inline T* last() const noexcept { return last_; }
  inline bool empty() const noexcept { return first_ == nullptr; }

  // Inserts the item after `place`; at the front if `place` is null.
  inline void insert_after(T* place, T& item) noexcept {
    auto*& link = place ? place->links_.next : first_;
    item.links_ = {link, place};
    (link ? link->links_.previous : last_) = &item;
    link = &item;
  }
  inline void push_front(T& item) noexcept { insert_after(nullptr, item); }
  inline void push_back(T& item) noexcept { insert_after(last_, item); }

  inline void remove(T& item) noexcept {
    auto const links = item.links_;
    (links.previous ? links.previous->links_.next : first_) = links.next;
    (links.next ? links.next->links_.previous : last_) = links.previous;
  }

private:
  T* first_ = nullptr;
  T* last_ = nullptr;
};

} // namespace gpumem::detail
