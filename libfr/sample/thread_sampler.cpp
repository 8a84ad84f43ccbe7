// thread_sampler.cpp - the threads' tasks, the rounds of requests, and the walk over what the
// handler copied.
#include "sample/thread_sampler.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "format/call_site.hpp"
#include "format/text.hpp"
#include "record/clock.hpp"
#include "sample/directory.hpp"
#include "sample/file_locks.hpp"
#include "sample/sampling_signal.hpp"
#include "sample/thread_work.hpp"

namespace fr {
namespace {

constexpr u64 kBetweenSamples_ns = 20'000'000;  // between the two samples of /proc
constexpr u32 kVariableFrames = 4;

template <class T>
T* map_new() noexcept {
  void* p = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p != MAP_FAILED ? static_cast<T*>(p) : nullptr;
}

// Makes the first part of a table resident: what a process of some tens of threads needs, so that
// a dump under memory pressure finds its pages there. The rest stays mapped and untouched, for
// every rank pays for it from its start (1.7 MiB of 10).
constexpr std::size_t kTouchedPart = 4;
template <class T, std::size_t n>
void touch_first_part(T (&table)[n]) noexcept {
  volatile char* bytes = reinterpret_cast<volatile char*>(table);
  for (std::size_t i = 0; i < sizeof table / kTouchedPart; i += 4096) {
    bytes[i] = 0;
  }
}

void add_children(i32 pid, i32 tid, ThreadReport& out) noexcept {
  each_child(
      pid, tid,
      [](i32 child, void* context) {
        auto& to = *static_cast<ThreadReport*>(context);
        if (to.n_children == ThreadReport::kChildren) {
          ++to.children_lost;
          return;
        }
        ChildRow& row = to.children[to.n_children];
        row = {};
        row.task.tid = child;
        to.n_children += sample_first(child, row.task) ? 1 : 0;
      },
      &out);
}

}  // namespace

bool ThreadStacks::init(bool by_signal, bool variables, u64 sampling_ns) noexcept {
  variables_ = variables;
  sampling_ns_ = sampling_ns;
  prepare_peek();
  if (work_ == nullptr) {
    work_ = map_new<Work>();
    report_ = map_new<ThreadReport>();
    if (work_ == nullptr || report_ == nullptr) {
      return false;
    }
    new (&work_->unwinder) Unwinder(&work_->modules);
    if (by_signal) {
      touch_first_part(work_->pcs);
      touch_first_part(work_->python);
      touch_first_part(work_->symbols);
      touch_first_part(report_->threads);
      touch_first_part(report_->frames);
      touch_first_part(report_->stack);
      touch_first_part(report_->text);
    }
  }
  work_->token = monotonic_ns();
  if (!by_signal) {
    return true;
  }
  asks_ = install_sampling() != 0;
  return true;
}

int ThreadStacks::signal() const noexcept {
  return asks_ ? sampling_signal() : 0;
}

void ThreadStacks::reset() noexcept {
  ThreadReport& out = *report_;
  out.n_threads = out.n_frames = out.n_words = out.n_variables = out.n_modules = 0;
  out.n_children = out.children_lost = out.n_locks = out.locks_lost = 0;
  out.text_used = 1;  // 0 is ""
  out.text[0] = '\0';
  out.threads_lost = out.frames_lost = out.modules_lost = 0;
  out.signal = 0;
  out.why = "";
  out.took_ns = out.asking_ns = 0;
  Work& w = *work_;
  w.n_pcs = w.n_python = w.n_symbols = 0;
  std::memset(w.raw, 0, sizeof w.raw);
  std::memset(w.text_index, 0, sizeof w.text_index);
  std::memset(w.frame_index, 0, sizeof w.frame_index);
  w.unwinder.forget();
}

void ThreadStacks::list(i32 pid) noexcept {
  char path[32];
  format(path, sizeof path, "/proc/%d/task", pid);
  struct Context {
    ThreadReport& out;
    i32 pid;
  } c{*report_, pid};
  each_entry(
      path,
      [](const char* name, void* context) {
        auto& x = *static_cast<Context*>(context);
        i32 tid = 0;
        for (const char* at = name; *at >= '0' && *at <= '9'; ++at) {
          tid = tid * 10 + (*at - '0');
        }
        if (x.out.n_threads == ThreadReport::kThreads) {
          ++x.out.threads_lost;
          return;
        }
        ThreadRow& row = x.out.threads[x.out.n_threads];
        row = {};
        row.task.tid = tid;
        if (sample_first(x.pid, row.task)) {
          ++x.out.n_threads;
        }
      },
      &c);
  ThreadReport& out = *report_;
  for (u32 i = 0; i < out.n_threads; ++i) {
    add_children(pid, out.threads[i].task.tid, out);
  }
  // Workers may be a server's, which is our child.
  const u32 own = out.n_children;
  for (u32 i = 0; i < own; ++i) {
    add_children(out.children[i].task.tid, out.children[i].task.tid, out);
  }
}

void ThreadStacks::second_sample(i32 pid, u64 first_ns) noexcept {
  const u64 until = first_ns + kBetweenSamples_ns;
  for (u64 now = monotonic_ns(); now < until; now = monotonic_ns()) {
    const timespec t{0, static_cast<long>(until - now)};
    nanosleep(&t, nullptr);
  }
  for (u32 i = 0; i < report_->n_threads; ++i) {
    ThreadRow& row = report_->threads[i];
    if (!sample_again(pid, row.task, first_ns, monotonic_ns())) {
      row.answer = Answer::kGone;
    }
  }
  for (u32 i = 0; i < report_->n_children; ++i) {
    ChildRow& row = report_->children[i];
    sample_again(row.task.tid, row.task, first_ns, monotonic_ns());
    row.wait_status = row.task.state == 'Z' ? wait_status(row.task.tid) : -1;
  }
  sample_file_locks(pid, *report_);
}

void ThreadStacks::take(u32 slot, ThreadRow& row) noexcept {
  Work& w = *work_;
  const SampleSlot& s = sample_slots()[slot];
  Work::Raw& raw = w.raw[&row - report_->threads];
  row.answer = Answer::kAnswered;
  row.answer_us = static_cast<u32>((s.answered_ns - s.requested_ns) / 1000);
  row.interrupted = s.interrupted;
  if (row.interrupted) {  // what /proc says is of the handler
    row.task.syscall = kNoSyscall;
    row.task.wchan[0] = row.task.target[0] = '\0';
  }
  row.python = (s.python_facts & FR_PYTHON_THREAD) != 0;
  row.gil = (s.python_facts & FR_PYTHON_HOLDS_GIL) != 0 ? Gil::kHolds : Gil::kNone;
  raw.first_pc = w.n_pcs;
  const u32 room = std::min(Work::kPcs - w.n_pcs, kNativeFrames);
  raw.n_pcs = w.unwinder.walk(s.registers, {s.stack_base, s.stack_bytes, s.stack}, w.pcs + w.n_pcs,
                              room, &row.whole);
  w.n_pcs += raw.n_pcs;
  raw.first_python = w.n_python;
  raw.n_python = std::min(s.n_python, Work::kPython - w.n_python);
  raw.python_total = s.python_total;
  raw.handled = s.handled;
  std::memcpy(w.python + w.n_python, s.python, raw.n_python * sizeof(fr_python_frame));
  w.n_python += raw.n_python;
}

// One round of requests and answers over the slots.
struct ThreadStacks::Round {
  SampleSlot* slots;
  int signal;
  i32 pid;
  i32 self;  // the thread that samples
  bool used[kSlots] = {};
  u32 next = 0;  // thread to be interrupted
  u32 pending = 0;
};

// Frees the slots of threads that answered too late, or may never answer because they are gone.
void ThreadStacks::empty_slots(Round& round) noexcept {
  u32 n_late = 0;
  for (u32 i = 0; i < kSlots; ++i) {
    u64 word = round.slots[i].word.load();
    const bool is_late = (word & 0xff) == kLate;
    n_late += is_late ? 1 : 0;
    if ((word & 0xff) == kAnswered || (is_late && n_late > kLateSlots)) {
      round.slots[i].word.compare_exchange_strong(word, kIdle);
    }
  }
}

bool ThreadStacks::take_answers(Round& round) noexcept {
  bool any = false;
  for (u32 i = 0; i < kSlots; ++i) {
    SampleSlot& s = round.slots[i];
    if (round.used[i] && (s.word.load(std::memory_order_acquire) & 0xff) == kAnswered) {
      take(i, report_->threads[s.row]);
      s.word.store(kIdle);
      round.used[i] = false;
      --round.pending;
      any = true;
    }
  }
  return any;
}

// Interrupts the row's thread; its answer goes into slot i. False where it cannot be interrupted.
bool ThreadStacks::request(Round& round, u32 i, ThreadRow& row) noexcept {
  const char state = row.task.state;
  if (row.task.tid == round.self) {
    row.answer = Answer::kOwn;
    return false;
  }
  if ((row.task.signals_blocked >> (round.signal - 1) & 1) != 0) {
    row.answer = Answer::kBlocked;
    return false;
  }
  if (row.answer == Answer::kGone || (state != 'R' && state != 'S')) {
    return false;
  }
  work_->token += 0x100;
  const u64 token = work_->token & ~u64{0xff};
  SampleSlot& s = round.slots[i];
  s.row = static_cast<u32>(&row - report_->threads);
  s.call = can_repeat(row.task.syscall) ? row.task.syscall : -1;
  s.call_pc = row.task.pc;
  s.call_sp = row.task.sp;
  s.call_arg = row.task.args[0];
  s.requested_ns = monotonic_ns();
  s.word.store(token | kRequested, std::memory_order_release);
  siginfo_t info{};
  info.si_signo = round.signal;
  info.si_code = SI_QUEUE;
  info.si_pid = round.pid;
  info.si_uid = getuid();
  info.si_value.sival_ptr = reinterpret_cast<void*>(token | i);
  if (syscall(SYS_rt_tgsigqueueinfo, round.pid, row.task.tid, round.signal, &info) != 0) {
    s.word.store(kIdle);
    row.answer = errno == ESRCH ? Answer::kGone : Answer::kNotAsked;
    return false;
  }
  row.answer = Answer::kUnanswered;  // until it does
  round.used[i] = true;
  ++round.pending;
  return true;
}

void ThreadStacks::request_all(Round& round) noexcept {
  for (u32 i = 0; i < kSlots; ++i) {
    if (round.used[i] || (round.slots[i].word.load() & 0xff) != kIdle) {
      continue;
    }
    while (round.next < report_->n_threads && !request(round, i, report_->threads[round.next++])) {
    }
  }
}

void ThreadStacks::signal_all() noexcept {
  ThreadReport& out = *report_;
  Round round{sample_slots(), sampling_signal(), getpid(), static_cast<i32>(syscall(SYS_gettid))};
  if (!asks_) {
    out.why = round.slots == nullptr ? "switched off" : "no free signal";
    return;
  }
  if (!is_ours(round.signal)) {
    out.why = "the process has put another handler in the place of ours";
    return;
  }
  out.signal = round.signal;
  empty_slots(round);
  const u64 begun = monotonic_ns();
  const u64 deadline = begun + sampling_ns_;
  for (;;) {
    const u32 seen = g_answers.load();
    const bool progress = take_answers(round);
    request_all(round);
    const u64 now = monotonic_ns();
    if ((round.pending == 0 && round.next == out.n_threads) || now >= deadline) {
      break;
    }
    if (!progress) {
      const u64 left = deadline - now;
      const timespec wait{static_cast<time_t>(left / 1'000'000'000),
                          static_cast<long>(left % 1'000'000'000)};
      syscall(SYS_futex, &g_answers, FUTEX_WAIT_PRIVATE, seen, &wait, nullptr, 0);
    }
  }
  for (u32 i = 0; i < kSlots; ++i) {
    // from now on too late, unless it is writing: then the slot is free afterwards
    u64 word = round.slots[i].word.load();
    if (round.used[i] && (word & 0xff) == kRequested) {
      round.slots[i].word.compare_exchange_strong(word, (word & ~u64{0xff}) | kLate);
    }
  }
  for (; round.next < out.n_threads; ++round.next) {
    ThreadRow& row = out.threads[round.next];
    row.answer = row.answer == Answer::kGone ? row.answer : Answer::kUnanswered;
  }
  out.asking_ns = monotonic_ns() - begun;
}

void ThreadStacks::name_all() noexcept {
  Work& w = *work_;
  ThreadReport& out = *report_;
  for (u32 i = 0; i < w.n_pcs; ++i) {
    if (w.n_symbols == Work::kSymbols) {
      std::sort(w.symbols, w.symbols + w.n_symbols,
                [](const Symbol& a, const Symbol& b) { return a.pc < b.pc; });
      const Symbol* end =
          std::unique(w.symbols, w.symbols + w.n_symbols,
                      [](const Symbol& a, const Symbol& b) { return a.pc == b.pc; });
      w.n_symbols = static_cast<u32>(end - w.symbols);
      if (w.n_symbols == Work::kSymbols) {
        break;  // the others show their address
      }
    }
    w.symbols[w.n_symbols++] = {w.pcs[i], 0, 0};
  }
  std::sort(w.symbols, w.symbols + w.n_symbols,
            [](const Symbol& a, const Symbol& b) { return a.pc < b.pc; });
  w.n_symbols =
      static_cast<u32>(std::unique(w.symbols, w.symbols + w.n_symbols,
                                   [](const Symbol& a, const Symbol& b) { return a.pc == b.pc; }) -
                       w.symbols);
  w.modules.name(w.symbols, w.n_symbols);
  for (u32 i = 0; i < out.n_threads; ++i) {
    ThreadRow& row = out.threads[i];
    if (row.gil == Gil::kNone && row.python && w.waits_for_gil(row, w.raw[i])) {
      row.gil = Gil::kWaits;
    }
    // Those of the thread that trains, and of one that keeps all others out.
    const bool wanted = variables_ && python() != nullptr && python()->variables != nullptr &&
                        (row.task.tid == getpid() || row.gil == Gil::kHolds);
    w.merge(out, row, w.raw[i], wanted ? kVariableFrames : 0);
    if (char text[512]; w.raw[i].handled != 0 && python()->exception != nullptr &&
                        python()->exception(w.raw[i].handled, text, sizeof text) != 0) {
      row.handling = w.intern(out, text);
    }
  }
  out.modules_lost += w.modules.lost;
}

const ThreadReport* ThreadStacks::collect() noexcept {
  if (report_ == nullptr) {
    return nullptr;
  }
  const u64 begun = monotonic_ns();
  reset();
  list(getpid());
  work_->modules.read(getpid());
  second_sample(getpid(), begun);
  signal_all();
  name_all();
  work_->read_children(*report_);
  report_->took_ns = monotonic_ns() - begun;
  return report_;
}

const ThreadReport* ThreadStacks::collect_own(const ucontext_t& context) noexcept {
  if (report_ == nullptr) {
    return nullptr;
  }
  reset();
  Work& w = *work_;
  w.modules.read(getpid());
  ThreadRow& row = report_->threads[report_->n_threads++];
  row = {};
  row.task.tid = static_cast<i32>(syscall(SYS_gettid));
  sample_first(getpid(), row.task);
  row.answer = Answer::kOwn;
  Work::Raw& raw = w.raw[0];
  raw.n_pcs = w.unwinder.walk(Registers::of(context), {}, w.pcs, kNativeFrames, &row.whole);
  w.n_pcs = raw.n_pcs;
  u32 facts = 0;
  if (const fr_python* p = python()) {
    raw.n_python = p->walk(w.python, kPythonFrames, &raw.python_total, &facts);
  }
  row.python = (facts & FR_PYTHON_THREAD) != 0;
  row.gil = (facts & FR_PYTHON_HOLDS_GIL) != 0 ? Gil::kHolds : Gil::kNone;
  name_all();
  return report_;
}

const ThreadReport* ThreadStacks::sample_process(i32 pid) noexcept {
  if (report_ == nullptr) {
    return nullptr;
  }
  const u64 begun = monotonic_ns();
  reset();
  list(pid);
  second_sample(pid, begun);
  report_->why = "another process";
  report_->took_ns = monotonic_ns() - begun;
  return report_;
}

}  // namespace fr
