// crash.cpp - SIGSEGV and its like leave a mark in the ring, then a dump if the process still can,
// then go on to the handler set before, so that it dies as it would have. A handler that was
// set later (faulthandler's) hands on to this one.
#include "stop/crash.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include "format/codes.hpp"
#include "format/system_names.hpp"
#include "format/text.hpp"
#include "format/ticks.hpp"
#include "record/record.hpp"
#include "recorder/in_flight.hpp"
#include "recorder/recorder.hpp"
#include "sample/thread_sampler.hpp"
#include "watch/control_page.hpp"
#include "watch/watchdog.hpp"

namespace fr {
namespace {

constexpr int kCrashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr u64 kDump_ns = 5'000'000'000ull;
constexpr u64 kElected_ns = 2'000'000'000ull;  // electing the rank that starts frtrace
constexpr u64 kWord_ns = 5'000'000'000ull;     // torchrun's error file, with the verdict
constexpr std::size_t kAltStackBytes = 128 * 1024;
constexpr u32 kToldFrames = 12;

struct sigaction g_before[NSIG];
std::atomic<i32> g_crashing{0};   // thread that got here first
std::atomic<bool> g_told{false};  // its evidence is left
std::atomic<u64> g_told_ns{0};    // monotonic, and
std::atomic<u64> g_head{0};       // the next ticket at that moment
std::atomic<const void*> g_address{nullptr};
constexpr u64 kSurvived_ns = 2'000'000'000ull;
// Its own: the watchdog may be using the other when it happens.
ThreadStacks* g_stacks = nullptr;

// A fault this close to the stack pointer is a stack that has reached its guard page.
constexpr u64 kNearStackBytes = 64 * 1024;

u64 stack_pointer(const ucontext_t& context) noexcept {
#if defined(__x86_64__)
  return static_cast<u64>(context.uc_mcontext.gregs[REG_RSP]);
#else
  return context.uc_mcontext.sp;
#endif
}

bool is_stack_overflow(int signal, const siginfo_t& info, const ucontext_t& context) noexcept {
  const u64 at = reinterpret_cast<u64>(info.si_addr);
  const u64 sp = stack_pointer(context);
  return signal == SIGSEGV && info.si_code > 0 && at < sp + kNearStackBytes &&
         sp < at + kNearStackBytes;
}

const char* cause_of(int signal, const siginfo_t& info, const ucontext_t& context) noexcept {
  const int code = info.si_code;
  if (is_stack_overflow(signal, info, context)) {
    return "the thread's stack is full (endless recursion, or a larger stack is needed)";
  }
  if (signal == SIGSEGV && code == SEGV_MAPERR) {
    return "nothing is mapped there";
  }
  if (signal == SIGSEGV && code == SEGV_ACCERR) {
    return "not permitted there";
  }
  if (signal == SIGBUS && code == BUS_ADRERR) {
    return "the file behind it is shorter, or its file system full";
  }
  if (signal == SIGBUS && code == BUS_ADRALN) {
    return "not aligned";
  }
  if (signal == SIGFPE) {
    return code == FPE_INTDIV ? "integer division by zero" : "arithmetic";
  }
  return "";
}

class Text {
 public:
  Text(char* to, std::size_t size) noexcept : to_(to), size_(size) { to_[0] = '\0'; }
  void add(const char* s) noexcept {
    while (*s != '\0' && used_ + 1 < size_) {
      to_[used_++] = *s++;
    }
    to_[used_] = '\0';
  }
  void number(u64 value, u64 base) noexcept {
    char digits[24];
    int i = static_cast<int>(sizeof digits) - 1;
    digits[i] = '\0';
    do {
      digits[--i] = "0123456789abcdef"[value % base];
      value /= base;
    } while (value != 0);
    add(digits + i);
  }

