// test_unwind.cpp - the unwinder, beside the compiler's own.
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>

#include "catch.hpp"
#include "sample/modules.hpp"
#include "sample/threads_at_work.hpp"
#include "sample/unwind.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

namespace {

std::unique_ptr<ModuleTable> g_modules;
std::unique_ptr<Unwinder> g_unwinder;
u64 g_pcs[128];
u32 g_n = 0;
bool g_whole = false;
void* g_expected[128];
int g_n_expected = 0;

void unwind_here() {
  ucontext_t context;
  getcontext(&context);
  g_n = g_unwinder->walk(Registers::of(context), {}, g_pcs, 128, &g_whole);
  g_n_expected = backtrace(g_expected, 128);
}

}  // namespace

TEST_CASE("unwind: as the compiler's own unwinder sees it") {
  prepare_peek();
  g_modules = std::make_unique<ModuleTable>();
  g_modules->read(getpid());
  g_unwinder = std::make_unique<Unwinder>(g_modules.get());
  for (const int depth : {0, 5, 60}) {
    CAPTURE(depth);
    deeper(depth, unwind_here);
    REQUIRE(g_whole);
    // sanitizers put a frame of their own before it
    const int more = g_n_expected - static_cast<int>(g_n);
    REQUIRE((more == 0 || more == 1));
    for (u32 i = 1; i < g_n; ++i) {  // the first is where each was called in the same function
      CHECK(g_pcs[i] + 1 == reinterpret_cast<u64>(g_expected[i + static_cast<u32>(more)]));
    }
  }
  // a limit is kept, and a stack that leads nowhere ends
  ucontext_t context;
  getcontext(&context);
  Registers r = Registers::of(context);
  CHECK(g_unwinder->walk(r, {}, g_pcs, 2, &g_whole) == 2);
  CHECK_FALSE(g_whole);
  r.r[Registers::kSp] = 64;
  r.r[Registers::kFp] = 64;
  CHECK(g_unwinder->walk(r, {}, g_pcs, 128, &g_whole) <= 2);
  r.r[Registers::kReturn] = 0;  // where a register has the caller
  r.pc = 0x10;
  CHECK(g_unwinder->walk(r, {}, g_pcs, 128, &g_whole) == 1);
}
