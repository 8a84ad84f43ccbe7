// compat.hpp - every difference between CPython versions, one tiny function per API.
//
// kRawFrames says whether this version's frame layout is known; where it is not, frames.cpp takes
// the public API, and only while the GIL is held. Nothing here takes the GIL, allocates or changes
// a reference count unless it says so.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#if !defined(Py_GIL_DISABLED) && PY_VERSION_HEX < 0x030F0000
#define FR_RAW_FRAMES 1
#else
#define FR_RAW_FRAMES 0
#endif

#if FR_RAW_FRAMES && PY_VERSION_HEX >= 0x030B0000
// The interpreter's own frame structure. Internal headers warn under our flags and
// want C11 atomics.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wcast-align"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE
#define FR_UNDEF_BUILD_CORE
#endif
#include <internal/pycore_code.h>
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe_structs.h>
#else
#include <internal/pycore_frame.h>
#endif
#ifdef FR_UNDEF_BUILD_CORE
#undef Py_BUILD_CORE
#undef FR_UNDEF_BUILD_CORE
#endif
#pragma GCC diagnostic pop
#endif

namespace fr::compat {

inline constexpr bool kRawFrames = FR_RAW_FRAMES != 0;
#ifdef Py_GIL_DISABLED
inline constexpr bool kGil = false;
#else
inline constexpr bool kGil = true;
#endif

inline bool finalizing() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

#if FR_RAW_FRAMES

#if PY_VERSION_HEX >= 0x030B0000
using Frame = _PyInterpreterFrame;
#else
using Frame = struct _frame;
#endif

#if PY_VERSION_HEX >= 0x030E0000
inline constexpr int kFirstShimOwner = FRAME_OWNED_BY_INTERPRETER;
#elif PY_VERSION_HEX >= 0x030C0000
inline constexpr int kFirstShimOwner = FRAME_OWNED_BY_CSTACK;
#endif

// The address in a word of a frame. Since 3.14 the lowest bit tells whether the frame owns the
// reference.
inline std::uint64_t untagged(std::uint64_t word) noexcept {
#if PY_VERSION_HEX >= 0x030E0000
  return word & ~std::uint64_t{1};
#else
  return word;
#endif
}

inline std::uint64_t raw_code(const Frame& copy) noexcept {
#if PY_VERSION_HEX >= 0x030E0000
  return untagged(copy.f_executable.bits);
#elif PY_VERSION_HEX >= 0x030D0000
  return reinterpret_cast<std::uint64_t>(copy.f_executable);
#else
  return reinterpret_cast<std::uint64_t>(copy.f_code);
#endif
}

// Innermost frame of a thread, complete or not; null when it runs no Python.
inline Frame* current_frame(PyThreadState* tstate) noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return tstate->current_frame;
#elif PY_VERSION_HEX >= 0x030B0000
  return tstate->cframe != nullptr ? tstate->cframe->current_frame : nullptr;
#else
  return tstate->frame;
#endif
}

inline Frame* previous(Frame* frame) noexcept {
#if PY_VERSION_HEX >= 0x030B0000
  return frame->previous;
#else
  return frame->f_back;
#endif
}

// The frame's code, borrowed; null where the frame runs none: entry shims, frames still
// being set up.
inline PyCodeObject* code_of(Frame* frame) noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  auto* code = reinterpret_cast<PyCodeObject*>(raw_code(*frame));
  if (frame->owner >= kFirstShimOwner || !PyCode_Check(reinterpret_cast<PyObject*>(code))) {
    return nullptr;
  }
  const bool incomplete = frame->owner != FRAME_OWNED_BY_GENERATOR &&
                          frame->instr_ptr < _PyCode_CODE(code) + code->_co_firsttraceable;
  return incomplete ? nullptr : code;
#elif PY_VERSION_HEX >= 0x030B0000
#if PY_VERSION_HEX >= 0x030C0000
  if (frame->owner >= kFirstShimOwner) {
    return nullptr;
  }
#endif
  PyCodeObject* code = frame->f_code;
  const bool incomplete = frame->owner != FRAME_OWNED_BY_GENERATOR &&
                          frame->prev_instr < _PyCode_CODE(code) + code->_co_firsttraceable;
  return incomplete ? nullptr : code;
#else
  return frame->f_code;
#endif
}

// Distinguishes the call sites of one code object; cheap, good for hashing only.
inline std::uint64_t site_of(Frame* frame) noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return reinterpret_cast<std::uintptr_t>(frame->instr_ptr);
#elif PY_VERSION_HEX >= 0x030B0000
  return reinterpret_cast<std::uintptr_t>(frame->prev_instr);
