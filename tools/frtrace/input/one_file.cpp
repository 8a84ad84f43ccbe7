// one_file.cpp - detects the format of a file and reads its evidence.
#include "input/one_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>

#include "format/layout.hpp"
#include "input/fr/ras.hpp"
#include "input/memory.hpp"
#include "input/other_tools/inspector.hpp"
#include "input/other_tools/job_log.hpp"
#include "input/other_tools/kineto.hpp"
#include "input/other_tools/stacks.hpp"
#include "input/summary/summary.hpp"
#include "input/torch/dump.hpp"
#include "system/here.hpp"

namespace frtrace {

namespace fs = std::filesystem;

namespace {

constexpr std::uintmax_t kMaxFileBytes = std::uintmax_t{1} << 31;

// The beginning of a file shows its format.
constexpr std::size_t kBegin = std::size_t{64} << 10;

// A copy of a file's bytes: if a mapped file were truncated or rewritten, SIGBUS would end the
// reader. A live ring changes during the copy: fr::View handles that.
class Content {
 public:
  explicit Content(const std::string& path) {
    struct stat st{};
    // Opening a device may have side effects, so the type is checked first.
    if (::stat(path.c_str(), &st) != 0) {
      error_ = std::strerror(errno);
      return;
    }
    if (S_ISREG(st.st_mode)) {
      fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    }
    if (S_ISREG(st.st_mode) && (fd_ < 0 || ::fstat(fd_, &st) != 0)) {
      error_ = std::strerror(errno);
    } else if (!S_ISREG(st.st_mode)) {
      error_ = "not a regular file";
    } else if (st.st_size == 0) {
      error_ = "empty";
    } else if (static_cast<std::uintmax_t>(st.st_size) > kMaxFileBytes) {
      error_ = "larger than any dump";
    } else {
      modified_ = Time{st.st_mtim.tv_sec} * kSecond + st.st_mtim.tv_nsec;
      wanted_ = static_cast<std::size_t>(st.st_size);
      read_until(std::min(wanted_, kBegin));
    }
  }
  ~Content() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
    Buffer& b = buffer();
    constexpr std::size_t kKept = std::size_t{8} << 20;  // bytes kept for the next file
    if (b.size > kKept) {
      b = {};
    }
  }
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;

  void read_all() { read_until(wanted_); }

  const std::string& error() const { return error_; }
  Time modified() const { return plausible(modified_); }
  std::span<const unsigned char> bytes() const { return {buffer().data.get(), size_}; }

 private:
  static constexpr std::align_val_t kAligned{64};  // for a region's atomics and cache lines
  struct Free {
    void operator()(unsigned char* p) const { ::operator delete(p, kAligned); }
  };
  struct Buffer {
    std::unique_ptr<unsigned char, Free> data;
    std::size_t size = 0;
  };
  static Buffer& buffer() {
    thread_local Buffer own;
    return own;
  }

  void read_until(std::size_t end) {
    Buffer& b = buffer();
    if (b.size < end) {
      FileMemory::take(end);
      Buffer larger{std::unique_ptr<unsigned char, Free>(
                        static_cast<unsigned char*>(::operator new(end, kAligned))),
                    end};
      if (size_ != 0) {
        std::memcpy(larger.data.get(), b.data.get(), size_);
      }
      b = std::move(larger);
    }
    while (size_ < end) {
      const ssize_t n = ::read(fd_, b.data.get() + size_, end - size_);
      if (n < 0 && errno == EINTR) {
        continue;
      }
      if (n < 0) {
        error_ = std::strerror(errno);
      }
      if (n <= 0) {
        return;  // it has been truncated since
      }
      size_ += static_cast<std::size_t>(n);
    }
  }

