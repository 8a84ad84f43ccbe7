// Calls redirected in the objects that make them, however those were linked and loaded.
#include <link.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>

#include "../unit/catch.hpp"
#include "host.hpp"

using namespace fr;
using namespace fr::test;

struct ncclComm;
extern "C" {
int ncclGetUniqueId(fr::nccl::UniqueId*);
int ncclCommInitRank(ncclComm**, int, fr::nccl::UniqueId, int);
int ncclCommAbort(ncclComm*);
int ncclCommSuspend(ncclComm*, int);
int ncclAllReduce(const void*, void*, size_t, int, int, ncclComm*, void*);
// Makes this program look like Python with ctypes linked into it.
__attribute__((visibility("default"))) const char* Py_GetVersion() {
  return "";
}
}

namespace {

u32 hook() {
  return Library::instance().get<u32 (*)()>("fr_nccl_hook")();
}

u64 recorded() {
  return view().header().head.load();
}

struct Alone {
  Alone() {
    setenv("NCCL_PROFILER_PLUGIN", "none", 1);
    hook();
    UniqueId id;
    ncclGetUniqueId(&id);
    REQUIRE(ncclCommInitRank(&comm, 1, id, 0) == 0);
  }
  ~Alone() { ncclCommAbort(comm); }
  ncclComm* comm = nullptr;
};

struct Caller {
  explicit Caller(const char* name, int flags = RTLD_NOW)
      : handle(dlopen((std::string(FR_GOT_DIR "/lib") + name + ".so").c_str(), flags)) {
    INFO(dlerror());
    REQUIRE(handle != nullptr);
  }
  template <class... A>
  int call(const char* name, A... arguments) const {
    return reinterpret_cast<int (*)(A...)>(dlsym(handle, name))(arguments...);
  }
  const void* place() const { return dlsym(handle, "got_call"); }
  // Does the call leave a record?
  bool is_seen(ncclComm* comm, const char* name = "got_call") const {
    const u64 before = recorded();
    CHECK(call(name, comm) == 0);
    return recorded() == before + 1;
  }
  void* handle;
};

}  // namespace

TEST_CASE("got: objects bound late, early, by pointers, and loaded later are redirected") {
  const Caller early("got_now");
  const Caller late("got_lazy", RTLD_LAZY);
  const Alone alone;
  CHECK(early.is_seen(alone.comm));
  CHECK(late.is_seen(alone.comm));
  CHECK(early.is_seen(alone.comm, "got_call_by_pointer"));
  const Caller later("got_later");
  CHECK_FALSE(later.is_seen(alone.comm));
  hook();
  CHECK(later.is_seen(alone.comm));
  const u32 places = hook();
  CHECK(Library::instance().get<u32 (*)()>("fr_nccl_unhook")() == places);
  for (const Caller* c : {&early, &late, &later}) {
    CHECK_FALSE(c->is_seen(alone.comm));
    CHECK_FALSE(c->is_seen(alone.comm, "got_call_by_pointer"));
  }
  CHECK(hook() == places);
}

// The part that is made read-only ends within a page, as it may with pages of 64 KiB: then the
// loader leaves that page writable.
TEST_CASE("got: pages keep their permissions") {
  char path[] = "/dev/shm/fr-got-XXXXXX";
  const int fd = mkstemp(path);
  REQUIRE(fd >= 0);
  std::ifstream in(FR_GOT_DIR "/libgot_now.so", std::ios::binary);
  std::string library((std::istreambuf_iterator<char>(in)), {});
  ElfW(Ehdr) head;
  std::memcpy(&head, library.data(), sizeof head);
  for (int i = 0; i < head.e_phnum; ++i) {
    ElfW(Phdr) h;
    char* const at = library.data() + head.e_phoff + static_cast<size_t>(i) * sizeof h;
    std::memcpy(&h, at, sizeof h);
    if (h.p_type == PT_GNU_RELRO) {
      h.p_memsz -= 8;
      std::memcpy(at, &h, sizeof h);
    }
  }
  REQUIRE(write(fd, library.data(), library.size()) == static_cast<ssize_t>(library.size()));
  close(fd);
  const Alone alone;
  for (const std::string& name : {std::string(path), std::string(FR_GOT_DIR "/libgot_now.so")}) {
    void* handle = dlopen(name.c_str(), RTLD_NOW);
    REQUIRE(handle != nullptr);
    const auto pages = [&] {
      std::ifstream maps("/proc/self/maps");
      std::string out;
      for (std::string line; std::getline(maps, line);) {
        out += line.find(name) != std::string::npos ? line + "\n" : "";
      }
      return out;
    };
    const std::string before = pages();
    const u32 places = hook();
    CHECK(places >= 2);
    CHECK(pages() == before);
    Library::instance().get<u32 (*)()>("fr_nccl_unhook")();
    CHECK(pages() == before);
  }
  unlink(path);
}

