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

}  // namespace fr
