// ras_answer.hpp - what NCCL's RAS service answered about the job, as plain data: nccl/ras.* asks, the
// encoder writes it into a dump.
#pragma once

#include <cstddef>

#include "format/layout.hpp"

namespace fr {

inline constexpr std::size_t kRasBytes = 64 * 1024;

struct RasAnswer {
  char address[256] = "";
  u64 asked_unix_ns = 0;
  u64 took_ns = 0;
  bool json = false;
  bool cut = false;  // it had more to say
  const char* text = "";
  u32 bytes = 0;
  const char* error = "";  // "": none
};

}  // namespace fr
