// threads.cpp - Python frames and variables of sampled threads, read by address: no GIL, no
// lock, no code of any object.
#include "threads.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <unwind.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "compat.hpp"
#include "format/call_site.hpp"
#include "format/secrets.hpp"
#include "fr/fr.h"

namespace fr {
namespace {

#if FR_RAW_FRAMES

using u8 = std::uint8_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i64 = std::int64_t;

constexpr u32 kMaxChain = 20000;  // frames followed before the chain counts as damaged
constexpr u32 kTail = 64;         // outermost frames that are kept

template <class T>
bool copy(u64 address, T& to) noexcept {
  return fr_peek(address, &to, sizeof to) == sizeof to;
}

// The interpreter of another process lies so far beyond ours; see other().
thread_local i64 t_shift = 0;

bool is_type(const PyTypeObject* found, const PyTypeObject& type) noexcept {
  return reinterpret_cast<u64>(found) == reinterpret_cast<u64>(&type) + static_cast<u64>(t_shift);
}

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

// A text object as UTF-8, cut to fit; "" when it is none.
bool text_at(u64 address, char* to, std::size_t size) noexcept {
  to[0] = '\0';
  PyASCIIObject head;
  if (!copy(address, head) || !is_type(head.ob_base.ob_type, PyUnicode_Type) ||
      head.state.compact == 0) {
    return false;
  }
  const u64 data =
      address + (head.state.ascii != 0 ? sizeof(PyASCIIObject) : sizeof(PyCompactUnicodeObject));
  const u32 kind = head.state.kind;
  if (head.length < 0 || (kind != 1 && kind != 2 && kind != 4)) {
    return false;
  }
  unsigned char raw[512];
  const u64 bytes = std::min<u64>(static_cast<u64>(head.length) * kind, sizeof raw);
  if (fr_peek(data, raw, bytes) != bytes) {
    return false;
  }
  std::size_t used = 0;
  for (u64 i = 0; i < bytes && used + 5 < size; i += kind) {
    u32 c = 0;
    std::memcpy(&c, raw + i, kind);
    c = (c >= 0xd800 && c < 0xe000) || c > 0x10ffff ? 0xfffd : c == 0 ? ' ' : c;
    if (c < 0x80) {
      to[used++] = static_cast<char>(c);
    } else if (c < 0x800) {
      to[used++] = static_cast<char>(0xc0 | c >> 6);
      to[used++] = static_cast<char>(0x80 | (c & 0x3f));
    } else {
      if (c < 0x10000) {
        to[used++] = static_cast<char>(0xe0 | c >> 12);
      } else {
        to[used++] = static_cast<char>(0xf0 | c >> 18);
        to[used++] = static_cast<char>(0x80 | (c >> 12 & 0x3f));
      }
      to[used++] = static_cast<char>(0x80 | (c >> 6 & 0x3f));
      to[used++] = static_cast<char>(0x80 | (c & 0x3f));
    }
  }
  to[used] = '\0';
  return true;
}

// Reads a bytes object front to back.
class Bytes {
 public:
  explicit Bytes(u64 object) noexcept {
    PyVarObject head;
    if (copy(object, head) && is_type(head.ob_base.ob_type, PyBytes_Type) && head.ob_size > 0) {
      at_ = object + offsetof(PyBytesObject, ob_sval);
      left_ = static_cast<u64>(head.ob_size);
    }
  }
  bool next(u8& byte) noexcept {
    if (used_ == filled_) {
      filled_ = static_cast<u32>(std::min<u64>(left_, sizeof buffer_));
      used_ = 0;
      if (filled_ == 0 || fr_peek(at_, buffer_, filled_) != filled_) {
        filled_ = 0;
        left_ = 0;
        return false;
      }
      at_ += filled_;
      left_ -= filled_;
    }
    byte = buffer_[used_++];
    return true;
  }

