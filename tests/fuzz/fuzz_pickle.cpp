// fuzz_pickle.cpp - PyTorch dumps as pickles.
#include "target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string why;
  frfuzz::go(frtrace::load_torch_pickle({data, size}, why), true);
  return 0;
}
