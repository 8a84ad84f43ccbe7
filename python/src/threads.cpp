#include "threads.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstring>

#include "compat.hpp"
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

// ---------------------------------------------------------------- on the interrupted thread

u32 walk(fr_python_frame* out, u32 limit, u32* total, u32* facts) {
  *total = *facts = 0;
  PyThreadState* tstate = PyGILState_GetThisThreadState();
  if (tstate == nullptr || limit <= kTail) {
    return 0;
  }
  *facts = FR_PYTHON_THREAD | (compat::holds_gil(tstate) ? FR_PYTHON_HOLDS_GIL : 0);
  const u64 address = reinterpret_cast<u64>(tstate);
  PyThreadState state;
  u64 at = 0;
  if (!copy(address, state) || !copy(compat::current_frame_at(&state, address), at)) {
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

// ---------------------------------------------------------------- later, on the watchdog

// A text object as UTF-8, cut to fit; "" when it is none.
bool text_at(u64 address, char* to, std::size_t size) noexcept {
  to[0] = '\0';
  PyASCIIObject head;
  if (!copy(address, head) || head.ob_base.ob_type != &PyUnicode_Type || head.state.compact == 0) {
    return false;
  }
  const u64 data = address + (head.state.ascii != 0 ? sizeof(PyASCIIObject)
                                                    : sizeof(PyCompactUnicodeObject));
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
    if (copy(object, head) && head.ob_base.ob_type == &PyBytes_Type && head.ob_size > 0) {
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
  return copy(address, code) && code.ob_base.ob_base.ob_type == &PyCode_Type;
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
  find_evaluator(p);
  fr_set_python(&p);
#endif
}

}  // namespace fr
