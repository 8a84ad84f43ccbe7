// Which events NCCL is asked for, while it changes.
#include "../unit/catch.hpp"
#include "host.hpp"

using namespace fr;
using namespace fr::test;

extern "C" {
int cudaStreamBeginCapture(void*, int);
int cudaStreamEndCapture(void*, void**);
}

// Each copy of NCCL has a word of its own for the events it is asked for.
TEST_CASE("mask: kernels are not asked for while a graph is captured, of no copy of NCCL") {
  Library::instance().get<u32 (*)()>("fr_nccl_hook")();
  Comm6 one(0x71);
  Comm6 two(0x72, 2, 0, 5);
  const u32 all[] = {static_cast<u32>(one.mask), static_cast<u32>(two.mask)};
  CHECK((all[0] & all[1] & kEvKernelCh) != 0);
  int stream = 0;
  void* graph = nullptr;
  REQUIRE(cudaStreamBeginCapture(&stream, 0) == 0);
  CHECK(static_cast<u32>(one.mask) == (all[0] & ~u32{kEvKernelCh}));
  CHECK(static_cast<u32>(two.mask) == (all[1] & ~u32{kEvKernelCh}));
  cudaStreamEndCapture(&stream, &graph);
  CHECK(static_cast<u32>(one.mask) == all[0]);
  CHECK(static_cast<u32>(two.mask) == all[1]);
}
