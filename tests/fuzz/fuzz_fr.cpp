// fuzz_fr.cpp - fr dumps: the msgpack inside, or a whole file.
#include <zstd.h>

#include "target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string why;
  if (frtrace::format_of({data, size}) == frtrace::Format::kFrDump) {
    frfuzz::go(frtrace::load_fr({data, size}, why), false);
    return 0;
  }
  static std::vector<std::uint8_t> packed;
  packed.resize(ZSTD_compressBound(size));
  packed.resize(ZSTD_compress(packed.data(), packed.size(), data, size, -50));
  frfuzz::go(frtrace::load_fr(packed, why), false);
  return 0;
}