TEST_CASE("got: a library that is unloaded and loaded again is redirected again") {
  const Alone alone;
  const void* place = nullptr;
  u32 places = 0;
  for (int i = 0; i < 3; ++i) {
    const Caller caller("got_now");
    if (place != nullptr && caller.place() != place) {
      WARN("loaded elsewhere");
    }
    place = caller.place();
    const u32 now = hook();
    CHECK((places == 0 || places == now));
    places = now;
    CHECK(caller.is_seen(alone.comm));
    dlclose(caller.handle);
  }
}

TEST_CASE("got: a function that this NCCL does not have stays absent") {
  const Caller caller("got_now");
  CHECK(caller.call("got_has_newer") == 0);
  const Alone alone;
  CHECK(caller.call("got_has_newer") == 0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // no RTLD_DEEPBIND there
TEST_CASE("got: a library with an NCCL of its own goes on calling that") {
  const Caller caller("got_own", RTLD_NOW | RTLD_DEEPBIND);
  const Caller other("got_now", RTLD_NOW | RTLD_DEEPBIND);
  const Alone alone;
  CHECK(caller.call("got_call", alone.comm) == 77);
  CHECK(caller.call("got_call_by_pointer", alone.comm) == 77);
  CHECK(other.is_seen(alone.comm));
}
#endif

TEST_CASE("got: where ctypes is part of the interpreter, its callers get the wrappers") {
  const Alone alone;
  void* nccl = dlopen("libnccl.so.2", RTLD_NOLOAD | RTLD_NOW);
  REQUIRE(nccl != nullptr);
  const auto looked_up = reinterpret_cast<int (*)(ncclComm*, int)>(dlsym(nccl, "ncclCommSuspend"));
  REQUIRE(looked_up != nullptr);
  const u64 before = recorded();
  CHECK(looked_up(alone.comm, 1) == 0);
  CHECK(recorded() == before + 1);
  CHECK(dlsym(nccl, "ncclDevCommDestroy") == nullptr);
  CHECK(dlsym(RTLD_DEFAULT, "Py_GetVersion") == reinterpret_cast<void*>(&Py_GetVersion));
}

// As vLLM does where VLLM_NCCL_SO_PATH is set: a second copy, by its path. The hooks serve the
// first; of the second the plugin tells.
TEST_CASE("got: a second copy of NCCL is told of by the plugin, and not mixed up with the first") {
  const std::filesystem::path path = FR_GOT_DIR "/newer/libnccl.so.2";
  setenv("NCCL_PROFILER_PLUGIN", FR_LIBRARY, 1);
  hook();
  void* second = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(second != nullptr);
  const auto of = [&](auto* like, const char* name) {
    return reinterpret_cast<decltype(like)>(dlsym(second, name));
  };
  const auto init = of(&ncclCommInitRank, "ncclCommInitRank");
  // also what the first does not have
  for (void* f : {reinterpret_cast<void*>(init), dlsym(second, "ncclDevCommDestroy")}) {
    Dl_info info{};
    REQUIRE(dladdr(f, &info) != 0);
    CHECK(path == info.dli_fname);
  }
  const auto make = [](auto* unique_id, auto* init_rank, ncclComm*(&comms)[2]) {
    UniqueId id;
    unique_id(&id);
    std::thread other([&] { init_rank(&comms[1], 2, id, 1); });
    init_rank(&comms[0], 2, id, 0);
    other.join();
  };
  ncclComm* theirs[2];
  make(of(&ncclGetUniqueId, "ncclGetUniqueId"), init, theirs);
  // its ranks show that they have it, before they do anything with it
  const auto groups = [] {
    std::size_t n = 0;
    for (u32 i = 1; i < view().n_groups(); ++i) {
      n += view().string(view().group(i)->name).starts_with("nccl:") ? 1 : 0;
    }
    return n;
  };
  CHECK(groups() == 2);
  ncclComm* ours[2];
  make(&ncclGetUniqueId, &ncclCommInitRank, ours);
  CHECK(groups() == 4);
  float data[8];
  const auto reduce = of(&ncclAllReduce, "ncclAllReduce");
  for (int i = 0; i < 3; ++i) {
    for (int rank = 0; rank < 2; ++rank) {
      CHECK(reduce(data, data, 8, 7, 2, theirs[rank], nullptr) == 0);
      CHECK(ncclAllReduce(data, data, 8, 7, 2, ours[rank], nullptr) == 0);
    }
  }
  std::map<u32, std::size_t> by_group;
  std::size_t wrapped = 0;
  static RecordCopy copy;
  for (u32 slot = 0; slot < view().n_slots(); ++slot) {
    if (view().read(slot, copy) == Slot::kWhole && copy.payload.kind == FR_COLLECTIVE) {
      by_group[copy.payload.group] += 1;
      wrapped += copy.payload.reduce_op == 5 ? 1 : 0;  // not reported to the plugin
    }
  }
  CHECK(by_group.size() == 4);
  for (const auto& [group, n] : by_group) {
    CHECK(n == 3);
  }
  CHECK(wrapped == 6);
  for (int rank = 0; rank < 2; ++rank) {
    of(&ncclCommAbort, "ncclCommAbort")(theirs[rank]);
    ncclCommAbort(ours[rank]);
  }
}
