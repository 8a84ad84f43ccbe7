// fuzz_summary.cpp - summaries: the msgpack inside, or a whole file.
#include <zstd.h>

#include "input/summary/summary.hpp"
#include "target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string why;
  frtrace::reduce::All all;
  static const std::string head = frtrace::reduce::encode(all).substr(0, 20);
  static std::vector<std::uint8_t> packed;
  packed.assign(data, data + size);
  if (!frtrace::reduce::is_summary(packed)) {
    packed.resize(head.size() + ZSTD_compressBound(size));
    std::copy(head.begin(), head.end(), packed.begin());
    packed.resize(head.size() + ZSTD_compress(packed.data() + head.size(),
                                              packed.size() - head.size(), data, size, -50));
  }
  for (const bool all_records : {false, true}) {
    all = frtrace::reduce::decode(packed, all_records, why);
    if (all.size() > 64) {
      all.resize(64);
    }
    frfuzz::report(all);
  }
  if (!all.empty()) {
    (void)frtrace::reduce::encode(all);
    frfuzz::go(std::move(all.front()), false);
  }
  return 0;
}
