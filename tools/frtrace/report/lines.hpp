// lines.hpp - lines of a fixed width out of text that other programs wrote.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace frtrace {

// Control characters and bytes that are no UTF-8 as \xNN: text of evidence must not drive the
// terminal.
std::string printable(std::string_view);

// Characters, not bytes; `text` is printable.
std::size_t columns(std::string_view text);

// At most `width` columns, the rest as "...".
std::string shortened(std::string text, std::size_t width);

// Broken at spaces into lines of at most `width` columns; the last of `most` lines is shortened.
std::vector<std::string> wrapped(std::string_view text, std::size_t width, std::size_t most);

}  // namespace frtrace
