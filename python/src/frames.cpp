// frames.cpp - the call site of an operation as an id: a walk over the interpreter's frames and a
// cache, without the GIL.
#include "frames.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "compat.hpp"
#include "format/call_site.hpp"
#include "fr/fr.h"

namespace fr {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

// ---------------------------------------------------------------- hash -> id

constexpr u32 kSlots = 16384;  // power of two
constexpr u32 kMaxUsed = 12288;
constexpr u32 kMaxProbes = 64;

struct Slot {
  std::atomic<u64> key;  // 0 free; published last
  std::atomic<u32> id;
};

Slot g_slots[kSlots];
u32 g_used = 0;        // under g_miss_lock
u32 g_generation = 0;  // under g_miss_lock: recorder that the ids in the table belong to
pthread_mutex_t g_miss_lock = PTHREAD_MUTEX_INITIALIZER;

u64 mix(u64 a, u64 b) noexcept {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<u64>(product) ^ static_cast<u64>(product >> 64);
}

constexpr u64 kP0 = 0x9e3779b97f4a7c15ull;
constexpr u64 kP1 = 0xd6e8feb86659fd93ull;
constexpr u64 kP2 = 0xa0761d6478bd642full;

// Id kept for a hash, or -1 (unknown) as u64.
constexpr u64 kUnknown = ~0ull;

u64 find(u64 key) noexcept {
  for (u32 probe = 0; probe < kMaxProbes; ++probe) {
    const Slot& slot = g_slots[(key + probe) & (kSlots - 1)];
    const u64 found = slot.key.load(std::memory_order_acquire);
    if (found == key) {
      return slot.id.load(std::memory_order_relaxed);
    }
    if (found == 0) {
      return kUnknown;
    }
  }
  return kUnknown;
}

// Under g_miss_lock.
void insert(u64 key, u32 id) noexcept {
  for (u32 probe = 0; probe < kMaxProbes; ++probe) {
    Slot& slot = g_slots[(key + probe) & (kSlots - 1)];
    if (slot.key.load(std::memory_order_relaxed) == 0) {
      slot.id.store(id, std::memory_order_relaxed);
      slot.key.store(key, std::memory_order_release);
      ++g_used;
      return;
    }
  }
}

// Under g_miss_lock. Ids of an older recorder never match: the generation seeds every hash.
void forget_older(u32 generation) noexcept {
  if (generation == g_generation) {
    return;
  }
  for (Slot& slot : g_slots) {
    slot.key.store(0, std::memory_order_relaxed);
  }
  g_used = 0;
  g_generation = generation;
}

bool g_recorded_at_fork = false;
bool g_child_of_recorder = false;

void before_fork() noexcept {
  g_recorded_at_fork = fr_enabled() != 0;
}

void after_fork_in_child() noexcept {
  g_miss_lock = PTHREAD_MUTEX_INITIALIZER;  // a parent's thread may have held it
  g_child_of_recorder = g_child_of_recorder || g_recorded_at_fork;
}

// ---------------------------------------------------------------- text

// A unicode object as UTF-8, cut at 1 KiB; "" when it is none.
struct Utf8 {
  explicit Utf8(PyObject* object) noexcept;
  std::string_view view() const noexcept { return {buffer, used}; }
  char buffer[1024];
  std::size_t used = 0;
};

Utf8::Utf8(PyObject* object) noexcept {
  compat::Text text;
  if (!compat::text_of(object, &text)) {
    return;
  }
  for (Py_ssize_t i = 0; i < text.length && used + 4 <= sizeof buffer; ++i) {
    u32 c = 0;
    if (text.kind == 1) {
      c = static_cast<const Py_UCS1*>(text.data)[i];
    } else if (text.kind == 2) {
      c = static_cast<const Py_UCS2*>(text.data)[i];
    } else {
      c = static_cast<const Py_UCS4*>(text.data)[i];
    }
    if (c >= 0xd800 && c < 0xe000) {
      c = 0xfffd;  // undecodable byte of a file name
    }
    if (c < 0x80) {
      buffer[used++] = static_cast<char>(c);
    } else if (c < 0x800) {
      buffer[used++] = static_cast<char>(0xc0 | c >> 6);
      buffer[used++] = static_cast<char>(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
      buffer[used++] = static_cast<char>(0xe0 | c >> 12);
      buffer[used++] = static_cast<char>(0x80 | (c >> 6 & 0x3f));
      buffer[used++] = static_cast<char>(0x80 | (c & 0x3f));
    } else {
      buffer[used++] = static_cast<char>(0xf0 | c >> 18);
      buffer[used++] = static_cast<char>(0x80 | (c >> 12 & 0x3f));
      buffer[used++] = static_cast<char>(0x80 | (c >> 6 & 0x3f));
      buffer[used++] = static_cast<char>(0x80 | (c & 0x3f));
    }
  }
}

// 0 when it is none.
u32 intern_text(PyObject* object) noexcept {
  const Utf8 text(object);
  return fr_intern(text.buffer, text.used);
}

// ---------------------------------------------------------------- walk

#if FR_RAW_FRAMES

// Frames that make a call site another one, beyond those that are kept: the user's may lie there.
constexpr u32 kDeepest = 128;

struct Place {
  compat::Frame* frame;
  PyCodeObject* code;
};

bool is_users(PyCodeObject* code) noexcept {
  return !is_library_file(Utf8(code->co_filename).view());
}

// Libraries upon libraries may fill all frames that a stack has: the last of them then gives way to
// the user's innermost frame, without which the call site says little.
void keep_user_frame(Place* places) noexcept {
  Place& last = places[FR_MAX_FRAMES - 1];
  u32 left = kDeepest - FR_MAX_FRAMES;
  if (std::any_of(places, places + FR_MAX_FRAMES,
                  [](const Place& s) { return is_users(s.code); })) {
    return;
  }
  for (compat::Frame* f = last.frame; f != nullptr && left > 0; f = compat::previous(f), --left) {
    if (PyCodeObject* code = compat::code_of(f); code != nullptr && is_users(code)) {
      last = {f, code};
      return;
    }
  }
}

// Slow exit of capture_stack: first time this stack is seen, or table full.
__attribute__((cold, noinline)) u32 symbolize(u64 key, u32 generation, Place* places,
                                              u32 n) noexcept {
  pthread_mutex_lock(&g_miss_lock);
  forget_older(generation);
  u64 id = find(key);
  if (id == kUnknown && g_used >= kMaxUsed) {
    id = 0;  // libfr's own table of stacks filled up long before
  }
  if (id == kUnknown) {
    if (n == FR_MAX_FRAMES) {
      keep_user_frame(places);
    }
    fr_frame frames[FR_MAX_FRAMES];
    for (u32 i = 0; i < n; ++i) {
      frames[i].file = intern_text(places[i].code->co_filename);
      frames[i].func = intern_text(compat::name_of(places[i].code));
      frames[i].line = static_cast<u32>(compat::line_of(places[i].frame, places[i].code));
    }
    id = fr_stack(frames, n);
    insert(key, static_cast<u32>(id));  // also 0: a full table is tried once per stack
  }
  pthread_mutex_unlock(&g_miss_lock);
  return static_cast<u32>(id);
}

#else

// Public API of an unknown Python: needs the GIL, so only what its holder issues gets a stack. No
// cache: about 25 ns per frame and an intern per name.
u32 capture_public() noexcept {
  if (PyGILState_Check() == 0) {
    return 0;
  }
  fr_frame frames[FR_MAX_FRAMES];
  u32 n = 0;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());  // strong
  while (frame != nullptr && n < FR_MAX_FRAMES) {
    PyCodeObject* code = PyFrame_GetCode(frame);  // strong
    frames[n].file = intern_text(code->co_filename);
    frames[n].func = intern_text(compat::name_of(code));
    const int line = PyFrame_GetLineNumber(frame);
    frames[n].line = line > 0 ? static_cast<u32>(line) : 0;
    ++n;
    Py_DECREF(code);
    PyFrameObject* back = PyFrame_GetBack(frame);  // strong
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  return n == 0 ? 0 : fr_stack(frames, n);
}

#endif

}  // namespace

std::uint32_t capture_stack() noexcept {
  if (compat::finalizing()) {
    return 0;  // other threads' states may be freed any moment
  }
#if FR_RAW_FRAMES
  PyThreadState* tstate = PyGILState_GetThisThreadState();
  if (tstate == nullptr) {
    return 0;
  }
  Place places[FR_MAX_FRAMES];
  u32 n = 0;
  u32 left = kDeepest;
  const u32 generation = fr_generation();
  u64 hash = mix(generation + kP0, kP1);
  for (compat::Frame* frame = compat::current_frame(tstate); frame != nullptr && left > 0;
       frame = compat::previous(frame), --left) {
    PyCodeObject* code = compat::code_of(frame);
    if (code == nullptr) {
      continue;
    }
    if (n < FR_MAX_FRAMES) {
      places[n++] = {frame, code};
    }
    // Independent multiplications per frame; only the last line is a chain.
    const u64 a = mix(reinterpret_cast<std::uintptr_t>(code) ^ kP0, compat::site_of(frame) ^ kP1);
    const auto file = reinterpret_cast<std::uintptr_t>(code->co_filename);
    const auto name = reinterpret_cast<std::uintptr_t>(compat::name_of(code));
    const u64 b = mix(file ^ compat::identity_of(code) ^ kP2,
                      name ^ kP0 ^ static_cast<u64>(code->co_firstlineno) << 32);
    hash = (hash << 7 | hash >> 57) * kP0 + (a ^ b);
  }
  if (n == 0) {
    return 0;
  }
  hash = mix(hash, kP2) | 1;
  const u64 id = find(hash);
  if (__builtin_expect(id != kUnknown, 1)) {
    return static_cast<u32>(id);
  }
  return symbolize(hash, generation, places, n);
#else
  return capture_public();
#endif
}

void install_stack_provider() noexcept {
  static bool done = false;
  if (!done) {
    done = true;
    pthread_atfork(before_fork, nullptr, after_fork_in_child);
  }
  fr_set_stack_provider(&capture_stack);
}

bool silent_child() noexcept {
  return g_child_of_recorder && fr_enabled() == 0;
}

void be_silent_child() noexcept {
  g_child_of_recorder = true;
}

const char* frame_walk_kind() noexcept {
  return compat::kRawFrames ? "raw" : "public";
}

}  // namespace fr