  int fd_ = -1;
  std::size_t wanted_ = 0, size_ = 0;
  Time modified_ = 0;
  std::string error_;
};

// The name is one of fr's: worth a line if the file cannot be read, wherever it was found.
bool named_like_evidence(std::string_view name) {
  return name.ends_with(".fr") || name.ends_with(".ring") || name.ends_with(reduce::kEnding);
}

bool named_like_a_log(std::string_view name) {
  return name.ends_with(".log") || name.ends_with(".txt") || name.ends_with(".out") ||
         name.ends_with(".err");
}

// A region is named after its process, a copy in a dump directory after the incident.
RingKind ring_kind(std::string_view name, std::span<const unsigned char> bytes) {
  if (bytes.size() < sizeof(fr::Header) || !name.ends_with(".ring")) {
    return RingKind::kRegion;
  }
  fr::i32 pid = 0;
  std::memcpy(&pid, bytes.data() + offsetof(fr::Header, pid), sizeof pid);
  std::string tail(".");
  tail += std::to_string(pid);
  tail += ".ring";
  return name.ends_with(tail) ? RingKind::kRegion : RingKind::kCopy;
}

// Reads a log of a job or of a tool. False: nothing in it is evidence.
bool load_text(const Candidate& file, Content& content, LoadResult& result) {
  content.read_all();
  if (!content.error().empty()) {
    return false;
  }
  auto all = is_job_log(content.bytes()) ? load_job_log(content.bytes(), content.modified())
                                         : decltype(result.evidence)();
  if (all.empty()) {
    all = load_ras(content.bytes());
  }
  if (is_inspector(content.bytes())) {
    if (auto counts = load_inspector(content.bytes())) {
      all.push_back(std::move(counts));
    }
  }
  if (has_faulthandler(content.bytes())) {
    if (auto stacks = load_faulthandler(content.bytes())) {
      all.push_back(std::move(stacks));
    }
  }
  for (auto& e : all) {
    e->file = file.path;
    e->file_time = content.modified();
    result.evidence.push_back(std::move(e));
  }
  return !all.empty();
}

void load_summary(const Candidate& file, bool all_records, Content& content, LoadResult& result) {
  std::string why;
  reduce::All all = reduce::decode(content.bytes(), all_records, why);
  if (!why.empty()) {
    result.unreadable.push_back({file.path, why});
    return;
  }
  for (auto& e : all) {
    e->file = file.path + "/" + e->file;
    result.evidence.push_back(std::move(e));
  }
}

// A dump of PyTorch's Flight Recorder, a profiler trace, or py-spy's output.
std::unique_ptr<RankEvidence> load_json(std::span<const unsigned char> bytes, std::string& why) {
  if (is_kineto(bytes)) {
    return load_kineto(bytes, why);
  }
  auto e = load_torch_json(bytes, why);
  std::string other;
  return e != nullptr ? std::move(e) : load_py_spy(bytes, other);
}

}  // namespace

void load_file(const Candidate& file, bool all_records, LoadResult& result) {
  const std::string name = fs::path(file.path).filename().string();
  const auto report = [&](std::string why) {
    result.unreadable.push_back({file.path, std::move(why)});
  };
  Content content(file.path);
  const Format format = format_of(content.bytes());
  if (content.error().empty() && format != Format::kControl && format != Format::kUnrecognised) {
    content.read_all();
  }
  if (!content.error().empty()) {
    if (file.asked_for || named_like_evidence(name)) {
      report(content.error());
    }
    return;
  }
  std::string why;
  std::unique_ptr<RankEvidence> e;
  switch (format) {
    case Format::kControl:
      return;
    case Format::kSummary:
      load_summary(file, all_records, content, result);
      return;
    case Format::kFrDump:
      e = load_fr(content.bytes(), why);
      break;
    case Format::kRing:
      e = load_ring(content.bytes(), unix_now(), ring_kind(name, content.bytes()), why);
      break;
    case Format::kPickle:
      e = load_torch_pickle(content.bytes(), why);
      break;
    case Format::kJson:
      e = load_json(content.bytes(), why);
      if (e == nullptr && load_text(file, content, result)) {
        return;  // a line of a log may begin with "["
      }
      break;
    case Format::kUnrecognised:
      if ((file.asked_for || named_like_a_log(name)) && load_text(file, content, result)) {
        return;
      }
      if (file.asked_for || named_like_evidence(name)) {
        report("not recognised: neither a dump nor a ring");
      }
      return;
  }
  const bool ours = file.asked_for || named_like_evidence(name);
  if (e == nullptr && (format == Format::kJson || format == Format::kPickle) && !ours) {
    return;  // directories have other programs' files, too
  }
  if (e == nullptr) {
    report(why);
    return;
  }
  e->file = file.path;
  e->file_time = content.modified();
  result.evidence.push_back(std::move(e));
}

Format format_of(std::span<const unsigned char> b) {
  std::uint64_t magic = 0;
  if (b.size() >= sizeof magic) {
    std::memcpy(&magic, b.data(), sizeof magic);
    if (magic == fr::kRegionMagic) {
      return Format::kRing;
    }
    if (magic == fr::kControlMagic) {
      return Format::kControl;
    }
  }
  if (b.size() >= 4 && b[0] == 0x28 && b[1] == 0xb5 && b[2] == 0x2f && b[3] == 0xfd) {
    return Format::kFrDump;
  }
  if (reduce::is_summary(b)) {
    return Format::kSummary;
  }
  // Pickles of protocols 0 and 1 begin with the container: "(dp0
  // ", "}q\0(".
  const auto begins = [&](char first, std::string_view second) {
    return b.size() >= 2 && b[0] == static_cast<unsigned char>(first) &&
           second.find(static_cast<char>(b[1])) != std::string_view::npos;
  };
  if ((b.size() >= 2 && b[0] == 0x80 && b[1] >= 2 && b[1] <= 5) || begins('(', "dl") ||
      begins('}', "q(") || begins(']', "q(")) {
    return Format::kPickle;
  }
  std::size_t start = 0;
  while (start < b.size() && start < 64 && b[start] != 0 &&
         std::strchr(" \t\r\n", b[start]) != nullptr) {
    ++start;
  }
  if (start < b.size() && (b[start] == '{' || b[start] == '[')) {
    return Format::kJson;
  }
  return Format::kUnrecognised;
}

}  // namespace frtrace
