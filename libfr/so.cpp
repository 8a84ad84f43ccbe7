// so.cpp - libfr.so is the whole of fr_core, and what happens when a program is started with
// LD_PRELOAD=libfr.so: a program that is not Python gets its NCCL calls recorded without a change.
#include <cstdlib>
#include <cstring>

#include "fr/fr.h"

namespace {

[[gnu::constructor]] void preloaded() noexcept {
  const char* preload = std::getenv("LD_PRELOAD");
  if (preload == nullptr || std::strstr(preload, "libfr.so") == nullptr) {
    return;
  }
  char enable[8];
  fr_option("FR_ENABLE", enable, sizeof enable);
  if (std::strcmp(enable, "0") != 0) {
    fr_nccl_announce();
    fr_nccl_hook();
  }
}

}  // namespace
