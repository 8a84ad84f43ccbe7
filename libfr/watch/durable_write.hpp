// durable_write.hpp - a file that is whole or not there, also after a crash of the machine.
// Async-signal-safe: the handler of SIGTERM copies the ring with it.
#pragma once

#include <cstddef>

namespace fr {

// mkdir -p. False with errno.
bool make_directories(const char* path) noexcept;

// Makes the directory above `path`, for its owner alone. False where it is there and is not a
// directory of ours that nobody else may write to: in the temporary directory others may have put
// one, or a link, under its name.
bool make_private_parent(const char* path) noexcept;

// Writes dir/name whole: temporary name, fsync, rename, fsync of the directory. On failure no file
// stays and errno says why. path[] gets the final path.
enum class Existing { kReplace, kKeep };  // kKeep: EEXIST where the name is taken
bool write_durably(const char* dir, const char* name, const void* data, std::size_t bytes,
                   char* path, std::size_t path_bytes,
                   Existing existing = Existing::kReplace) noexcept;

}  // namespace fr
