// fork.cpp - a forked child shares the parent's mapping and must never write to it: DataLoader
// workers stay silent, a child that becomes a rank starts a recorder of its own.
#include "recorder/fork.hpp"

#include <pthread.h>

#include "recorder/current.hpp"
#include "recorder/start.hpp"

namespace fr {

void install_fork_handler() noexcept {
  static const int once = pthread_atfork(nullptr, nullptr, [] {
    // Async-signal-safe: the child of a threaded process may do nothing else before exec.
    g_hot.store(nullptr, std::memory_order_release);
    g_recorder.store(nullptr, std::memory_order_release);
    t_facts = {};
    forget_recorder_in_child();
  });
  (void)once;
}

}  // namespace fr
