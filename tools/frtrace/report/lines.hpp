// lines.hpp - lines of a fixed width out of text that other programs wrote.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace frtrace {

// Writes control characters and invalid UTF-8 as \xNN: text of evidence must not control the
// terminal.
std::string printable(std::string_view);

// The number of characters, not bytes; `text` must be printable.
std::size_t columns(std::string_view text);

// Cuts `text` to at most `width` columns; "..." marks the cut.
std::string shortened(std::string text, std::size_t width);

// Breaks at spaces into lines of at most `width` columns; the last of `most` lines is shortened.
std::vector<std::string> wrapped(std::string_view text, std::size_t width, std::size_t most);

}  // namespace frtrace
