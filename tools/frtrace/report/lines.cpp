#include "report/lines.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "format/text.hpp"

namespace frtrace {

namespace {

bool continues(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

// The number of bytes that the first `width` columns take.
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
    const std::size_t n = fr::printable_bytes(text.data(), text.size());
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
