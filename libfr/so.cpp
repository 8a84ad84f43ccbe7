// so.cpp - libfr.so is the whole of fr_core, and what happens when a program is started with
// LD_PRELOAD=libfr.so: a program that is not Python gets its NCCL calls recorded without a change.
#include <cstdlib>
#include <cstring>

#include "fr/fr.h"

namespace {

[[gnu::constructor]] void preloaded() noexcept {
  const char* preload = std::getenv("LD_PRELOAD");
  const char* enable = std::getenv("FR_ENABLE");
  const char* path = fr_library_path();
  if (preload == nullptr || std::strstr(preload, "libfr.so") == nullptr || path[0] == '\0' ||
      (enable != nullptr && std::strcmp(enable, "0") == 0)) {
    return;
  }
  if (std::strlen(path) > 254) {
    path = std::strrchr(path, '/') + 1;  // NCCL cuts it; the name finds what is loaded already
  }
  const char* theirs = std::getenv("NCCL_PROFILER_PLUGIN");
  if (theirs == nullptr) {
    setenv("NCCL_PROFILER_PLUGIN", path, 1);
  } else if (std::strcmp(theirs, path) != 0 && std::strcmp(theirs, "none") != 0) {
    setenv("FR_NCCL_CHAIN", theirs, 1);
    setenv("NCCL_PROFILER_PLUGIN", path, 1);
  }
  fr_nccl_hook();
}

}  // namespace
