// variables.hpp - variables of a sampled frame and the text of an exception, read by address (see
// objects.hpp), for fr_python of fr.h. Watchdog's thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compat.hpp"
#include "fr/fr.h"

#if FR_RAW_FRAMES
namespace fr {

// Names and values of a frame's variables, each ended by 0, and the number of bytes; plain values
// only, secrets masked.
std::size_t variables(const fr_python_frame* frame, char* out, std::size_t size);

// "ValueError: text, at train.py:23 in load" of an exception object, and the number of bytes; 0:
// there is none.
std::size_t exception(std::uint64_t address, char* out, std::size_t size);

}  // namespace fr
#endif
