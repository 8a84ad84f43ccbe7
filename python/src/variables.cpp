// variables.cpp - what is in the variables of sampled frames, and exceptions as text.
#include "variables.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "format/call_site.hpp"
#include "format/secrets.hpp"
#include "objects.hpp"
#include "threads.hpp"

namespace fr {

#if FR_RAW_FRAMES

using namespace objects;

namespace {

constexpr u32 kMaxVariables = 24;  // of one frame, attributes included
constexpr int kMaxScanned = 64;
constexpr std::size_t kMaxText = 120;
constexpr std::size_t kMaxRead = 500;  // of a text, so that a secret is seen before it is cut

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
// inside: the object is an element of a container; containers in it are not opened.
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

// ", at train.py:23 in load": the user's frame nearest to the raising frame, else the raising
// frame.
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

}  // namespace

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
    constexpr Py_ssize_t kArgs = 2;  // the text of an OSError is the second argument
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

namespace {

class Writer {
 public:
  Writer(char* out, std::size_t size) noexcept : out_(out), size_(size) {}
  bool full() const noexcept { return n_ == kMaxVariables; }
  // prefix: "self." or "". Skips names that are not text, and values that are not plain.
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

}  // namespace

std::size_t variables(const fr_python_frame* frame, char* out, std::size_t size) {
  Writer w(out, size);
  alignas(compat::Frame) unsigned char bytes[sizeof(compat::Frame)];
  PyCodeObject code;
  // The thread has run since it was sampled: check that the frame still runs the same code.
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

#endif

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

}  // namespace fr
