// file_name.hpp - the grammar of file names: <job>.a<attempt>.r<rank>.<number>.fr|ring. The recorder
// writes it, peers and tools read it. Async-signal-safe.
#pragma once

#include <cstddef>

#include "format/layout.hpp"

namespace fr {

struct NameParts {
  char job[128];
  i32 attempt;
  i32 rank;    // -1: "rx"
  u64 number;  // incident of a dump, pid of a live ring
  bool is_fr;  // ends in .fr, else .ring
};
// False when the name follows another grammar.
bool parse_name(const char* name, NameParts& parts) noexcept;
void format_name(char* out, std::size_t bytes, const char* job, i32 attempt, i32 rank, u64 number,
                 const char* ending) noexcept;

}  // namespace fr
