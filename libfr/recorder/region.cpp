// region.cpp - makes, maps and removes the file of the ring.
#include "recorder/region.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "format/sections.hpp"

namespace fr {
namespace {

constexpr u32 kOptionsBytes = 8192;

struct Plan {
  SectionRow rows[kSections];
  std::size_t bytes;
};

Plan plan(u32 n_records) {
  const u32 count[kSections] = {kOptionsBytes, kGroups,   kRankWords, kLanes,      kStrings,
                                kStringBytes,  kFrames,   kStacks,    kStackWords, kBlobWords,
                                kCrumbs,       n_records, n_records,  1,           kComms,
                                kDeviceOps,    kPhases,   1,          2 * kGroups, kSites};
  Plan p{};
  std::size_t at = kHeaderBytes;
  for (u32 s = 0; s < kSections; ++s) {
    at = (at + 63) & ~std::size_t{63};
    p.rows[s] = {at, count[s], kRowBytes[s]};
    at += static_cast<std::size_t>(count[s]) * kRowBytes[s];
  }
  p.bytes = (at + 4095) & ~std::size_t{4095};
  return p;
}

}  // namespace

std::size_t region_bytes(u32 n_records) {
  return plan(n_records).bytes;
}

std::string ring_directory(const std::string& shm_dir, std::string* why) {
  const std::string dir = shm_dir + "/fr-" + std::to_string(geteuid());
  if (mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) {
    *why = "cannot create " + dir + ": " + std::strerror(errno);
    return "";
  }
  struct stat st;
  if (lstat(dir.c_str(), &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid()) {
    *why = dir + " is not a directory of ours";
    return "";
  }
  if ((st.st_mode & 077) != 0 && chmod(dir.c_str(), 0700) != 0) {
    *why = dir + " is open to others";
    return "";
  }
  return dir;
}

Region create_region(const std::string& shm_dir, const std::string& name, u32 n_records) {
  const Plan p = plan(n_records);
  Region r;
  r.bytes = p.bytes;
  r.dir = ring_directory(shm_dir, &r.why);
  void* base = MAP_FAILED;
  if (!r.dir.empty()) {
    const std::string path = r.dir + "/" + name;
    unlink(path.c_str());  // a leftover of an earlier process with our pid
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
      r.why = "cannot create " + path + ": " + std::strerror(errno);
    } else {
      // All pages now: a full file system must say so here, not by SIGBUS in a recorder.
      const int error = posix_fallocate(fd, 0, static_cast<off_t>(p.bytes));
      if (error == 0) {
        base = mmap(nullptr, p.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
      }
      if (base == MAP_FAILED) {
        r.why = "cannot map " + path + ": " + std::strerror(error != 0 ? error : errno);
        unlink(path.c_str());
      } else {
        r.name = name;
      }
      close(fd);
    }
  }
  if (base == MAP_FAILED) {
    r.anonymous = true;
    base = mmap(nullptr, p.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
      r.bytes = 0;
      return r;
    }
  }
  r.base = static_cast<unsigned char*>(base);
  Header& h = r.header();
  h.version = kLayoutVersion;
  h.header_bytes = kHeaderBytes;
  h.region_bytes = p.bytes;
  h.section_count = kSections;
  h.anonymous = r.anonymous ? 1 : 0;
  h.n_records = n_records;
  std::memcpy(h.sections, p.rows, sizeof h.sections);
  return r;
}

}  // namespace fr
