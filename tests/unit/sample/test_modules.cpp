// test_modules.cpp - file and function of an address, beside what the loader says.
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
#include "support.hpp"

using namespace fr;
using namespace fr::test;

TEST_CASE("modules: the file and the function of an address, as the loader knows them") {
  prepare_peek();
  auto modules = std::make_unique<ModuleTable>();
  modules->read(getpid());
  std::vector<Symbol> symbols;
  for (void* p : {reinterpret_cast<void*>(&::strtol), reinterpret_cast<void*>(&::qsort),
                  reinterpret_cast<void*>(&::pthread_create)}) {
    symbols.push_back({reinterpret_cast<u64>(p) + 3, 0, 0});
  }
  symbols.push_back({16, 0, 0});
  std::sort(symbols.begin(), symbols.end(),
            [](const Symbol& a, const Symbol& b) { return a.pc < b.pc; });
  modules->name(symbols.data(), static_cast<u32>(symbols.size()));
  for (const Symbol& s : symbols) {
    Dl_info info{};
    const bool known = dladdr(reinterpret_cast<void*>(s.pc), &info) != 0;
    const Module* m = modules->find(s.pc);
    REQUIRE((m != nullptr) == known);
    if (known) {
      CHECK(m->bias == reinterpret_cast<u64>(info.dli_fbase));
      CHECK(s.start == reinterpret_cast<u64>(info.dli_saddr));
    } else {
      CHECK(s.name == 0);
    }
  }
}
