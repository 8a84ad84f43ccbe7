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

namespace fr {
namespace {

constexpr u64 kBetweenSamples_ns = 20'000'000;  // between the two samples of /proc
constexpr u32 kNativeFrames = 128;
constexpr u32 kShownFrames = 160;  // of one thread, in the dump
constexpr u32 kVariableFrames = 4;
constexpr u32 kChildFrames = 32;
constexpr u32 kPythonTail = 32;  // outermost ones that stay when the middle is cut

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

u64 hash_text(const char* bytes, std::size_t n) noexcept {
  u64 h = 0xcbf29ce484222325ull;
  for (std::size_t i = 0; i < n; ++i) {
    h = (h ^ static_cast<unsigned char>(bytes[i])) * 0x100000001b3ull;
  }
  return h ^ h >> 29;
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

// What a collection needs beside its result.
struct ThreadStacks::Work {
  static constexpr u32 kPcs = 16 * 1024;
  static constexpr u32 kPython = 6 * 1024;
  static constexpr u32 kSymbols = 8 * 1024;
  static constexpr u32 kIndex = 16 * 1024;  // power of two
  struct Raw {
    u32 first_pc, n_pcs;
    u32 first_python, n_python, python_total;
    u64 handled;  // exception
  };
  ModuleTable modules;
  Unwinder unwinder{&modules};
  u64 token;
  u32 n_pcs;
  u32 n_python;
  u32 n_symbols;
  Raw raw[ThreadReport::kThreads];
  u64 pcs[kPcs];
  fr_python_frame python[kPython];
  Symbol symbols[kSymbols];
  u32 text_index[kIndex];   // offset into text, 0 free
  u32 frame_index[kIndex];  // frame + 1, 0 free
  char interpreter[512];    // its file
  u64 interpreter_at;

  u32 intern(ThreadReport& out, const char* text) noexcept {
    const std::size_t n = std::strlen(text);
    if (n == 0) {
      return 0;
    }
    u32 at = static_cast<u32>(hash_text(text, n));
    for (u32 probe = 0; probe < 64; ++probe, ++at) {
      u32& slot = text_index[at & (kIndex - 1)];
      if (slot == 0) {
        if (out.text_used + n + 1 > ThreadReport::kTextBytes) {
          break;
        }
        slot = out.text_used;
        std::memcpy(out.text + slot, text, n + 1);
        out.text_used += static_cast<u32>(n) + 1;
      }
      if (std::strcmp(out.text + slot, text) == 0) {
        return slot;
      }
    }
    ++out.frames_lost;
    return 0;
  }

  // Index of the frame with that key, or one past the last when it is new and there is room.
  u32 find(ThreadReport& out, u64 key, bool is_python, bool* is_new) noexcept {
    const u64 mixed = key * 0x9e3779b97f4a7c15ull;
    u32 at = static_cast<u32>(mixed >> 40) + (is_python ? 1 : 0);
    *is_new = false;
    for (u32 probe = 0; probe < 64; ++probe, ++at) {
      u32& slot = frame_index[at & (kIndex - 1)];
      if (slot == 0) {
        if (out.n_frames == ThreadReport::kFrames) {
          break;
        }
        slot = ++out.n_frames;
        out.frames[slot - 1] = {};
        out.frames[slot - 1].key = key;
        out.frames[slot - 1].python = is_python;
        *is_new = true;
      }
      if (out.frames[slot - 1].key == key && out.frames[slot - 1].python == is_python) {
        return slot - 1;
      }
    }
    ++out.frames_lost;
    return ~0u;
  }

  const Symbol* symbol(u64 pc) const noexcept {
    const Symbol* end = symbols + n_symbols;
    const Symbol* s =
        std::lower_bound(symbols, end, pc, [](const Symbol& a, u64 value) { return a.pc < value; });
    return s != end && s->pc == pc && s->name != 0 ? s : nullptr;
  }

  void add_module(ThreadReport& out, u32 file, const Module& m) noexcept {
    for (u32 i = 0; i < out.n_modules; ++i) {
      if (out.modules[i].file == file) {
        return;
      }
    }
    if (out.n_modules == ThreadReport::kModules) {
      ++out.modules_lost;
      return;
    }
    ModuleRow& row = out.modules[out.n_modules++];
    row.file = file;
    row.build_id_bytes = m.build_id_bytes;
    std::memcpy(row.build_id, m.build_id, sizeof row.build_id);
  }

  u32 native(ThreadReport& out, u64 pc) noexcept {
    bool is_new = false;
    const u32 index = find(out, pc, false, &is_new);
    if (is_new) {
      NamedFrame& f = out.frames[index];
      char name[1024];
      if (const Symbol* s = symbol(pc); s != nullptr && peek_text(s->name, name, sizeof name)) {
        f.function = intern(out, name);
      }
      const Module* m = modules.find(pc);
      f.offset = pc;
      if (m != nullptr) {
        f.file = intern(out, modules.path(*m));
        f.offset = pc - m->bias;
        add_module(out, f.file, *m);
      }
    }
    return index;
  }

  // process: 0 our own; at the same address others may have other code.
  u32 named(ThreadReport& out, const fr_python_frame& raw_frame, i32 process = 0) noexcept {
    bool is_new = false;
    const u64 key = (raw_frame.code * 0x9e3779b97f4a7c15ull ^ raw_frame.where ^
                     static_cast<u64>(process) << 44) *
                        2 +
                    (raw_frame.flags & FR_FRAME_ENTRY);
    const u32 index = find(out, key, true, &is_new);
    if (is_new) {
      NamedFrame& f = out.frames[index];
      char file[1024];
      char function[512];
      f.entry = (raw_frame.flags & FR_FRAME_ENTRY) != 0;
      if (fr::python()->name(&raw_frame, file, sizeof file, function, sizeof function, &f.line) !=
          0) {
        f.file = intern(out, file);
        f.function = intern(out, function);
      }
    }
    return index;
  }

  bool evaluates(u64 pc) const noexcept {
    const fr_python* p = fr::python();
    return p != nullptr && ((pc >= p->eval_begin && pc < p->eval_end) ||
                            (pc >= p->eval_more_begin && pc < p->eval_more_end));
  }

  // Does the thread wait for the GIL? Told by who called the wait, with nothing but the C library
  // between: all timed waits that the interpreter's own code makes on a condition are for it. Else
  // by the first function with a name within the interpreter's file.
  bool waits_for_gil(const ThreadRow& row, const Raw& r) const noexcept {
    const fr_python* p = fr::python();
    const Module* own = p != nullptr ? modules.find(p->eval_begin) : nullptr;
    if (own == nullptr) {
      return false;
    }
    bool waits = row.task.syscall == SYS_futex;  // it wakes up every 5 ms, so often it does not
    bool timed = false;
    char name[64];
    for (u32 i = 0; i < r.n_pcs && i < 16; ++i) {
      const u64 pc = pcs[r.first_pc + i];
      const Symbol* s = symbol(pc);
      const bool named = s != nullptr && peek_text(s->name, name, sizeof name);
      if (const Module* m = modules.find(pc); m != own) {
        if (m != nullptr && !modules.is_c_library(*m)) {
          return false;  // that library's own wait
        }
        timed = named && std::strcmp(name, "pthread_cond_timedwait") == 0;
        waits = waits || (named && std::strncmp(name, "pthread_cond_", 13) == 0);
        continue;
      }
      if (timed) {
        return true;
      }
      if (evaluates(pc)) {
        return waits;
      }
      if (!named) {
        continue;
      }
      for (const char* taker :
           {"take_gil", "PyEval_RestoreThread", "PyEval_AcquireThread", "PyEval_AcquireLock",
            "PyGILState_Ensure", "_PyThreadState_Attach"}) {
        if (std::strcmp(name, taker) == 0) {
          return true;
        }
      }
      return false;
    }
    return false;
  }

  // Where the main thread of a child is that runs the same interpreter: a worker of a DataLoader.
  void read_child(ThreadReport& out, ChildRow& child) noexcept {
    const fr_python* p = fr::python();
    fr_python_frame* frames = python + n_python;
    const u32 room = std::min(kPython - n_python, kPythonFrames);
    const PeekOther other(child.task.tid);
    u32 n = p->other(0, frames, room);  // forked: all lies where it lies here
    if (n == 0) {
      modules.read(child.task.tid);
      const Module* there = modules.find_file(interpreter);
      const i64 shift = there != nullptr ? static_cast<i64>(there->begin - interpreter_at) : 0;
      n = shift != 0 ? p->other(shift, frames, room) : 0;
    }
    child.first_frame = out.n_words;
    for (u32 i = 0; i < n && i < kChildFrames && out.n_words < ThreadReport::kStackWords; ++i) {
      if (const u32 frame = named(out, frames[i], child.task.tid); frame != ~0u) {
        out.stack[out.n_words++] = frame;
      }
    }
    child.n_frames = out.n_words - child.first_frame;
    p->other(0, nullptr, 0);
  }

  // Last of all: the table of modules is theirs afterwards.
  void read_children(ThreadReport& out) noexcept {
    const fr_python* p = fr::python();
    const Module* own = p != nullptr ? modules.find(p->eval_begin) : nullptr;
    if (own == nullptr || p->other == nullptr) {
      return;
    }
    interpreter_at = own->begin;
    format(interpreter, sizeof interpreter, "%s", modules.path(*own));
    for (u32 i = 0; i < out.n_children; ++i) {
      // A process that the kernel keeps may keep its memory's lock, too.
      if (std::strchr("RSTt", out.children[i].task.state) != nullptr) {
        read_child(out, out.children[i]);
      }
    }
  }

  void add_variables(ThreadReport& out, const ThreadRow& row, u32 position,
                     const fr_python_frame& frame) noexcept {
    char block[4096];
    const std::size_t used = fr::python()->variables(&frame, block, sizeof block);
    for (std::size_t at = 0; at < used && out.n_variables < ThreadReport::kVariables;) {
      const char* name = block + at;
      at += std::strlen(name) + 1;
      const char* value = block + at;
      at += std::strlen(value) + 1;
      out.variables[out.n_variables++] = {static_cast<u32>(&row - out.threads), position,
                                          intern(out, name), intern(out, value)};
    }
  }

  // Native frames, those of the evaluator replaced by the Python frames that it runs. The innermost
  // Python frame and the innermost ones of the user get their variables, `n_variables` in all.
  void merge(ThreadReport& out, ThreadRow& row, const Raw& r, u32 n_variables) noexcept {
    row.first_frame = out.n_words;
    u32 next_python = 0;
    u32 shown = 0;
    bool innermost = true;
    const auto add = [&](u32 frame) {
      if (frame == ~0u) {
        return;
      }
      if (out.n_words == ThreadReport::kStackWords || shown == kShownFrames) {
        ++out.frames_lost;
        return;
      }
      out.stack[out.n_words++] = frame;
      ++shown;
    };
    // Recursion: the innermost and the outermost frames stay.
    const u32 stored = r.n_python;
    const u32 hidden = r.python_total - stored;
    constexpr u32 kMost = 96;
    const u32 skip_from = stored > kMost ? kMost - kPythonTail : stored;
    const u32 skip_to = stored > kMost ? stored - kPythonTail : stored;
    row.python_cut = skip_to - skip_from + hidden;
    // What the Python frames leave; before 3.11 each of them has several native ones of its own.
    u32 natives_left = kShownFrames - std::min(stored, kMost);
    const auto add_native = [&](u64 pc) {
      if (natives_left == 0) {
        ++out.frames_lost;
        return;
      }
      --natives_left;
      add(native(out, pc));
    };
    const auto add_python = [&] {  // frames of one evaluation
      while (next_python < stored) {
        const fr_python_frame& f = python[r.first_python + next_python];
        if (next_python < skip_from || next_python >= skip_to) {
          const u32 index = named(out, f);
          const char* file = index != ~0u ? out.text + out.frames[index].file : "";
          if (n_variables > 0 && !is_own_file(file) && (innermost || !is_library_file(file))) {
            add_variables(out, row, out.n_words - row.first_frame, f);
            innermost = false;
            --n_variables;
          }
          add(index);
        } else if (next_python == skip_from) {
          row.cut_after = shown;
        }
        ++next_python;
        if ((f.flags & FR_FRAME_ENTRY) != 0) {
          break;
        }
      }
    };
    for (u32 i = 0; i < r.n_pcs; ++i) {
      const u64 pc = pcs[r.first_pc + i];
      if (evaluates(pc) && next_python < stored) {
        add_python();
      } else if (next_python <= skip_from || next_python >= skip_to) {
        add_native(pc);
      }
    }
    while (next_python < stored) {
      add_python();  // the native walk ended early
    }
    row.n_frames = out.n_words - row.first_frame;
  }
};

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

// Frees the slots whose thread answered too late, or may never answer because it is gone.
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

// Interrupts the row's thread, whose answer goes into slot i. False where it cannot be interrupted.
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
      const timespec wait{0, static_cast<long>(deadline - now)};
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
