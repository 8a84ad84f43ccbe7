// replay FILE|DIR... - runs the target on files, where there is no libFuzzer.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "target.hpp"

int main(int argc, char** argv) {
  std::size_t n = 0;
  const auto one = [&](const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    ++n;
  };
  for (int i = 1; i < argc; ++i) {
    if (std::filesystem::is_directory(argv[i])) {
      for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
        one(entry.path());
      }
    } else {
      one(argv[i]);
    }
  }
  std::printf("%zu inputs\n", n);
  return n == 0 ? 1 : 0;
}
