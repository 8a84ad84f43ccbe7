// threads.cpp - Python frames of sampled threads and of other processes, read by address: no GIL,
// no lock, no code of any object.
#include "threads.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <unwind.h>

#include <algorithm>
#include <cstring>

#include "compat.hpp"
#include "fr/fr.h"
#include "objects.hpp"
#include "variables.hpp"

namespace fr {
namespace {

#if FR_RAW_FRAMES

using namespace objects;

constexpr u32 kMaxChain = 20000;  // frames followed before the chain counts as damaged
constexpr u32 kTail = 64;         // outermost frames that are kept

// ---------------------------------------------------------------- on the interrupted thread

// Frames of the thread state at that address.
u32 walk_from(u64 address, fr_python_frame* out, u32 limit, u32* total) noexcept {
  PyThreadState state;
  u64 at = 0;
  if (limit <= kTail || !copy(address, state) ||
      !copy(compat::current_frame_at(&state, address), at)) {
    return 0;
  }
  u32 n = 0;
  alignas(compat::Frame) unsigned char bytes[sizeof(compat::Frame)];
  for (u32 chain = 0; at != 0 && chain < kMaxChain; ++chain) {
    auto& frame = *reinterpret_cast<compat::Frame*>(bytes);
    if (fr_peek(at, bytes, sizeof bytes) != sizeof bytes) {
      break;
    }
    const auto slot = [&](u32 i) {  // where the i-th frame is kept
      return i < limit - kTail ? i : limit - kTail + (i - (limit - kTail)) % kTail;
    };
    if (compat::is_shim(frame)) {
      if (n > 0) {
        out[slot(n - 1)].flags |= FR_FRAME_ENTRY;
      }
    } else {
      out[slot(n++)] = {at, compat::raw_code(frame), compat::raw_where(frame),
                        compat::is_entry(frame) ? u32{FR_FRAME_ENTRY} : 0u, 0};
    }
    at = reinterpret_cast<u64>(compat::previous(&frame));
  }
  *total = n;
  if (n > limit) {  // the ring at the end, oldest first
    std::rotate(out + limit - kTail, out + limit - kTail + (n - (limit - kTail)) % kTail,
                out + limit);
  }
  return n < limit ? n : limit;
}

u32 walk(fr_python_frame* out, u32 limit, u32* total, u32* facts) {
  *total = *facts = 0;
  PyThreadState* tstate = PyGILState_GetThisThreadState();
  if (tstate == nullptr) {
    return 0;
  }
  *facts = FR_PYTHON_THREAD | (compat::holds_gil(tstate) ? FR_PYTHON_HOLDS_GIL : 0);
  return walk_from(reinterpret_cast<u64>(tstate), out, limit, total);
}

u64 handled() {
  PyThreadState* tstate = PyGILState_GetThisThreadState();
  u64 at = 0;
  if (tstate == nullptr ||
      !copy(reinterpret_cast<u64>(tstate) + offsetof(PyThreadState, exc_info), at)) {
    return 0;
  }
  constexpr int kMaxItems = 64;  // one for each generator that the thread is in
  _PyErr_StackItem item;
  for (int i = 0; i < kMaxItems && at != 0 && copy(at, item); ++i) {
    if (item.exc_value != nullptr && item.exc_value != Py_None) {
      return reinterpret_cast<u64>(item.exc_value);
    }
    at = reinterpret_cast<u64>(item.previous_item);
  }
  return 0;
}

// ---------------------------------------------------------------- later, on the watchdog

int name(const fr_python_frame* frame, char* file, std::size_t file_bytes, char* function,
         std::size_t function_bytes, u32* line) {
  *line = 0;
  file[0] = function[0] = '\0';
  PyCodeObject code;
  if (!code_at(frame->code, code)) {
    return 0;
  }
  text_at(reinterpret_cast<u64>(code.co_filename), file, file_bytes);
  text_at(reinterpret_cast<u64>(compat::name_of(&code)), function, function_bytes);
  const i64 byte = compat::code_byte(frame->where, frame->code);
  // Before its first instruction a frame is at the line of its definition.
  *line = byte < 0 ? static_cast<u32>(std::max(code.co_firstlineno, 0)) : line_at(code, byte);
  return 1;
}

// ---------------------------------------------------------------- other processes

// How another process finds our thread states; both values are determined at import.
u64 g_interpreter_at = 0;  // address of a pointer to the main interpreter
u64 g_threads_offset = 0;  // within the interpreter: pointer to the youngest thread state

void find_threads() noexcept {
  Dl_info info{};
  ElfW(Sym)* symbol = nullptr;
  void* runtime = dlsym(RTLD_DEFAULT, "_PyRuntime");
  PyInterpreterState* main = PyInterpreterState_Main();
  if (runtime == nullptr || main == nullptr ||
      dladdr1(runtime, &info, reinterpret_cast<void**>(&symbol), RTLD_DL_SYMENT) == 0 ||
      symbol == nullptr || PyInterpreterState_Get() != main) {
    return;
  }
  const auto find = [](u64 from, u64 bytes, const void* wanted) -> u64 {
    constexpr u64 kChunk = 512;
    u64 words[kChunk];
    for (u64 at = 0; at < bytes; at += sizeof words) {
      const u64 n = fr_peek(from + at, words, std::min<u64>(sizeof words, bytes - at)) / 8;
      const u64* found = std::find(words, words + n, reinterpret_cast<u64>(wanted));
      if (found != words + n) {
        return from + at + static_cast<u64>(found - words) * 8;
      }
    }
    return 0;
  };
  constexpr u64 kMost = 256 * 1024;
  // Only the pointer to the youngest thread state holds the address of a new one.
  PyThreadState* youngest = PyThreadState_New(main);
  const auto base = reinterpret_cast<u64>(main);
  const u64 head = youngest != nullptr ? find(base, kMost, youngest) : 0;
  if (youngest != nullptr) {
    PyThreadState_Clear(youngest);
    PyThreadState_Delete(youngest);
  }
  g_threads_offset = head != 0 ? head - base : 0;
  g_interpreter_at = head != 0 ? find(reinterpret_cast<u64>(runtime), symbol->st_size, main) : 0;
}

u32 other(i64 shift, fr_python_frame* out, u32 limit) {
  t_shift = shift;
  u64 interpreter = 0;
  u64 thread = 0;
  if (limit == 0 || g_interpreter_at == 0 ||
      !copy(g_interpreter_at + static_cast<u64>(shift), interpreter) ||
      !copy(interpreter + g_threads_offset, thread)) {
    return 0;
  }
  constexpr int kMaxThreads = 4096;
  u64 oldest = 0;
  PyThreadState state;
  for (int i = 0; i < kMaxThreads && thread != 0; ++i) {
    if (!copy(thread, state) || reinterpret_cast<u64>(state.interp) != interpreter) {
      return 0;
    }
    oldest = thread;
    thread = reinterpret_cast<u64>(state.next);
  }
  u32 total = 0;
  const u32 n = oldest != 0 ? walk_from(oldest, out, limit, &total) : 0;
  PyCodeObject code;
  return n != 0 && code_at(out[0].code, code) ? n : 0;
}

// End of the function that begins there, as the tables of the unwinder have it.
u64 end_of(u64 start) noexcept {
  const auto inside = [start](u64 pc) {
    return reinterpret_cast<u64>(_Unwind_FindEnclosingFunction(reinterpret_cast<void*>(pc))) ==
           start;
  };
  u64 low = start;  // inside
  u64 step = 1;
  for (; step < (u64{1} << 24) && inside(start + step); step *= 2) {
    low = start + step;
  }
  for (u64 high = start + step; high - low > 1;) {
    const u64 middle = low + (high - low) / 2;
    (inside(middle) ? low : high) = middle;
  }
  return low + 1;
}

// Compilers split the evaluator into a hot and a cold part; the symbol names only one of them, and
// the other may make all calls. The other part is found on the stack of this call: the interpreter
// has no other function of this size that takes part in an import.
_Unwind_Reason_Code look_for_more(_Unwind_Context* context, void* user) noexcept {
  constexpr u64 kLeast = 24 * 1024;
  auto& p = *static_cast<fr_python*>(user);
  const u64 start = _Unwind_GetRegionStart(context);
  Dl_info here{};
  Dl_info evaluator{};
  if (start == 0 || start == p.eval_begin || dladdr(reinterpret_cast<void*>(start), &here) == 0 ||
      dladdr(reinterpret_cast<void*>(p.eval_begin), &evaluator) == 0 ||
      here.dli_fbase != evaluator.dli_fbase) {
    return _URC_NO_REASON;
  }
  const u64 end = end_of(start);
  if (end - start < kLeast) {
    return _URC_NO_REASON;
  }
  p.eval_more_begin = start;
  p.eval_more_end = end;
  return _URC_NORMAL_STOP;
}

// The evaluator's code, by its symbol.
void find_evaluator(fr_python& p) noexcept {
  void* address = dlsym(RTLD_DEFAULT, "_PyEval_EvalFrameDefault");
  Dl_info info{};
  ElfW(Sym)* symbol = nullptr;
  if (address != nullptr &&
      dladdr1(address, &info, reinterpret_cast<void**>(&symbol), RTLD_DL_SYMENT) != 0 &&
      symbol != nullptr) {
    p.eval_begin = reinterpret_cast<u64>(address);
    p.eval_end = p.eval_begin + symbol->st_size;
    _Unwind_Backtrace(&look_for_more, &p);
  }
}

#endif

}  // namespace

void install_thread_walker() noexcept {
#if FR_RAW_FRAMES
  fr_python p{};
  p.struct_bytes = sizeof p;
  p.walk = &walk;
  p.name = &name;
  p.variables = &variables;
  p.handled = &handled;
  p.exception = &exception;
  find_evaluator(p);
  find_threads();
  p.other = &other;
  fr_set_python(&p);
#endif
}

void tell_thread_holes() noexcept {
#if !FR_RAW_FRAMES
  fr_set_layer("threads", compat::kGil
                              ? "native frames only: this Python is newer than fr knows"
                              : "native frames only: fr cannot read a free-threaded Python's");
#endif
}

}  // namespace fr
