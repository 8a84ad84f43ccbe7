// objects.hpp - Python's objects read by address, as fr_peek copies them: no GIL, no lock, no
// reference count, no code of any object. Every function may be handed any number: what cannot be
// read is no object. Watchdog's thread, but for copy(), which the sampling handler calls too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compat.hpp"
#include "fr/fr.h"

#if FR_RAW_FRAMES
namespace fr::objects {

using u8 = std::uint8_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i64 = std::int64_t;

// Offset of the other process's interpreter from ours while its objects are read; else 0.
extern thread_local i64 t_shift __attribute__((tls_model("initial-exec")));

template <class T>
bool copy(u64 address, T& to) noexcept {
  return fr_peek(address, &to, sizeof to) == sizeof to;
}

// The word that stands there; 0: cannot be read.
u64 word_at(u64 address) noexcept;

bool is_type(const PyTypeObject* found, const PyTypeObject& type) noexcept;

// A text object as UTF-8, cut to fit; "" when it is none.
bool text_at(u64 address, char* to, std::size_t size) noexcept;

bool code_at(u64 address, PyCodeObject& code) noexcept;

// Line of a byte of the code, 0 none.
u32 line_at(const PyCodeObject& code, i64 byte) noexcept;

}  // namespace fr::objects
#endif