#else
  return static_cast<std::uint64_t>(frame->f_lasti);
#endif
}

// Line the frame is at; 0 unknown. PyCode_Addr2Line only reads the code's line table, in every
// version that has raw frames here.
inline int line_of(Frame* frame, PyCodeObject* code) noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  const auto index = frame->instr_ptr - _PyCode_CODE(code);
  const int byte = static_cast<int>(index) * static_cast<int>(sizeof(_Py_CODEUNIT));
#elif PY_VERSION_HEX >= 0x030B0000
  const auto index = frame->prev_instr - _PyCode_CODE(code);
  const int byte = static_cast<int>(index) * static_cast<int>(sizeof(_Py_CODEUNIT));
#else
  const int byte = frame->f_lasti * 2;
#endif
  const int line = PyCode_Addr2Line(code, byte);
  return line > 0 ? line : 0;
}

// --- frames of a thread that was interrupted anywhere: all of these take copies made by fr_peek,
// and addresses, which are not followed.

// Where the thread's innermost frame is found: the address of a pointer to it. `tstate` is a copy.
inline std::uint64_t current_frame_at(const PyThreadState* copy, std::uint64_t tstate) noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  (void)copy;
  return tstate + offsetof(PyThreadState, current_frame);
#elif PY_VERSION_HEX >= 0x030B0000
  (void)tstate;
  return reinterpret_cast<std::uint64_t>(copy->cframe) + offsetof(_PyCFrame, current_frame);
#else
  (void)copy;
  return tstate + offsetof(PyThreadState, frame);
#endif
}

// Where in its code the frame is, as code_byte takes it.
inline std::uint64_t raw_where(const Frame& copy) noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return reinterpret_cast<std::uint64_t>(copy.instr_ptr);
#elif PY_VERSION_HEX >= 0x030B0000
  return reinterpret_cast<std::uint64_t>(copy.prev_instr);
#else
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(copy.f_lasti));
#endif
}

// Stands for the native code that called the evaluator; runs no code itself.
inline bool is_shim(const Frame& copy) noexcept {
#if PY_VERSION_HEX >= 0x030C0000
  return copy.owner >= kFirstShimOwner;
#else
  (void)copy;
  return false;
#endif
}

// The frame before it, or none, is of another run of the evaluator.
inline bool is_entry(const Frame& copy) noexcept {
#if PY_VERSION_HEX >= 0x030C0000
  (void)copy;
  return false;  // the shim that follows says so
#elif PY_VERSION_HEX >= 0x030B0000
  return copy.is_entry;
#else
  (void)copy;
  return true;  // one run per frame
#endif
}

// Byte of the code that `where` is at; negative before its first instruction.
inline std::int64_t code_byte(std::uint64_t where, std::uint64_t code) noexcept {
#if PY_VERSION_HEX >= 0x030B0000
  return static_cast<std::int64_t>(where) -
         static_cast<std::int64_t>(code + offsetof(PyCodeObject, co_code_adaptive));
#else
  (void)code;
  return static_cast<std::int64_t>(where) * 2;
#endif
}

// --- variables: where they lie in copies and beside addresses

// Tuples of names; their items, one after the other, name the words at locals_at().
struct Names {
  std::uint64_t tuples[3] = {};
};
inline Names names_of(const PyCodeObject& copy) noexcept {
#if PY_VERSION_HEX >= 0x030B0000
  return {{reinterpret_cast<std::uint64_t>(copy.co_localsplusnames)}};
#else
  return {{reinterpret_cast<std::uint64_t>(copy.co_varnames),
           reinterpret_cast<std::uint64_t>(copy.co_cellvars),
           reinterpret_cast<std::uint64_t>(copy.co_freevars)}};
#endif
}

inline std::uint64_t locals_at(std::uint64_t frame) noexcept {
#if PY_VERSION_HEX >= 0x030B0000
  return frame + offsetof(_PyInterpreterFrame, localsplus);
#else
  return frame + offsetof(struct _frame, f_localsplus);
#endif
}

