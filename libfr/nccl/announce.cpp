// announce.cpp - the variables that make NCCL load libfr as its profiler plugin. `import fr` and
// LD_PRELOAD both come here.
#include "nccl/announce.hpp"

#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "fr/fr.h"

namespace fr::nccl {
namespace {

constexpr char kVariable[] = "NCCL_PROFILER_PLUGIN";
constexpr char kChain[] = "FR_NCCL_CHAIN";
constexpr std::size_t kLongestName = 254;  // NCCL cuts longer values of its variable

// The name NCCL finds libfr by: the path, or the bare name, which finds the loaded library.
std::string own_name() {
  const std::string path = fr_library_path();
  return path.size() <= kLongestName ? path : path.substr(path.rfind('/') + 1);
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// The value in NCCL's configuration files, which NCCL reads where the environment sets none.
std::string configured() {
  std::string own = variable("NCCL_CONF_FILE");
  if (own.empty()) {
    own = variable("HOME") + "/.nccl.conf";
  }
  const std::string key = std::string(kVariable) + "=";
  for (const std::string& path : {own, std::string("/etc/nccl.conf")}) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      if (line.rfind(key, 0) == 0) {
        return line.substr(key.size());
      }
    }
  }
  return "";
}

bool is_same_file(const std::string& name, const std::string& path) {
  char resolved[PATH_MAX];
  return realpath(name.c_str(), resolved) != nullptr && path == resolved;
}

}  // namespace

void announce() {
  const std::string own = own_name();
  std::string theirs = variable(kVariable);
  if (theirs.empty()) {
    theirs = configured();
  }
  if (own.empty() || theirs == "none") {
    return;
  }
  if (!theirs.empty() && theirs != own && !is_same_file(theirs, own)) {
    setenv(kChain, theirs.c_str(), 1);
  }
  setenv(kVariable, own.c_str(), 1);
}

void withdraw() {
  if (variable(kVariable) != own_name()) {
    return;
  }
  const std::string theirs = variable(kChain);
  unsetenv(kChain);
  if (theirs.empty()) {
    unsetenv(kVariable);
  } else {
    setenv(kVariable, theirs.c_str(), 1);
  }
}

const char* chained_plugin() noexcept {
  return std::getenv(kChain);
}

}  // namespace fr::nccl
