// identity.cpp - host, boot, program, launcher, command line and start time of this process.
#include "recorder/identity.hpp"

#include <limits.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "format/secrets.hpp"

namespace fr {

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

std::string command_line() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  text.resize(mask_arguments(text.data(), text.size()));
  while (!text.empty() && text.back() == '\0') {
    text.pop_back();
  }
  for (char& c : text) {
    if (c == '\0') {
      c = ' ';
    }
  }
  return text;
}

std::string program_name() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::string text;
  std::getline(in, text, '\0');
  return text.substr(text.rfind('/') + 1);
}

std::string launcher_pid() {
  // Below init, the parent is not the job's own: take the session, which the job's ranks share.
  const pid_t parent = getppid();
  return std::to_string(parent > 1 ? parent : getsid(0));
}

std::string working_directory() {
  char cwd[PATH_MAX];
  return getcwd(cwd, sizeof cwd) != nullptr ? cwd : "";
}

}  // namespace fr