 private:
  char* to_;
  std::size_t size_;
  std::size_t used_ = 0;
};

const char* base_name(const char* path) noexcept {
  const char* slash = std::strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

// "address 0x0: nothing is mapped there; thread 123 (pt_main) in f (x.so) < g (train.py:57) < ..."
void describe(char* to, std::size_t size, int signal, const siginfo_t& info,
              const ucontext_t& context, const ThreadReport* report) noexcept {
  Text t(to, size);
  if (info.si_code > 0) {
    t.add("address 0x");
    t.number(reinterpret_cast<u64>(info.si_addr), 16);
    const char* cause = cause_of(signal, info, context);
    t.add(cause[0] != '\0' ? ": " : "");
    t.add(cause);
  } else if (info.si_pid != getpid() && info.si_pid != 0) {
    t.add("sent by process ");
    t.number(static_cast<u64>(info.si_pid), 10);
  } else {
    t.add("raised by the process itself");
  }
  if (report == nullptr) {
    return;
  }
  const ThreadRow& row = report->threads[0];
  t.add("; thread ");
  t.number(static_cast<u64>(row.task.tid), 10);
  t.add(" (");
  t.add(row.task.name);
  t.add(row.n_frames != 0 ? ") in " : ")");
  for (u32 i = 0; i < row.n_frames && i < kToldFrames; ++i) {
    const NamedFrame& f = report->frames[report->stack[row.first_frame + i]];
    t.add(i != 0 ? " < " : "");
    const char* function = report->text + f.function;
    t.add(function[0] != '\0' ? function : "?");
    t.add(" (");
    t.add(base_name(report->text + f.file));
    if (f.python) {
      t.add(":");
      t.number(f.line, 10);
    } else {
      t.add("+0x");
      t.number(f.offset, 16);
    }
    t.add(")");
  }
}

// True when the dump is safe on disk.
bool leave_evidence(Recorder& r, int signal, const siginfo_t& info,
                    const ucontext_t& context) noexcept {
  Header& h = r.region.header();
  ExitRecord& e = h.exit;
  i32 none = 0;
  e.signal.compare_exchange_strong(none, signal);
  u32 free = 0;
  const bool first = e.claimed.compare_exchange_strong(free, 1);  // else an exception led here
  if (first) {
    e.signal.store(signal);  // a signal that the program handles may have come before
    format(e.kind, sizeof e.kind, "%s", word(dump::ExitBy::kCrash));
    format(e.type, sizeof e.type, "SIG%s", signal_name(signal));
    describe(e.message, sizeof e.message, signal, info, context, nullptr);
    e.stack.store(exit_stack(r));  // sys.exit, where the process crashed as it ended
    e.time_unix_ns.store(unix_now_ns());
    e.ready.store(1, std::memory_order_release);
  }
  e.state.store(kSignalled, std::memory_order_release);
  // The mark is there; what follows may crash again.
  if (PeerRow* row = r.control->own()) {
    row->exit_signal.store(signal);
    row->exit_unix_ns.store(unix_now_ns());
  }
  static char frames[sizeof e.message];  // one thread at a time comes here
  describe(frames, sizeof frames, signal, info, context,
           g_stacks != nullptr ? g_stacks->collect_own(context) : nullptr);
  if (first) {
    std::memcpy(e.message, frames, sizeof frames);
  }
  static char reason[256];
  Text t(reason, sizeof reason);
  t.add("crash: SIG");
  t.add(signal_name(signal));
  t.add(", ");
  t.add(frames);
  const Interrupted here(&context);
  const bool dumped = r.watchdog->request_dump(reason, Trigger::kCrash, kDump_ns, nullptr, 0);
  if (dumped) {
    r.watchdog->verdict().await_start(kElected_ns);
    r.watchdog->verdict().leave_word(kWord_ns);
  }
  return dumped;
}

// The process lives on after all.
void forget_crash(Recorder& r) noexcept {
  Header& h = r.region.header();
  ExitRecord& e = h.exit;
  if (code<dump::ExitBy>(e.kind) == dump::ExitBy::kCrash) {
    e.state.store(kRunning);
    e.ready.store(0);
    e.time_unix_ns.store(0);
    e.claimed.store(0);
  }
  e.signal.store(0);
  h.crash_dumped.store(0);
  if (PeerRow* row = r.control->own()) {
    row->exit_signal.store(0);
    row->exit_unix_ns.store(0);
    row->state.store(kPeerLive);
  }
  r.watchdog->note_survived();
  g_told.store(false);
  g_crashing.store(0);
}

void on_crash(int signal, siginfo_t* info, void* context) noexcept;

// A handler left the first one by longjmp: operations were recorded since, and this is another fault.
// Else it is the same one, raised again by a handler that hands on to us.
bool is_next_crash(const Recorder& r, const siginfo_t& info) noexcept {
  return g_told.load() && info.si_code > 0 && info.si_addr != g_address.load() &&
         r.region.header().head.load() != g_head.load();
}

void handle_crash(int signal, siginfo_t* info, void* context) noexcept {
  const int kept_errno = errno;
  const auto self = static_cast<i32>(syscall(SYS_gettid));
  Recorder* r = recorder();
  i32 nobody = 0;
  bool dumped = false;
  if (r != nullptr && r->pid == getpid() && !r->ended.load()) {
    if (is_next_crash(*r, *info) && g_told.exchange(false)) {
      forget_crash(*r);
    }
    // The watchdog may be taking the first one back at this moment: it ends with g_crashing.
    for (int i = 0; i < 1000 && !g_told.load() && g_crashing.load() == self; ++i) {
      const timespec t{0, 1'000'000};
      nanosleep(&t, nullptr);
    }
    if (g_crashing.compare_exchange_strong(nobody, self)) {
      dumped = leave_evidence(*r, signal, *info, *static_cast<const ucontext_t*>(context));
      g_head.store(r->region.header().head.load());
      g_address.store(info->si_addr);
      g_told_ns.store(monotonic_ns());
      g_told.store(true);
    } else if (nobody != self) {
      // Another thread is at it: what ends the process must not cut it short.
      for (int i = 0; i < 600 && !g_told.load(); ++i) {
        const timespec t{0, 10'000'000};
        nanosleep(&t, nullptr);
      }
    }
  }
  const bool ours = r != nullptr && r->pid == getpid() && g_crashing.load() == self;
  if (ours && dumped) {
    // A peer that finds the ring, or the process dead, need not salvage it: the copy would put
    // evidence without stacks in the place of this dump.
    r->region.header().crash_dumped.store(1);
    if (PeerRow* row = r->control->own()) {
      row->state.store(kPeerExited);
    }
  }
  const struct sigaction& before = g_before[signal];
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    errno = kept_errno;
    before.sa_sigaction(signal, info, context);
  } else if ((before.sa_flags & SA_SIGINFO) == 0 && before.sa_handler != SIG_DFL &&
             before.sa_handler != SIG_IGN) {
    errno = kept_errno;
    before.sa_handler(signal);
  } else {
    if (ours && dumped && !r->region.name.empty()) {
      static char path[PATH_MAX];  // alternate stacks that others set up are small
      format(path, sizeof path, "%s/%s", r->region.dir.c_str(), r->region.name.c_str());
      unlink(path);
    }
    struct sigaction standard{};
    standard.sa_handler = SIG_DFL;
    sigaction(signal, &standard, nullptr);
    if (info->si_code <= 0) {
      raise(signal);  // when this returns; a fault comes again by itself, with its own address
    }
    errno = kept_errno;
    return;
  }
  // Still here: somebody lives with this signal. It was no end, and the next may be one.
  struct sigaction now{};
  if (ours && sigaction(signal, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
      now.sa_sigaction == on_crash) {
    forget_crash(*r);
  }
}

// A thread of the program's may have an alternate stack of a page, most of which the kernel has
// filled when the handler begins: one such thread at a time gets this one.
constexpr u64 kTight_bytes = 16 * 1024;
alignas(64) unsigned char g_roomy_stack[kAltStackBytes];
std::atomic<bool> g_roomy_taken{false};

struct CrashCall {
  int signal;
  siginfo_t* info;
  void* context;
};

void handle_on_this_stack(CrashCall* call) noexcept {
  // Not on the alternate stack any more, the kernel would put the next handler at its top again,
  // over the frames that this one returns to.
  stack_t none{};
  stack_t small{};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, &small);
  handle_crash(call->signal, call->info, call->context);
  sigaltstack(&small, nullptr);
}

// The old stack pointer is kept in a register that calls preserve.
__attribute__((noinline)) void handle_on_roomy_stack(CrashCall* call) noexcept {
  void* top = g_roomy_stack + sizeof g_roomy_stack;
  auto* function = &handle_on_this_stack;
#if defined(__x86_64__)
  asm volatile("movq %%rsp, %%rbx; movq %[top], %%rsp; callq *%[function]; movq %%rbx, %%rsp"
               : "+D"(call), [top] "+S"(top), [function] "+a"(function)
               :
               : "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2", "xmm3",
                 "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",
                 "xmm14", "xmm15", "memory", "cc");
#elif defined(__aarch64__)
  register CrashCall* argument asm("x0") = call;
  asm volatile("mov x19, sp; mov sp, %[top]; blr %[function]; mov sp, x19"
               : "+r"(argument), [top] "+r"(top), [function] "+r"(function)
               :
               : "x19", "x30", "memory", "cc", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8",
                 "x11", "x12", "x13", "x14", "x15", "x16", "x17", "x18", "v0", "v1", "v2", "v3",
                 "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23",
                 "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
#endif
}

void on_crash(int signal, siginfo_t* info, void* context) noexcept {
  const auto here = reinterpret_cast<u64>(__builtin_frame_address(0));
  const auto low = reinterpret_cast<u64>(
      static_cast<const ucontext_t*>(context)->uc_stack.ss_sp);  // of the alternate stack
  const bool tight = here > low && here - low < kTight_bytes;
  if (tight && !g_roomy_taken.exchange(true)) {
    CrashCall call{signal, info, context};
    handle_on_roomy_stack(&call);
    g_roomy_taken.store(false);  // not where a handler left by longjmp
    return;
  }
  handle_crash(signal, info, context);
}

void release_stack(void* memory) noexcept {
  stack_t now{};
  if (sigaltstack(nullptr, &now) == 0 && now.ss_sp == memory) {
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
  }
  munmap(memory, kAltStackBytes);
}

// The memory of a thread's alternate stack goes with the thread.
pthread_key_t g_stack_key;
const bool g_has_key = pthread_key_create(&g_stack_key, release_stack) == 0;

}  // namespace

void guard_thread() noexcept {
  stack_t now{};
  if (!g_has_key || sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) {
    return;
  }
  void* memory = mmap(nullptr, kAltStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return;
  }
  stack_t ours{};
  ours.ss_sp = memory;
  ours.ss_size = kAltStackBytes;
  if (pthread_setspecific(g_stack_key, memory) != 0 || sigaltstack(&ours, nullptr) != 0) {
    pthread_setspecific(g_stack_key, nullptr);
    munmap(memory, kAltStackBytes);
  }
}

// A handler that leaves by longjmp never comes back to on_crash(). That the process records operations
// so long after its crash shows that it lives.
void check_survived() noexcept {
  Recorder* r = recorder();
  if (r != nullptr && r->pid == getpid() && g_told.load() &&
      monotonic_ns() - g_told_ns.load() > kSurvived_ns &&
      r->region.header().head.load() != g_head.load() && g_told.exchange(false)) {
    forget_crash(*r);
  }
}

void install_crash_handlers(Recorder& r) noexcept {
  g_crashing.store(0);
  g_told.store(false);
  if (!r.options.crashes) {
    return;
  }
  static ThreadStacks stacks;
  if (stacks.init(false, false)) {
    g_stacks = &stacks;
  }
  guard_thread();
  g_new_thread.store(guard_thread, std::memory_order_release);
  for (const int signal : kCrashes) {
    struct sigaction now;
    if (sigaction(signal, nullptr, &now) != 0 ||
        ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_crash)) {
      continue;
    }
    g_before[signal] = now;
    struct sigaction ours{};
    ours.sa_sigaction = on_crash;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);  // the watchdog may ask this thread for its stack
    sigaction(signal, &ours, nullptr);
  }
}

}  // namespace fr
