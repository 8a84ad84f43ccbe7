// native_stack.cpp - C++ frames of the calling thread, for FR_STACKS=native. Some microseconds per
// operation: off unless asked for.
#include "recorder/native_stack.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <cstdlib>
#include <cstring>
#include <iterator>

namespace fr {

void prepare_native_stacks() noexcept {
  void* warm[1];
  backtrace(warm, 1);  // loads the unwinder now: its first call allocates
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
    if (std::strstr(info.dli_fname, "libpython") != nullptr ||
        std::strstr(info.dli_fname, "/python3") != nullptr) {
      break;  // the interpreter: Python frames say more
    }
    int status = 0;
    char* name = info.dli_sname != nullptr
                     ? abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status)
                     : nullptr;
    const char* symbol = name != nullptr ? name : info.dli_sname != nullptr ? info.dli_sname : "??";
    frames[used++] = {tables.intern(info.dli_fname, std::strlen(info.dli_fname)),
                      tables.intern(symbol, std::strlen(symbol)), 0};
    std::free(name);
  }
  return used;
}

}  // namespace fr
