// shared.hpp - a value that many ranks share: copies refer to the same value, `edit()` returns a
// copy of its own to the caller. Reading needs no lock; only one thread may change a value.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>

namespace frtrace {

template <class T>
class Shared {
 public:
  Shared() = default;
  // Implicit, since it is used like the value itself.
  Shared(T value) : value_(std::make_shared<T>(std::move(value))) {}
  Shared(std::initializer_list<typename T::value_type> list) : Shared(T(list)) {}

  const T& operator*() const {
    static const T none{};
    return value_ != nullptr ? *value_ : none;
  }
  const T* operator->() const { return &**this; }
  operator const T&() const { return **this; }

  T& edit() {
    if (value_ == nullptr) {
      value_ = std::make_shared<T>();
    } else if (value_.use_count() > 1) {
      value_ = std::make_shared<T>(*value_);
    }
    return *value_;
  }
  std::size_t users() const { return static_cast<std::size_t>(value_.use_count()); }

  // If T is a container.
  std::size_t size() const { return (**this).size(); }
  bool empty() const { return size() == 0; }
  auto begin() const { return (**this).begin(); }
  auto end() const { return (**this).end(); }
  decltype(auto) operator[](std::size_t i) const { return (**this)[i]; }
  template <class... A>
  void emplace_back(A&&... a) {
    edit().emplace_back(std::forward<A>(a)...);
  }
  template <class E = typename T::value_type>
  void push_back(const E& element) {
    edit().push_back(element);
  }

 private:
  std::shared_ptr<T> value_;
};

}  // namespace frtrace
