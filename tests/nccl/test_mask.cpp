// Which events NCCL is asked for, while it changes: over the stand-in for CUDA.
#include "../cuda/rank.hpp"

using namespace fr;
using namespace fr::test;

extern "C" {
int cudaStreamBeginCaptureToGraph(void*, void*, const void*, const void*, size_t, int);
int cudaStreamBeginCapture_ptsz(void*, int);
int cudaStreamEndCapture_ptsz(void*, void**);
int cuStreamBeginCapture(void*);
int cuStreamBeginCapture_v2(void*, int);
int cuStreamBeginCapture_v2_ptsz(void*, int);
int cuStreamBeginCaptureToGraph(void*, void*, const void*, const void*, size_t, int);
int cuStreamEndCapture(void*, void**);
int cuStreamEndCapture_ptsz(void*, void**);
}

namespace {

// A program with hooked calls and a communicator that is asked for kernels.
struct Program {
  Program() : comm(hooked()) {
    REQUIRE(cuCtxCreate_v2(&context, 0, 0) == 0);
    REQUIRE(cuStreamCreate(&stream, 1) == 0);
    REQUIRE(asks());
  }
  static u64 hooked() {
    hook();
    return 0x71;
  }
  // The watchdog may write it, too.
  bool asks() const { return (__atomic_load_n(&comm.mask, __ATOMIC_RELAXED) & kEvKernelCh) != 0; }

  Comm6 comm;
  void* context = nullptr;
  void* stream = nullptr;
  void* graph = nullptr;
};

int begin_first(void* stream, int) {
  return cuStreamBeginCapture(stream);
}
int begin_to_graph(void* stream, int mode) {
  return cudaStreamBeginCaptureToGraph(stream, nullptr, nullptr, nullptr, 0, mode);
}
int driver_begin_to_graph(void* stream, int mode) {
  return cuStreamBeginCaptureToGraph(stream, nullptr, nullptr, nullptr, 0, mode);
}

}  // namespace

// Each copy of NCCL has a word of its own for the events it is asked for.
TEST_CASE("mask: kernels are not asked for while a graph is captured, of no copy of NCCL") {
  Program p;
  Comm6 two(0x72, 2, 0, 5);
  const u32 all[] = {static_cast<u32>(p.comm.mask), static_cast<u32>(two.mask)};
  REQUIRE(cudaStreamBeginCapture(p.stream, 0) == 0);
  CHECK(static_cast<u32>(p.comm.mask) == (all[0] & ~u32{kEvKernelCh}));
  CHECK(static_cast<u32>(two.mask) == (all[1] & ~u32{kEvKernelCh}));
  cudaStreamEndCapture(p.stream, &p.graph);
  CHECK(static_cast<u32>(p.comm.mask) == all[0]);
  CHECK(static_cast<u32>(two.mask) == all[1]);
}

TEST_CASE("mask: a capture is seen by whichever call it is begun and ended") {
  Program p;
  const struct {
    int (*begin)(void*, int);
    int (*end)(void*, void**);
  } calls[] = {{cudaStreamBeginCapture, cudaStreamEndCapture},
               {begin_to_graph, cudaStreamEndCapture},
               {cudaStreamBeginCapture_ptsz, cudaStreamEndCapture_ptsz},
               {begin_first, cuStreamEndCapture},
               {cuStreamBeginCapture_v2, cuStreamEndCapture},
               {driver_begin_to_graph, cuStreamEndCapture},
               {cuStreamBeginCapture_v2_ptsz, cuStreamEndCapture_ptsz}};
  for (const auto& call : calls) {
    CAPTURE(&call - calls);
    REQUIRE(call.begin(p.stream, 0) == 0);
    CHECK_FALSE(p.asks());
    CHECK(call.end(p.stream, &p.graph) == 0);
    CHECK(p.asks());
  }
}

TEST_CASE("mask: captures on two streams, and the end of one that was not seen to begin") {
  Program p;
  void* other = nullptr;
  REQUIRE(cuStreamCreate(&other, 1) == 0);
  cudaStreamEndCapture(other, &p.graph);
  REQUIRE(cudaStreamBeginCapture(p.stream, 1) == 0);
  REQUIRE(cudaStreamBeginCapture(other, 1) == 0);
  cudaStreamEndCapture(p.stream, &p.graph);
  CHECK_FALSE(p.asks());
  cudaStreamEndCapture(other, &p.graph);
  CHECK(p.asks());
}

TEST_CASE("mask: a capture that nobody ends is over when its stream is used or destroyed") {
  Program p;
  REQUIRE(cudaStreamBeginCapture(p.stream, 1) == 0);
  SECTION("begun anew") {
    REQUIRE(cudaStreamBeginCapture(p.stream, 1) == 0);
    CHECK_FALSE(p.asks());
    cudaStreamEndCapture(p.stream, &p.graph);
  }
  SECTION("destroyed") {
    REQUIRE(cudaStreamDestroy(p.stream) == 0);
  }
  CHECK(p.asks());
}

TEST_CASE("mask: a call that says that a capture is invalid ends it") {
  Program p;
  void* event = nullptr;
  REQUIRE(cuEventCreate(&event, 0) == 0);
  REQUIRE(cudaStreamBeginCapture(p.stream, 0) == 0);
  CHECK(cudaEventQuery(event) == 900);  // has broken it
  CHECK(p.asks());
}

TEST_CASE("mask: a capture that nobody ends is over after FR_TIMEOUT_S") {
  setenv("FR_TIMEOUT_S", "1", 1);
  Program p;
  REQUIRE(cudaStreamBeginCapture(p.stream, 1) == 0);
  CHECK_FALSE(p.asks());
  CHECK(eventually([&] { return p.asks(); }));
}
