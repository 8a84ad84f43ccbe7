// thread_work.cpp - frames of a thread and what they are called: native frames merged with Python's,
// each named once.
#include "sample/thread_work.hpp"

#include <sys/syscall.h>

#include <algorithm>
#include <cstring>

#include "format/call_site.hpp"
#include "format/hash.hpp"
#include "format/text.hpp"
#include "sample/sampling_signal.hpp"

namespace fr {
namespace {

constexpr u32 kChildFrames = 32;
constexpr u32 kPythonTail = 32;  // outermost ones that stay when the middle is cut

}  // namespace

u32 ThreadStacks::Work::intern(ThreadReport& out, const char* text) noexcept {
  const std::size_t n = std::strlen(text);
  if (n == 0) {
    return 0;
  }
  u32 at = static_cast<u32>(hash_bytes(text, n));
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

u32 ThreadStacks::Work::find(ThreadReport& out, u64 key, bool is_python, bool* is_new) noexcept {
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

const Symbol* ThreadStacks::Work::symbol(u64 pc) const noexcept {
  const Symbol* end = symbols + n_symbols;
  const Symbol* s =
      std::lower_bound(symbols, end, pc, [](const Symbol& a, u64 value) { return a.pc < value; });
  return s != end && s->pc == pc && s->name != 0 ? s : nullptr;
}

void ThreadStacks::Work::add_module(ThreadReport& out, u32 file, const Module& m) noexcept {
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

u32 ThreadStacks::Work::native(ThreadReport& out, u64 pc) noexcept {
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

u32 ThreadStacks::Work::named(ThreadReport& out, const fr_python_frame& raw_frame,
                              i32 process) noexcept {
  bool is_new = false;
  const u64 key =
      (raw_frame.code * 0x9e3779b97f4a7c15ull ^ raw_frame.where ^ static_cast<u64>(process) << 44) *
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

bool ThreadStacks::Work::evaluates(u64 pc) const noexcept {
  const fr_python* p = fr::python();
  return p != nullptr && ((pc >= p->eval_begin && pc < p->eval_end) ||
                          (pc >= p->eval_more_begin && pc < p->eval_more_end));
}

bool ThreadStacks::Work::waits_for_gil(const ThreadRow& row, const Raw& r) const noexcept {
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
    for (const char* taker : {"take_gil", "PyEval_RestoreThread", "PyEval_AcquireThread",
                              "PyEval_AcquireLock", "PyGILState_Ensure", "_PyThreadState_Attach"}) {
      if (std::strcmp(name, taker) == 0) {
        return true;
      }
    }
    return false;
  }
  return false;
}

void ThreadStacks::Work::read_child(ThreadReport& out, ChildRow& child) noexcept {
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

void ThreadStacks::Work::read_children(ThreadReport& out) noexcept {
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

void ThreadStacks::Work::add_variables(ThreadReport& out, const ThreadRow& row, u32 position,
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

void ThreadStacks::Work::merge(ThreadReport& out, ThreadRow& row, const Raw& r,
                               u32 n_variables) noexcept {
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
  // The room that the Python frames leave; before 3.11 each of them has several native frames.
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

}  // namespace fr