 private:
  u64 at_ = 0;
  u64 left_ = 0;
  u32 used_ = 0;
  u32 filled_ = 0;
  u8 buffer_[512];
};

// Line of a byte of the code, 0 none; by the table's own format (Objects/locations.md of CPython).
u32 line_at(const PyCodeObject& code, i64 byte) noexcept {
  Bytes table(reinterpret_cast<u64>(code.co_linetable));
  i64 line = code.co_firstlineno;
  i64 end = 0;
  u8 first = 0;
  if (compat::kLinePairs) {
    u8 delta = 0;
    while (table.next(first) && table.next(delta)) {
      end += first;
      const bool none = delta == 0x80;
      line += none ? 0 : static_cast<std::int8_t>(delta);
      if (byte < end) {
        return none || line <= 0 ? 0 : static_cast<u32>(line);
      }
    }
    return 0;
  }
  bool have = table.next(first);
  while (have) {
    end += ((first & 7) + 1) * 2;
    const u32 form = first >> 3 & 15;
    // the first number of a long or column-less entry is the signed growth of the line
    u64 value = 0;
    u32 shift = 0;
    bool number = true;
    u8 next = 0;
    while ((have = table.next(next)) && (next & 0x80) == 0) {
      if (number) {
        value |= shift < 64 ? u64{next & 63u} << shift : 0;
        shift += 6;
        number = (next & 64) != 0;
      }
    }
    if (form == 13 || form == 14) {
      line += (value & 1) != 0 ? -static_cast<i64>(value >> 1) : static_cast<i64>(value >> 1);
    } else if (form >= 10 && form <= 12) {
      line += form - 10;
    }
    if (byte < end) {
      return form == 15 || line <= 0 ? 0 : static_cast<u32>(line);
    }
    first = next;
  }
  return 0;
}

bool code_at(u64 address, PyCodeObject& code) noexcept {
  return copy(address, code) && is_type(Py_TYPE(reinterpret_cast<PyObject*>(&code)), PyCode_Type);
}

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

// How a thread state is found from outside; both are found in ourselves at import.
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
  // A new one stands where the youngest is kept, and nowhere else.
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

// ---------------------------------------------------------------- variables

constexpr u32 kMaxVariables = 24;  // of one frame, attributes included
constexpr int kMaxScanned = 64;
constexpr std::size_t kMaxText = 120;
constexpr std::size_t kMaxRead = 500;  // of a text, so that a secret is seen before it is cut

u64 word_at(u64 address) noexcept {
  u64 value = 0;
  return copy(address, value) ? value : 0;
}

// The adapter's, for the process's life.
struct Tensors {
  u64 base;
  std::size_t offset;
  TensorReader read;
};
std::atomic<const Tensors*> g_tensors{nullptr};

bool tensor_value(u64 object, u64 type, char* out, std::size_t size) noexcept {
  const Tensors* t = g_tensors.load(std::memory_order_acquire);
  constexpr u32 kMaxBases = 32;
  for (u32 i = 0; t != nullptr && i < kMaxBases && type != 0; ++i) {
    if (type == t->base) {
      return t->read(word_at(object + t->offset), out, size) != 0;
    }
    type = word_at(type + offsetof(PyTypeObject, tp_base));
  }
  return false;
}

// As Python writes it, cut at kMaxText.
void bytes_value(u64 object, i64 length, char* out, std::size_t size) noexcept {
  unsigned char raw[kMaxText / 2];
  const u64 wanted = std::min<u64>(static_cast<u64>(std::max<i64>(length, 0)), sizeof raw);
  const u64 n = fr_peek(object + offsetof(PyBytesObject, ob_sval), raw, wanted);
  std::size_t used = 0;
  const auto add = [&](const char* text) {
    const std::size_t bytes = std::strlen(text);
    if (used + bytes < size) {
      std::memcpy(out + used, text, bytes + 1);
      used += bytes;
    }
  };
  add("b'");
  u64 i = 0;
  for (; i < n && used + 8 < kMaxText; ++i) {
    char one[8];
    const unsigned char c = raw[i];
    const char* form = c == '\'' || c == '\\' ? "\\%c" : c >= 0x20 && c < 0x7f ? "%c" : "\\x%02x";
    std::snprintf(one, sizeof one, form, c);
    add(one);
  }
  add(static_cast<i64>(i) < length ? "...'" : "'");
}

bool plain_value(u64 object, Secrecy secrecy, char* out, std::size_t size,
                 bool inside = false) noexcept;

// "[1, 'a']" where all elements are plain and there is room for them.
bool sequence_value(u64 object, const PyVarObject& head, char* out, std::size_t size) noexcept {
  const bool list = head.ob_base.ob_type == &PyList_Type;
  constexpr i64 kMaxElements = 8;
  if (head.ob_size < 0 || head.ob_size > kMaxElements) {
    return false;
  }
  const u64 items = list ? word_at(object + offsetof(PyListObject, ob_item))
                         : object + offsetof(PyTupleObject, ob_item);
  std::size_t used = 0;
  out[used++] = list ? '[' : '(';
  for (i64 i = 0; i < head.ob_size; ++i) {
    char one[kMaxText + 16];
    if (!plain_value(word_at(items + static_cast<u64>(i) * 8), Secrecy::kNone, one, sizeof one,
                     true)) {
      return false;
    }
    const std::size_t bytes = std::strlen(one);
    if (used + bytes + 6 > size) {
      return false;
    }
    used += static_cast<std::size_t>(
        std::snprintf(out + used, size - used, "%s%s", i != 0 ? ", " : "", one));
  }
  std::snprintf(out + used, size - used, "%s", list ? "]" : head.ob_size == 1 ? ",)" : ")");
  return true;
}

// Value of a plain type as text; false for all others. No code of the object's type runs.
// inside: an element of a container, whose own containers are not opened.
bool plain_value(u64 object, Secrecy secrecy, char* out, std::size_t size, bool inside) noexcept {
  PyVarObject head;
  if (object == reinterpret_cast<u64>(Py_None)) {
    std::snprintf(out, size, "None");
    return true;
  }
  if (object == reinterpret_cast<u64>(Py_True) || object == reinterpret_cast<u64>(Py_False)) {
    std::snprintf(out, size, object == reinterpret_cast<u64>(Py_True) ? "True" : "False");
    return true;
  }
  if (fr_peek(object, &head, sizeof(PyObject)) != sizeof(PyObject)) {
    return false;
  }
  const PyTypeObject* type = head.ob_base.ob_type;
  const bool text = type == &PyUnicode_Type || type == &PyBytes_Type;
  const bool number = type == &PyLong_Type || type == &PyFloat_Type;
  if ((text && secrecy != Secrecy::kNone) || (number && secrecy == Secrecy::kFull)) {
    std::snprintf(out, size, "'***'");
    return true;
  }
  if (type == &PyLong_Type) {
    PyLongObject value;
    int sign = 0;
    u64 n = 0;
    if (!copy(object, value)) {
      return false;
    }
    compat::int_size(value, &sign, &n);
    u32 digits[2] = {};
    if (n > 2 || (n > 0 && fr_peek(compat::int_digits(object), digits, n * 4) != n * 4)) {
      std::snprintf(out, size, "int of %llu bits", static_cast<unsigned long long>(n * 30));
      return n > 2;
    }
    const u64 magnitude = digits[0] | u64{digits[1]} << 30;
    std::snprintf(out, size, "%s%llu", sign < 0 ? "-" : "",
                  static_cast<unsigned long long>(magnitude));
    return true;
  }
  if (type == &PyFloat_Type) {
    PyFloatObject value;
    if (!copy(object, value)) {
      return false;
    }
    std::snprintf(out, size, "%.12g", value.ob_fval);
    return true;
  }
  if (type == &PyUnicode_Type) {
    char read[kMaxRead];
    PyASCIIObject whole;
    if (!text_at(object, read, sizeof read) || !copy(object, whole)) {
      return false;
    }
    for (char* c = read; *c != '\0'; ++c) {
      *c = static_cast<unsigned char>(*c) < 0x20 ? ' ' : *c;
    }
    const std::size_t all = std::strlen(read);
    const auto characters =
        std::count_if(read, read + all, [](char c) { return (c & 0xc0) != 0x80; });
    const std::size_t masked = mask_secrets(read, all);
    std::size_t n = std::min(masked, kMaxText - 1);
    while (n > 0 && n < masked && (read[n] & 0xc0) == 0x80) {
      --n;  // not in the middle of a character
    }
    const bool cut = n < masked || characters < whole.length;
    std::snprintf(out, size, "'%.*s%s'", static_cast<int>(n), read, cut ? "..." : "");
    return true;
  }
  if (type == &PyBytes_Type && copy(object, head)) {
    bytes_value(object, head.ob_size, out, size);
    return true;
  }
  if ((type == &PyList_Type || type == &PyTuple_Type) && copy(object, head)) {
    if (!inside && secrecy == Secrecy::kNone && sequence_value(object, head, out, size)) {
      return true;
    }
    std::snprintf(out, size, "%s of %lld", type == &PyList_Type ? "list" : "tuple",
                  static_cast<long long>(head.ob_size));
    return true;
  }
  if (type == &PyDict_Type) {
    PyDictObject dict;
    if (!copy(object, dict)) {
      return false;
    }
    std::snprintf(out, size, "dict of %lld", static_cast<long long>(dict.ma_used));
    return true;
  }
  return tensor_value(object, reinterpret_cast<u64>(type), out, size);
}

// ", at train.py:23 in load" of the user's frame nearest to where it was raised, else of that one.
std::size_t raised_at(u64 traceback, char* out, std::size_t size) noexcept {
  constexpr int kMaxFrames = 256;
  char file[512];
  char function[256];
  std::size_t used = 0;
  bool is_users = false;
  PyTracebackObject entry;
  for (int i = 0; i < kMaxFrames && traceback != 0 && copy(traceback, entry) &&
                  Py_TYPE(reinterpret_cast<PyObject*>(&entry)) == &PyTraceBack_Type;
       ++i, traceback = reinterpret_cast<u64>(entry.tb_next)) {
    PyCodeObject code;
    if (!code_at(compat::code_of_frame_object(reinterpret_cast<u64>(entry.tb_frame), &word_at),
                 code)) {
      continue;
    }
    text_at(reinterpret_cast<u64>(code.co_filename), file, sizeof file);
    const bool users = !is_library_file(file);
    if (is_users && !users) {
      continue;
    }
    is_users = users;
    text_at(reinterpret_cast<u64>(compat::name_of(&code)), function, sizeof function);
    const char* slash = std::strrchr(file, '/');
    const int line =
        entry.tb_lineno > 0 ? entry.tb_lineno : static_cast<int>(line_at(code, entry.tb_lasti));
    const int n = std::snprintf(out, size, ", at %s:%d in %s", slash != nullptr ? slash + 1 : file,
                                line, function);
    used = std::min<std::size_t>(n > 0 ? static_cast<std::size_t>(n) : 0, size - 1);
  }
  return used;
}

std::size_t exception(u64 address, char* out, std::size_t size) {
  PyBaseExceptionObject error;
  PyTypeObject type;
  if (!copy(address, error) ||
      !copy(reinterpret_cast<u64>(Py_TYPE(reinterpret_cast<PyObject*>(&error))), type) ||
      (type.tp_flags & Py_TPFLAGS_BASE_EXC_SUBCLASS) == 0) {
    return 0;  // freed meanwhile
  }
  char name[128] = "";
  fr_peek(reinterpret_cast<u64>(type.tp_name), name, sizeof name - 1);
  const char* dot = std::strrchr(name, '.');
  char message[kMaxRead] = "";
  PyVarObject args;
  if (copy(reinterpret_cast<u64>(error.args), args) && args.ob_base.ob_type == &PyTuple_Type) {
    const u64 items = reinterpret_cast<u64>(error.args) + offsetof(PyTupleObject, ob_item);
    constexpr Py_ssize_t kArgs = 2;  // of an OSError the second one is the text
    for (Py_ssize_t i = 0; i < std::min(args.ob_size, kArgs) && message[0] == '\0'; ++i) {
      text_at(word_at(items + static_cast<u64>(i) * 8), message, sizeof message);
    }
  }
  message[std::strcspn(message, "\n")] = '\0';
  std::size_t bytes = mask_secrets(message, std::strlen(message));
  constexpr std::size_t kShown = 160;
  if (bytes > kShown) {
    bytes = kShown;
    while (bytes > 0 && (message[bytes] & 0xc0) == 0x80) {
      --bytes;  // not in the middle of a character
    }
  }
  const int n = std::snprintf(out, size, "%s%s%.*s", dot != nullptr ? dot + 1 : name,
                              bytes != 0 ? ": " : "", static_cast<int>(bytes), message);
  const std::size_t used = std::min<std::size_t>(n > 0 ? static_cast<std::size_t>(n) : 0, size - 1);
  return used + raised_at(reinterpret_cast<u64>(error.traceback), out + used, size - used);
}

class Writer {
 public:
  Writer(char* out, std::size_t size) noexcept : out_(out), size_(size) {}
  bool full() const noexcept { return n_ == kMaxVariables; }
  // prefix "self." or ""; names that are none of Python's are passed over.
  void add(const char* prefix, u64 name_object, u64 value_object) noexcept {
    char name[128];
    char value[kMaxText + 16];
    if (full() || value_object == 0 || !text_at(name_object, name, sizeof name) ||
        !plain_value(value_object, secrecy_of(name), value, sizeof value)) {
      return;
    }
    value[mask_secrets(value, std::strlen(value))] = '\0';
    const std::size_t need = std::strlen(prefix) + std::strlen(name) + std::strlen(value) + 2;
    if (used_ + need > size_) {
      return;
    }
    used_ +=
        static_cast<std::size_t>(std::snprintf(out_ + used_, size_ - used_, "%s%s", prefix, name)) +
        1;
    used_ += static_cast<std::size_t>(std::snprintf(out_ + used_, size_ - used_, "%s", value)) + 1;
    ++n_;
  }
  std::size_t used() const noexcept { return used_; }

