// test_memory_read.cpp - memory that may not be there is read without a fault.
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
#include "sample/memory_read.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

TEST_CASE("peek: bad addresses are an answer") {
  prepare_peek();
  u64 value = 7;
  u64 copy = 0;
  CHECK(peek(reinterpret_cast<u64>(&value), &copy, 8));
  CHECK(copy == 7);
  CHECK_FALSE(peek(0, &copy, 8));
  CHECK_FALSE(peek(8, &copy, 8));
  CHECK_FALSE(peek(~0ull - 3, &copy, 8));
  auto* pages = static_cast<char*>(
      mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(pages != MAP_FAILED);
  std::memset(pages, 'x', 8192);
  REQUIRE(mprotect(pages + 4096, 4096, PROT_NONE) == 0);
  char text[64];
  CHECK(peek_some(reinterpret_cast<u64>(pages) + 4086, text, sizeof text) == 10);
  CHECK_FALSE(peek_text(reinterpret_cast<u64>(pages) + 4086, text, sizeof text));
  pages[4090] = '\0';
  CHECK(peek_text(reinterpret_cast<u64>(pages) + 4086, text, sizeof text));
  CHECK(std::string(text) == "xxxx");
  munmap(pages, 8192);
}
