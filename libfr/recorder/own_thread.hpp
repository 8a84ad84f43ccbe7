// own_thread.hpp - threads of libfr: detached, small stack, no signal is ever delivered to them.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <cstddef>

namespace fr {

inline bool start_thread(void* (*entry)(void*), void* argument, const char* name) noexcept {
  constexpr std::size_t kStackBytes = 512 * 1024;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited: the thread never runs a handler
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, entry, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (error == 0) {
    pthread_setname_np(thread, name);
  }
  return error == 0;
}

}  // namespace fr
