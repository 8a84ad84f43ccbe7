// sampling_signal.cpp - the handler copies registers, the top of the stack and Python's frames of
// the thread that it interrupts, and has the interrupted system call made again.
#include "sample/sampling_signal.hpp"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "format/syscalls.hpp"
#include "record/clock.hpp"
#include "sample/memory_read.hpp"
#include "sample/thread_sampler.hpp"

namespace fr {
namespace {

// Read by the handler, which any thread may be in at any time: never unmapped.
std::atomic<SampleSlot*> g_slots{nullptr};
std::atomic<int> g_signal{0};
std::atomic<void (*)(int, u64) noexcept> g_dump_requested{nullptr};
std::atomic<const fr_python*> g_python{nullptr};
// The context that our handler interrupted on this thread. Handlers read it: no lazy allocation.
thread_local const ucontext_t* t_interrupted __attribute__((tls_model("initial-exec"))) = nullptr;

// Some calls are never restarted by the kernel: sleeps, poll, select, epoll, sockets with a
// timeout. Their callers may take EINTR for an end: a sleep(3600) that stood in for a hang would be
// over. So the call is made again, by going back to the instruction that made it; its arguments are
// still there. A timeout begins anew.
void repeat_call(const SampleSlot& s, ucontext_t& context) noexcept {
  if (s.call < 0) {
    return;
  }
#if defined(__x86_64__)
  auto& r = context.uc_mcontext.gregs;
  unsigned char instruction[2] = {};
  if (r[REG_RAX] == -EINTR && static_cast<u64>(r[REG_RIP]) == s.call_pc &&
      static_cast<u64>(r[REG_RSP]) == s.call_sp &&
      peek(s.call_pc - 2, instruction, sizeof instruction) && instruction[0] == 0x0f &&
      instruction[1] == 0x05) {
    r[REG_RIP] -= 2;
    r[REG_RAX] = s.call;
  }
#elif defined(__aarch64__)
  auto& m = context.uc_mcontext;
  u32 instruction = 0;
  if (static_cast<i64>(m.regs[0]) == -EINTR && m.pc == s.call_pc && m.sp == s.call_sp &&
      static_cast<i64>(m.regs[8]) == s.call && peek(m.pc - 4, &instruction, 4) &&
      instruction == 0xd4000001) {
    m.pc -= 4;
    m.regs[0] = s.call_arg;
  }
#endif
}

void on_sample(int, siginfo_t* info, void* context) noexcept {
  const int kept_errno = errno;
  SampleSlot* slots = g_slots.load(std::memory_order_acquire);
  const u64 value = reinterpret_cast<u64>(info->si_value.sival_ptr);
  const u64 index = value & 0xff;
  if (slots != nullptr && info->si_code == SI_QUEUE && info->si_pid == getpid() && index < kSlots) {
    SampleSlot& s = slots[index];
    const u64 token = value & ~u64{0xff};
    u64 word = token | kRequested;
    u64 late = token | kLate;
    if (s.word.compare_exchange_strong(word, token | kWriting)) {
      s.interrupted = t_interrupted != nullptr;
      s.registers =
          Registers::of(s.interrupted ? *t_interrupted : *static_cast<const ucontext_t*>(context));
      s.stack_base = s.registers.r[Registers::kSp];
      s.stack_bytes = peek_some(s.stack_base, s.stack, kStackBytes);
      s.n_python = s.python_total = s.python_facts = 0;
      s.handled = 0;
      if (const fr_python* p = g_python.load(std::memory_order_acquire)) {
        s.n_python = p->walk(s.python, kPythonFrames, &s.python_total, &s.python_facts);
        s.handled = p->handled != nullptr ? p->handled() : 0;
      }
      repeat_call(s, *static_cast<ucontext_t*>(context));
      s.answered_ns = monotonic_ns();
      s.word.store(token | kAnswered, std::memory_order_release);
      g_answers.fetch_add(1);
      syscall(SYS_futex, &g_answers, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    } else if (s.word.compare_exchange_strong(late, token | kWriting)) {
      repeat_call(s, *static_cast<ucontext_t*>(context));
      s.word.store(kIdle, std::memory_order_release);
    }
  }
  if (info->si_code == SI_QUEUE && (value == kDumpRequest || value == kStacksRequest)) {
    if (const auto requested = g_dump_requested.load()) {
      requested(g_signal.load(), value);
    }
  }
  errno = kept_errno;
}

}  // namespace

// Not those that have an effect when they are interrupted, or an argument that is none any more.
bool can_repeat(i64 call) noexcept {
  return call >= 0 && call != SYS_connect && call != SYS_close && call != SYS_restart_syscall &&
         call != SYS_rt_sigreturn && syscall_name(call)[0] != '\0';
}

bool is_ours(int signal) noexcept {
  struct sigaction now{};
  return signal != 0 && sigaction(signal, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
         now.sa_sigaction == on_sample;
}

namespace {

// Takes a signal that is unused: libraries take theirs from the ends, so this looks in the middle.
int install_handler() noexcept {
  if (const int kept = g_signal.load(); is_ours(kept)) {
    return kept;  // a forked child has its parent's
  }
  const int count = SIGRTMAX - SIGRTMIN + 1;
  for (int i = 0; i < count; ++i) {
    const int signal = SIGRTMIN + (count * 2 / 3 + i) % count;
    struct sigaction now{};
    if (sigaction(signal, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 ||
        now.sa_handler != SIG_DFL) {
      continue;
    }
    struct sigaction ours{};
    ours.sa_sigaction = on_sample;
    ours.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigfillset(&ours.sa_mask);
    for (const int open : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
      sigdelset(&ours.sa_mask, open);
    }
    if (sigaction(signal, &ours, nullptr) == 0) {
      g_signal.store(signal);
      return signal;
    }
  }
  return 0;
}

}  // namespace

SampleSlot* sample_slots() noexcept {
  return g_slots.load(std::memory_order_acquire);
}

int sampling_signal() noexcept {
  return g_signal.load();
}

int install_sampling() noexcept {
  if (g_slots.load() == nullptr) {
    void* slots = mmap(nullptr, sizeof(SampleSlot) * kSlots, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (slots == MAP_FAILED) {
      return 0;
    }
    g_slots.store(static_cast<SampleSlot*>(slots), std::memory_order_release);
  }
  for (u32 i = 0; i < kSlots; ++i) {
    g_slots.load()[i].word.store(kIdle);  // in a forked child: what the parent's threads were at
  }
  return install_handler();
}

Interrupted::Interrupted(const void* context) noexcept : outer_(t_interrupted) {
  if (outer_ == nullptr) {  // a signal within a handler: where the first one came
    t_interrupted = static_cast<const ucontext_t*>(context);
  }
}

Interrupted::~Interrupted() {
  t_interrupted = outer_;
}

void on_dump_request(void (*requested)(int signal, u64 what) noexcept) noexcept {
  g_dump_requested.store(requested);
}

void set_python(const fr_python* p) noexcept {
  if (p == nullptr || p->struct_bytes < sizeof(fr_python)) {
    g_python.store(nullptr);
    return;
  }
  static fr_python kept;  // once: a handler may be reading it
  static std::atomic<u32> once{0};
  if (once.exchange(1) == 0) {
    kept = *p;
  }
  g_python.store(&kept, std::memory_order_release);
}

const fr_python* python() noexcept {
  return g_python.load(std::memory_order_acquire);
}

}  // namespace fr
