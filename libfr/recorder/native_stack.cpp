// native_stack.cpp - C++ frames of the calling thread, for FR_STACKS=native. Some microseconds per
// operation, so it is off by default.
//
// The own unwinder (sample/unwind.hpp) is not used here: it reads each word by a system call and
// keeps tables of 80 KiB that a recording thread would have to share under a lock. backtrace() and
// dladdr() allocate nothing once the unwinder is loaded. Names stay as linked; the code that shows
// them demangles them, since that allocates.
#include "recorder/native_stack.hpp"

#include <dlfcn.h>
#include <execinfo.h>

#include <cstring>
#include <iterator>

namespace fr {

void prepare_native_stacks() noexcept {
  void* warm[1];
  backtrace(warm, 1);  // loads the unwinder now: its first call allocates
}

// By the file's own name: site-packages lies below a directory named python3.11, too.
static bool is_interpreter(const char* path) noexcept {
  const char* slash = std::strrchr(path, '/');
  const char* name = slash != nullptr ? slash + 1 : path;
  return std::strncmp(name, "libpython", 9) == 0 || std::strncmp(name, "python", 6) == 0;
}

u32 native_frames(Tables& tables, fr_frame* frames, u32 limit) noexcept {
  void* pcs[FR_MAX_FRAMES + 8];
  const int n = backtrace(pcs, static_cast<int>(std::size(pcs)));
  u32 used = 0;
  for (int i = 2; i < n && used < limit; ++i) {  // 0, 1: this function and fr_begin
    Dl_info info{};
    if (dladdr(pcs[i], &info) == 0 || info.dli_fname == nullptr) {
      continue;
    }
    if (is_interpreter(info.dli_fname)) {
      break;  // Python frames say more
    }
    const char* symbol = info.dli_sname != nullptr ? info.dli_sname : "??";
    frames[used++] = {tables.intern(info.dli_fname, std::strlen(info.dli_fname)),
                      tables.intern(symbol, std::strlen(symbol)), 0};
  }
  return used;
}

}  // namespace fr