// Sign of an int and how many digits follow at int_digits.
inline void int_size(const PyLongObject& copy, int* sign, std::uint64_t* n_digits) noexcept {
#if PY_VERSION_HEX >= 0x030C0000
  *sign = 1 - static_cast<int>(copy.long_value.lv_tag & 3);
  *n_digits = copy.long_value.lv_tag >> 3;
#else
  const Py_ssize_t size = copy.ob_base.ob_size;
  *sign = size < 0 ? -1 : size > 0 ? 1 : 0;
  *n_digits = static_cast<std::uint64_t>(size < 0 ? -size : size);
#endif
}
inline std::uint64_t int_digits(std::uint64_t object) noexcept {
#if PY_VERSION_HEX >= 0x030C0000
  return object + offsetof(PyLongObject, long_value.ob_digit);
#else
  return object + offsetof(PyLongObject, ob_digit);
#endif
}

// Where an instance keeps its attributes: the address of a dict, or of values that go with the keys
// of its type. `word` reads one at an address, 0 when it cannot.
#if PY_VERSION_HEX >= 0x030D0000
inline constexpr std::uint64_t kValuesHead = 8;  // capacity, size, embedded, valid
#else
inline constexpr std::uint64_t kValuesHead = 0;
#endif
struct Attributes {
  std::uint64_t dict = 0;
  std::uint64_t values = 0;
  std::uint64_t keys = 0;
};
template <class Word>
Attributes attributes_of(std::uint64_t object, std::uint64_t type, const PyTypeObject& copy,
                         Word word) noexcept {
  Attributes out;
  if ((copy.tp_flags & Py_TPFLAGS_HEAPTYPE) == 0) {
    return out;
  }
  [[maybe_unused]] const auto cached_keys = [&] {
    return word(type + offsetof(PyHeapTypeObject, ht_cached_keys));
  };
#if PY_VERSION_HEX >= 0x030D0000
  if ((copy.tp_flags & Py_TPFLAGS_MANAGED_DICT) != 0) {
    out.dict = word(object - 24);
    const std::uint64_t inline_values = object + static_cast<std::uint64_t>(copy.tp_basicsize);
    if ((copy.tp_flags & Py_TPFLAGS_INLINE_VALUES) != 0 &&
        (word(inline_values) >> 24 & 0xff) != 0) {  // valid
      out.values = inline_values + kValuesHead;
      out.keys = cached_keys();
    }
    return out;
  }
#elif PY_VERSION_HEX >= 0x030C0000
  if ((copy.tp_flags & Py_TPFLAGS_MANAGED_DICT) != 0) {
    const std::uint64_t either = word(object - 24);
    if ((either & 1) != 0) {
      out.values = either + 1;
      out.keys = cached_keys();
    } else {
      out.dict = either;
    }
    return out;
  }
#elif PY_VERSION_HEX >= 0x030B0000
  if ((copy.tp_flags & Py_TPFLAGS_MANAGED_DICT) != 0) {
    out.dict = word(object - 24);
    out.values = word(object - 32);
    out.keys = out.values != 0 ? cached_keys() : 0;
    return out;
  }
#endif
  Py_ssize_t offset = copy.tp_dictoffset;
  if (offset < 0) {  // counted from the end of an object with items: a subclass of int or tuple
    const auto size = static_cast<Py_ssize_t>(word(object + offsetof(PyVarObject, ob_size)));
    const Py_ssize_t items = size < 0 ? -size : size;
    offset += (copy.tp_basicsize + items * copy.tp_itemsize + 7) / 8 * 8;
  }
  if (offset > 0) {
    out.dict = word(object + static_cast<std::uint64_t>(offset));
  }
  return out;
}

// Values of a dict that shares its keys; 0: they lie beside the keys.
inline std::uint64_t split_values(const PyDictObject& copy) noexcept {
  return copy.ma_values != nullptr ? reinterpret_cast<std::uint64_t>(copy.ma_values) + kValuesHead
                                   : 0;
}

// The head of a dict's keys, which no public header describes.
struct DictKeys {
#if PY_VERSION_HEX >= 0x030B0000
  std::int64_t refcount;
  std::uint8_t log2_size, log2_index_bytes, kind, padding;
  std::uint32_t version;
  std::int64_t usable, n_entries;
  std::uint64_t index_bytes() const noexcept { return std::uint64_t{1} << (log2_index_bytes & 63); }
  bool hashes() const noexcept { return kind == 0; }  // entries are hash, key, value
#else
  std::int64_t refcount, size;
  std::uint64_t lookup;
  std::int64_t usable, n_entries;
  std::uint64_t index_bytes() const noexcept {
    const auto n = static_cast<std::uint64_t>(size);
    return n <= 0xff ? n : n <= 0xffff ? n * 2 : n <= 0xffffffff ? n * 4 : n * 8;
  }
  bool hashes() const noexcept { return true; }
#endif
};

