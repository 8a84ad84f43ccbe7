// boom.cpp - what ends, or nearly ends, a process, for tests/faults. Compiled by run.py.
#include <asm/prctl.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>

namespace {

void* run(void* f) {
  reinterpret_cast<void (*)()>(f)();
  return nullptr;
}

void* guarded_page() {
  static void* page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return page;
}

sigjmp_buf g_back;

}  // namespace

extern "C" {

void segv() {
  *reinterpret_cast<volatile int*>(0x10) = 1;
}

__attribute__((noinline)) int overflow_from(volatile char* outer) {
  volatile char frame[4096];
  frame[0] = outer != nullptr ? outer[0] : 1;
  return overflow_from(frame) + frame[0];
}
void overflow() {
  overflow_from(nullptr);
}

void terminate_now() {
  std::terminate();
}

void fpe() {
  volatile int zero = 0;
  volatile int x = 4242 / zero;
  (void)x;
}

void ill() {
  __builtin_trap();
}

void bus(const char* path) {
  const int fd = open(path, O_RDWR | O_CREAT, 0600);
  if (ftruncate(fd, 8192) != 0) {
    return;
  }
  auto* at = static_cast<volatile char*>(mmap(nullptr, 8192, PROT_READ, MAP_SHARED, fd, 0));
  if (ftruncate(fd, 0) == 0) {
    (void)at[5000];
  }
}

void call_null() {
  void (*volatile f)() = nullptr;
  f();
}

void bad_stack_pointer() {
#ifdef __x86_64__
  asm volatile("mov $8, %%rsp; push %%rax" ::: "memory");
#else
  segv();
#endif
}

// The thread has no thread-local variables any more.
void no_thread_pointer() {
#ifdef __x86_64__
  syscall(SYS_arch_prctl, ARCH_SET_FS, 0);
#endif
  *reinterpret_cast<volatile int*>(0x10) = 1;
}

void all_blocked() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  segv();
}

void damaged_arena() {
  auto* p = static_cast<volatile char*>(std::malloc(24));
  for (int i = -8; i < 24; ++i) {  // its own size, too
    p[i] = static_cast<char>(0xff);
  }
  std::free(const_cast<char*>(p));
}

void under_loader_lock() {
  dl_iterate_phdr(
      [](dl_phdr_info*, std::size_t, void*) {
        segv();
        return 0;
      },
      nullptr);
}

// f on a thread with a stack of so many bytes; waits for it.
int on_thread(void (*f)(), std::size_t stack) {
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, stack);
  pthread_t t;
  const int failed = pthread_create(&t, &attr, run, reinterpret_cast<void*>(f));
  return failed != 0 ? failed : pthread_join(t, nullptr);
}

void eight_at_once() {
  static pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, nullptr, 8);
  pthread_t t[8];
  for (auto& one : t) {
    pthread_create(
        &one, nullptr,
        [](void*) -> void* {
          pthread_barrier_wait(&barrier);
          segv();
          return nullptr;
        },
        nullptr);
  }
  pthread_join(t[0], nullptr);
}

void own_alternate_stack(std::size_t bytes) {
  stack_t own{};
  own.ss_sp = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  own.ss_size = bytes;
  sigaltstack(&own, nullptr);
}

// A host that lives with SIGSEGV, as the JVM does: of one page only.
void survive_by_return() {
  struct sigaction own{};
  own.sa_flags = SA_SIGINFO;
  own.sa_sigaction = [](int signal, siginfo_t* info, void*) {
    if (info->si_addr == guarded_page()) {
      mprotect(guarded_page(), 4096, PROT_READ | PROT_WRITE);
    } else {
      ::signal(signal, SIG_DFL);
    }
  };
  sigaction(SIGSEGV, &own, nullptr);
}
void survive_by_jump() {
  struct sigaction own{};
  own.sa_flags = SA_SIGINFO;
  own.sa_sigaction = [](int signal, siginfo_t* info, void*) {
    if (info->si_addr == guarded_page()) {
      siglongjmp(g_back, 1);
    }
    ::signal(signal, SIG_DFL);
  };
  sigaction(SIGSEGV, &own, nullptr);
}
void survived_fault() {
  if (sigsetjmp(g_back, 1) == 0) {
    *static_cast<volatile int*>(guarded_page()) = 1;
  }
}
}
