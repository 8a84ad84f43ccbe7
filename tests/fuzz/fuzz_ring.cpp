// fuzz_ring.cpp - rings: a list of changes to a sound region, or a whole region.
#include <cstring>

#include "target.hpp"
#include "unit/frtrace/region.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string why;
  if (frtrace::format_of({data, size}) == frtrace::Format::kRing) {
    frfuzz::go(frtrace::load_ring({data, size}, 1, frtrace::RingKind::kCopy, why), false);
    return 0;
  }
  static frtest::Region sound(70);
  frtest::Region region(sound);
  auto* const bytes = const_cast<unsigned char*>(region.bytes().data());
  const std::size_t n = region.bytes().size();
  struct Change {
    std::uint32_t offset;
    std::uint8_t value[8];
  };
  for (; size >= sizeof(Change); data += sizeof(Change), size -= sizeof(Change)) {
    Change c;
    std::memcpy(&c, data, sizeof c);
    std::memcpy(bytes + c.offset % (n - sizeof c.value), c.value, sizeof c.value);
  }
  frfuzz::go(frtrace::load_ring(region.bytes(), 1, frtrace::RingKind::kCopy, why), false);
  return 0;
}