 private:
  char* out_;
  std::size_t size_;
  std::size_t used_ = 0;
  u32 n_ = 0;
};

// Entries of a dict's keys; values: of a split dict or an instance, 0: beside the keys.
void add_entries(Writer& w, u64 keys, u64 values) noexcept {
  compat::DictKeys head;
  if (keys == 0 || !copy(keys, head) || head.n_entries < 0) {
    return;
  }
  const u64 entries = keys + sizeof head + head.index_bytes();
  const u64 stride = head.hashes() ? 24 : 16;
  const u64 n = std::min<u64>(static_cast<u64>(head.n_entries), u64{kMaxScanned});
  for (u64 i = 0; i < n && !w.full(); ++i) {
    const u64 entry = entries + i * stride + (head.hashes() ? 8 : 0);
    const u64 value = values != 0 ? word_at(values + i * 8) : word_at(entry + 8);
    w.add("self.", word_at(entry), value);
  }
}

void add_attributes(Writer& w, u64 object) noexcept {
  PyObject head;
  PyTypeObject type;
  if (!copy(object, head) || !copy(reinterpret_cast<u64>(head.ob_type), type)) {
    return;
  }
  const auto where =
      compat::attributes_of(object, reinterpret_cast<u64>(head.ob_type), type, &word_at);
  if (where.values != 0) {
    add_entries(w, where.keys, where.values);
    return;
  }
  PyDictObject dict;
  if (where.dict != 0 && copy(where.dict, dict)) {
    add_entries(w, reinterpret_cast<u64>(dict.ma_keys), compat::split_values(dict));
  }
}

std::size_t variables(const fr_python_frame* frame, char* out, std::size_t size) {
  Writer w(out, size);
  alignas(compat::Frame) unsigned char bytes[sizeof(compat::Frame)];
  PyCodeObject code;
  // The thread went on after it answered: is this still the frame that it was?
  if (fr_peek(frame->frame, bytes, sizeof bytes) != sizeof bytes ||
      compat::raw_code(*reinterpret_cast<compat::Frame*>(bytes)) != frame->code ||
      !code_at(frame->code, code)) {
    return 0;
  }
  u64 value_at = compat::locals_at(frame->frame);
  u64 self = 0;
  int scanned = 0;
  for (const u64 tuple : compat::names_of(code).tuples) {
    PyVarObject names;
    if (tuple == 0 || !copy(tuple, names) || names.ob_base.ob_type != &PyTuple_Type) {
      break;
    }
    u64 name_at = tuple + offsetof(PyTupleObject, ob_item);
    for (Py_ssize_t i = 0; i < names.ob_size && scanned < kMaxScanned && !w.full(); ++i) {
      const u64 name_object = word_at(name_at);
      u64 value = compat::untagged(word_at(value_at));
      name_at += 8;
      value_at += 8;
      ++scanned;
      PyObject head;
      if (value != 0 && copy(value, head) && head.ob_type == &PyCell_Type) {
        value = word_at(value + offsetof(PyCellObject, ob_ref));
      }
      char name[16];
      if (text_at(name_object, name, sizeof name) && std::strcmp(name, "self") == 0) {
        self = value != 0 ? value : self;
        continue;
      }
      w.add("", name_object, value);
    }
  }
  if (self != 0) {
    add_attributes(w, self);
  }
  return w.used();
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

// Compilers split the evaluator into the part that a profile saw run and the rest; the symbol names
// one of them, and calls may all be made by the other. That one is found where it calls us: the
// interpreter has no other function of this size that could have to do with an import.
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

void set_tensor_reader([[maybe_unused]] const void* base, [[maybe_unused]] std::size_t offset,
                       [[maybe_unused]] TensorReader reader) noexcept {
#if FR_RAW_FRAMES
  static Tensors kept;  // once: the watchdog may be reading it
  if (kept.base == 0) {
    kept = {reinterpret_cast<u64>(base), offset, reader};
    g_tensors.store(&kept, std::memory_order_release);
  }
#endif
}

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
