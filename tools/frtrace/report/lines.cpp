#include "report/lines.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace frtrace {

namespace {

// Bytes of the UTF-8 character at the front; 0: none that may be printed.
std::size_t character(std::string_view s) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char head = byte(0);
  if (head < 0x80) {
    return head >= 0x20 && head != 0x7f ? 1 : 0;
  }
  const std::size_t n = head >= 0xc2 && head < 0xe0   ? 2
                        : head >= 0xe0 && head < 0xf0 ? 3
                        : head >= 0xf0 && head < 0xf5 ? 4
                                                      : 0;
  if (n == 0 || s.size() < n || (head == 0xc2 && byte(1) < 0xa0)) {  // C2 80..9F: C1 controls
    return 0;
  }
  for (std::size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xc0) != 0x80) {
      return 0;
    }
  }
  return n;
}

bool continues(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

// Bytes of the first `width` columns.
std::size_t bytes_of(std::string_view text, std::size_t width) {
  std::size_t at = 0;
  for (std::size_t n = 0; at < text.size(); ++at) {
    if (!continues(text[at]) && n++ == width) {
      break;
    }
  }
  return at;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t n = character(text);
    if (n == 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
      text.remove_prefix(1);
    } else {
      out += text.substr(0, n);
      text.remove_prefix(n);
    }
  }
  return out;
}

std::size_t columns(std::string_view text) {
  std::size_t n = 0;
  for (const char c : text) {
    n += continues(c) ? 0 : 1;
  }
  return n;
}

std::string shortened(std::string text, std::size_t width) {
  if (columns(text) > width) {
    text.resize(bytes_of(text, width - std::min<std::size_t>(width, 3)));
    text += "...";
  }
  return text;
}

std::vector<std::string> wrapped(std::string_view text, std::size_t width, std::size_t most) {
  std::vector<std::string> out;
  while (out.size() + 1 < most && columns(text) > width) {
    const std::size_t end = bytes_of(text, width + 1);
    std::size_t space = text.substr(0, end).rfind(' ');
    space = space == std::string_view::npos || space < end / 2 ? end - 1 : space;
    while (space > 0 && continues(text[space])) {
      --space;
    }
    out.emplace_back(text.substr(0, space));
    text.remove_prefix(space + (text[space] == ' ' ? 1 : 0));
  }
  out.push_back(shortened(std::string(text), width));
  return out;
}

}  // namespace frtrace
