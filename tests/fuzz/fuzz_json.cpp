// fuzz_json.cpp - PyTorch dumps as JSON.
#include "target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string why;
  frfuzz::go(frtrace::load_torch_json({data, size}, why), true);
  return 0;
}