// --- exceptions

// The frame's code, by a copy of the frame object that a traceback holds; 0: it cannot be told.
template <class Word>
std::uint64_t code_of_frame_object(std::uint64_t object, Word word) noexcept {
#if PY_VERSION_HEX >= 0x030B0000
  constexpr std::uint64_t kInterpreterFrame = sizeof(PyObject) + sizeof(void*);  // after f_back
#if PY_VERSION_HEX < 0x030E0000
  static_assert(offsetof(struct _frame, f_frame) == kInterpreterFrame);
#endif
  alignas(Frame) unsigned char bytes[sizeof(Frame)] = {};
  const std::uint64_t frame = word(object + kInterpreterFrame);
  for (std::uint64_t i = 0; frame != 0 && i < sizeof bytes / 8; ++i) {
    const std::uint64_t value = word(frame + i * 8);
    std::memcpy(bytes + i * 8, &value, 8);
  }
  return raw_code(*reinterpret_cast<const Frame*>(bytes));
#else
  return word(object + offsetof(struct _frame, f_code));
#endif
}

// Layout of the table of lines: PEP 626's pairs (3.10), or entries with columns.
inline constexpr bool kLinePairs = PY_VERSION_HEX < 0x030B0000;

#endif  // FR_RAW_FRAMES

// Does the calling thread hold the GIL? Only reads two words.
inline bool holds_gil(PyThreadState* tstate) noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  PyThreadState* current = PyThreadState_GetUnchecked();
#else
  PyThreadState* current = _PyThreadState_UncheckedGet();
#endif
  return tstate != nullptr && current == tstate;
}

// Qualified name where the version has one. Borrowed. Unknown versions: co_name is always there.
inline PyObject* name_of(PyCodeObject* code) noexcept {
#if PY_VERSION_HEX >= 0x030B0000
  return code->co_qualname;
#else
  return code->co_name;
#endif
}

// Characters of a unicode object without the GIL; false for the legacy strings of 3.10 and 3.11
// that have none yet.
struct Text {
  int kind;  // bytes per character: 1, 2, 4
  const void* data;
  Py_ssize_t length;
};

inline bool text_of(PyObject* object, Text* out) noexcept {
  if (object == nullptr || !PyUnicode_Check(object)) {
    return false;
  }
#if PY_VERSION_HEX < 0x030C0000
  if (!PyUnicode_IS_READY(object)) {
    return false;
  }
#endif
  out->kind = static_cast<int>(PyUnicode_KIND(object));
  out->data = PyUnicode_DATA(object);
  out->length = PyUnicode_GET_LENGTH(object);
  return true;
}

inline std::uint64_t load8(const char* bytes) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, 8);
  return word;
}

// Differs between two code objects that lay at the same address one after the other, also where
// file, name and first line lie where those of the first did: text run by exec, a cell run again.
// (The co_version of 3.12 and later is not unique enough.) Lines of a function count from its first
// one, so both ends of its table are enough; at module level it takes more of it, and the name of
// the file.
inline std::uint64_t identity_of(PyCodeObject* code) noexcept {
  PyObject* table = code->co_linetable;
  const char* bytes = PyBytes_AS_STRING(table);
  const auto size = static_cast<std::size_t>(Py_SIZE(table));
  std::uint64_t hash = reinterpret_cast<std::uintptr_t>(table) * 31 + size;
  const auto mix = [&hash](std::uint64_t head, std::uint64_t tail) {
    hash = (hash ^ head) * 0x9e3779b97f4a7c15ull + (tail ^ hash >> 29);
  };
  if (size >= 8) {
    mix(load8(bytes), load8(bytes + size - 8));
  } else {
    for (std::size_t i = 0; i < size; ++i) {
      mix(static_cast<unsigned char>(bytes[i]), i);
    }
  }
  if ((code->co_flags & CO_OPTIMIZED) != 0) {
    return hash;
  }
  for (std::size_t i = 8; i + 8 <= size && i < 64; i += 8) {
    mix(load8(bytes + i), load8(bytes + size - 8 - i));
  }
  Text file;
  if (text_of(code->co_filename, &file)) {
    const auto length = static_cast<std::size_t>(file.length * file.kind);
    const char* end = static_cast<const char*>(file.data) + length;
    mix(length, length >= 8 ? load8(end - 8) : 0);
    for (std::size_t i = 1; length < 8 && i <= length; ++i) {
      mix(static_cast<unsigned char>(*(end - i)), i);
    }
  }
  return hash;
}

}  // namespace fr::compat
