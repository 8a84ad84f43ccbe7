#define CATCH_CONFIG_RUNNER
#include <cstdlib>
#include <filesystem>
#include <string>

#include "../unit/catch.hpp"

// Options before libfr.so is loaded; a directory of this process's own, gone with it.
int main(int argc, char** argv) {
  char dir[] = "/dev/shm/fr-nccl-XXXXXX";
  if (mkdtemp(dir) == nullptr) {
    return 2;
  }
  const std::string home = dir;
  setenv("FR_SHM_DIR", dir, 1);
  setenv("FR_DUMP_DIR", (home + "/dumps").c_str(), 1);
  setenv("FR_JOB", "nccl", 1);
  setenv("FR_LOG", "error", 1);
  const int result = Catch::Session().run(argc, argv);
  std::filesystem::remove_all(home);
  return result;
}
