// memory.hpp - the memory limit of reading, over all files and threads together. A file of 20 KB
// can unpack to gigabytes: before memory grows with a size that a file claims, its reader takes the
// bytes from the limit, and gives them back when it is done with the file.
#pragma once

#include <atomic>
#include <cstddef>
#include <new>

#include "model/rank_data.hpp"

namespace frtrace {

class MemoryLimit {
 public:
  explicit MemoryLimit(std::size_t bytes) : left_(bytes) {}
  bool take(std::size_t bytes) noexcept;
  void give(std::size_t bytes) noexcept;

 private:
  std::atomic<std::size_t> left_;
};

struct OverLimit : std::bad_alloc {
  const char* what() const noexcept override { return "needs more memory than is left"; }
};

// The bytes taken for the file that this thread reads; the destructor gives back the rest. Without
// such an object, readers are not limited.
class FileMemory {
 public:
  explicit FileMemory(MemoryLimit& limit) noexcept;
  ~FileMemory();
  FileMemory(const FileMemory&) = delete;
  FileMemory& operator=(const FileMemory&) = delete;

  static void take(std::size_t bytes);  // throws OverLimit
  static void give(std::size_t bytes) noexcept;

 private:
  MemoryLimit& limit_;
  std::size_t taken_ = 0;
};

// The approximate bytes that the evidence of a rank takes.
std::size_t memory_of(const RankEvidence&);

}  // namespace frtrace
