// objects.cpp - Python's objects read by address.
#include "objects.hpp"

#include <algorithm>
#include <cstring>

#if FR_RAW_FRAMES
namespace fr::objects {

thread_local i64 t_shift __attribute__((tls_model("initial-exec"))) = 0;

u64 word_at(u64 address) noexcept {
  u64 value = 0;
  return copy(address, value) ? value : 0;
}

bool is_type(const PyTypeObject* found, const PyTypeObject& type) noexcept {
  return reinterpret_cast<u64>(found) == reinterpret_cast<u64>(&type) + static_cast<u64>(t_shift);
}

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

namespace {

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

}  // namespace

// By the table's own format (Objects/locations.md of CPython).
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

}  // namespace fr::objects
#endif
