// directory.hpp - lists a directory without readdir(), which allocates. Async-signal-safe.
#pragma once

namespace fr {

// Calls visit(name, context) for every entry of a directory but . and ..; false when the directory
// cannot be read.
bool each_entry(const char* dir, void (*visit)(const char* name, void* context),
                void* context) noexcept;

}  // namespace fr
