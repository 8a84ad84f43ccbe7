// text.cpp - snprintf's async-signal-safe stand-in. glibc's own takes a lock for its buffers
// and may allocate.
#include "format/text.hpp"

#include <cstdarg>

#include "format/layout.hpp"

namespace fr {

std::size_t format(char* out, std::size_t bytes, const char* text, ...) noexcept {
  std::size_t n = 0;
  const auto put = [&](char c) {
    if (n + 1 < bytes) {
      out[n++] = c;
    }
  };
  const auto put_number = [&](u64 value, u64 base = 10) {
    char digits[24];
    int i = 0;
    do {
      digits[i++] = "0123456789abcdef"[value % base];
      value /= base;
    } while (value != 0);
    while (i > 0) {
      put(digits[--i]);
    }
  };
  va_list args;
  va_start(args, text);
  for (; *text != '\0'; ++text) {
    if (*text != '%') {
      put(*text);
      continue;
    }
    switch (*++text) {
      case 's':
        for (const char* s = va_arg(args, const char*); *s != '\0'; ++s) {
          put(*s);
        }
        break;
      case '.': {  // "%.*s"
        const int most = va_arg(args, int);
        const char* s = va_arg(args, const char*);
        for (int i = 0; i < most && s[i] != '\0'; ++i) {
          put(s[i]);
        }
        text += 2;
        break;
      }
      case 'd': {
        const int value = va_arg(args, int);
        if (value < 0) {
          put('-');
        }
        put_number(static_cast<u64>(value < 0 ? -static_cast<long long>(value) : value));
        break;
      }
      case 'u':
        put_number(va_arg(args, unsigned));
        break;
      case 'l':
        put_number(va_arg(args, u64));
        break;
      case 'x':
        put_number(va_arg(args, u64), 16);
        break;
      default:
        put('%');
    }
  }
  va_end(args);
  if (bytes > 0) {
    out[n] = '\0';
  }
  return n;
}

std::size_t printable_bytes(const char* text, std::size_t bytes) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (bytes == 0) {
    return 0;
  }
  const u32 head = byte(0);
  if (head < 0x80) {
    return head >= 0x20 && head != 0x7f ? 1 : 0;
  }
  const std::size_t n = head >= 0xc2 && head < 0xe0   ? 2
                        : head >= 0xe0 && head < 0xf0 ? 3
                        : head >= 0xf0 && head < 0xf5 ? 4
                                                      : 0;
  if (n == 0 || bytes < n) {
    return 0;
  }
  u32 c = head & (0xffu >> (n + 1));
  for (std::size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xc0u) != 0x80) {
      return 0;
    }
    c = c << 6 | (byte(i) & 0x3fu);
  }
  const auto between = [c](u32 first, u32 last) { return c >= first && c <= last; };
  const bool overlong = c < (n == 2 ? 0x80u : n == 3 ? 0x800u : 0x10000u);
  const bool hidden = between(0x80, 0x9f) || c == 0xad || c == 0x61c || c == 0x180e ||
                      between(0x200b, 0x200f) || between(0x2028, 0x202e) ||
                      between(0x2060, 0x206f) || between(0xd800, 0xdfff) || c == 0xfeff ||
                      between(0xfff9, 0xfffb) || between(0xe0000, 0xe007f) || c > 0x10ffff;
  return overlong || hidden ? 0 : n;
}

std::size_t format_line(char* out, std::size_t size, const char* text, std::size_t bytes) noexcept {
  constexpr std::size_t kEscape = 4;  // "\xNN"
  std::size_t used = 0;
  for (std::size_t at = 0; at < bytes;) {
    const std::size_t n = printable_bytes(text + at, bytes - at);
    const char c = text[at];
    const bool blank = c == '\n' || c == '\r' || c == '\t';
    if (used + (n != 0 ? n : blank ? 1 : kEscape) >= size) {
      break;
    }
    if (n != 0) {
      for (std::size_t i = 0; i < n; ++i) {
        out[used++] = text[at + i];
      }
    } else if (blank) {
      out[used++] = ' ';
    } else {
      const auto digit = [](unsigned value) { return "0123456789abcdef"[value & 15]; };
      out[used++] = '\\';
      out[used++] = 'x';
      out[used++] = digit(static_cast<unsigned char>(c) >> 4);
      out[used++] = digit(static_cast<unsigned char>(c));
    }
    at += n != 0 ? n : 1;
  }
  if (size > 0) {
    out[used] = '\0';
  }
  return used;
}

}  // namespace fr
