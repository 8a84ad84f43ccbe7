#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "../unit/catch_session.hpp"

#if defined(__SANITIZE_THREAD__)
// copy_ring: at SIGTERM a signal handler copies the ring while it is written, on purpose.
// map_file: a library may be loaded at an address that the watchdog had mapped and unmapped, and
// ThreadSanitizer does not see that.
extern "C" [[gnu::visibility("default")]] const char* __tsan_default_suppressions() {
  return "race:copy_ring\nrace:map_file\n";
}
#endif

namespace {
std::string home;
pid_t owner;
}  // namespace

// Options before libfr.so is loaded; a directory of this process's own, gone with it.
int main(int argc, char** argv) {
  char dir[] = "/dev/shm/fr-nccl-XXXXXX";
  if (mkdtemp(dir) == nullptr) {
    return 2;
  }
  home = dir;
  // registered before libfr.so's own handler, so it runs after that has dumped
  owner = getpid();
  std::atexit([] {
    if (getpid() == owner) {
      std::filesystem::remove_all(home);
    }
  });
  setenv("FR_SHM_DIR", dir, 1);
  setenv("FR_DUMP_DIR", (home + "/dumps").c_str(), 1);
  setenv("FR_JOB", "nccl", 1);
  setenv("FR_VERDICT", "0", 1);
  setenv("FR_LOG", "error", 1);
  return fr::test::run_catch(argc, argv);
}
