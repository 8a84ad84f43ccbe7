// files.cpp - directories and files, told apart by content, read by several threads.
#include "input/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "format/layout.hpp"
#include "input/here.hpp"
#include "input/memory.hpp"
#include "input/ras.hpp"
#include "input/tools/inspector.hpp"
#include "input/tools/job_log.hpp"
#include "input/tools/kineto.hpp"
#include "input/tools/settle.hpp"
#include "input/tools/stacks.hpp"
#include "input/torch/dump.hpp"
#include "input/trim.hpp"
#include "live/symbols.hpp"
#include "reduce/summary.hpp"

namespace frtrace {

namespace fs = std::filesystem;

namespace {

constexpr int kMaxFolders = 2;
constexpr std::uintmax_t kMaxFileBytes = std::uintmax_t{1} << 31;

// How a file begins tells what it is.
constexpr std::size_t kBegin = std::size_t{64} << 10;

// A file's bytes, copied: who cuts or rewrites a file that is mapped ends its reader by SIGBUS. A
// live ring changes while it is copied: fr::View copes with that.
class Content {
 public:
  explicit Content(const std::string& path) {
    struct stat st{};
    // Opening a device may do something, so what it is comes first.
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
    constexpr std::size_t kKept = std::size_t{8} << 20;  // bytes, of a thread for its next file
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
  static constexpr std::align_val_t kAligned{64};  // a region's atomics and cache lines
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
        return;  // it was cut since
      }
      size_ += static_cast<std::size_t>(n);
    }
  }

  int fd_ = -1;
  std::size_t wanted_ = 0, size_ = 0;
  Time modified_ = 0;
  std::string error_;
};

// By its name one of ours: worth a line when it cannot be read, wherever it was found.
bool named_like_evidence(std::string_view name) {
  return name.ends_with(".fr") || name.ends_with(".ring") || name.ends_with(reduce::kEnding);
}

bool named_like_a_log(std::string_view name) {
  return name.ends_with(".log") || name.ends_with(".txt") || name.ends_with(".out") ||
         name.ends_with(".err");
}

bool temporary(std::string_view name) {
  return name.find(".tmp") != std::string_view::npos || (!name.empty() && name.front() == '.');
}

// What `frtrace verdict` leaves beside the dumps is no evidence.
bool is_verdict(std::string_view name) {
  return name.ends_with(".verdict.json") || name.ends_with(".verdict.txt");
}

struct Candidate {
  std::string path;
  bool asked_for;  // given as an argument, or lying directly in a given directory
};

// Directories and files by what they are, not by name: through links one may appear many times.
using Visited = std::set<std::pair<dev_t, ino_t>>;

bool read_nodes(const fs::path& path, std::vector<NodeRow>& rows) {
  std::string text(std::size_t{16} << 20, '\0');  // of 12,500 nodes 2 MiB
  std::ifstream in(path, std::ios::binary);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  NodesFile file;
  const bool is_one = parse_nodes(text, file);
  std::move(file.nodes.begin(), file.nodes.end(), std::back_inserter(rows));
  return is_one;
}

void collect(const fs::path& dir, int depth, Visited& visited, std::vector<Candidate>& out,
             LoadResult& result) {
  std::error_code ec;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator it(dir, ec), end; !ec && it != end; it.increment(ec)) {
    entries.push_back(*it);
  }
  if (ec) {
    result.unreadable.push_back({dir.string(), ec.message()});
  }
  // What is there itself before what is linked: it has the name that tells most.
  const auto linked = [](const fs::directory_entry& entry) {
    std::error_code ignored;
    return entry.is_symlink(ignored);
  };
  std::sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) {
    const bool x = linked(a), y = linked(b);
    return x != y ? y : a.path() < b.path();
  });
  for (const fs::directory_entry& entry : entries) {
    const fs::path& path = entry.path();
    struct stat st{};
    const bool hidden = path.filename().string().front() == '.';
    if (::stat(path.c_str(), &st) != 0 ||
        (S_ISDIR(st.st_mode) && (depth >= kMaxFolders || hidden)) ||
        (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode)) ||
        !visited.insert({st.st_dev, st.st_ino}).second) {
      continue;
    }
    if (S_ISDIR(st.st_mode)) {
      collect(path, depth + 1, visited, out, result);
    } else if (path.filename() == kNodesFile && read_nodes(path, result.nodes)) {
      continue;
    } else if (!is_verdict(path.filename().string())) {
      out.push_back({path.string(), depth == 0});
    }
  }
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

// Of a job or of a tool. False: nothing in it is evidence.
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

// PyTorch's Flight Recorder's, its profiler's, or py-spy's.
std::unique_ptr<RankEvidence> load_json(std::span<const unsigned char> bytes, std::string& why) {
  if (is_kineto(bytes)) {
    return load_kineto(bytes, why);
  }
  auto e = load_torch_json(bytes, why);
  std::string other;
  return e != nullptr ? std::move(e) : load_py_spy(bytes, other);
}

// all_records: of a summary, also what is not needed of every rank.
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
    return;  // other people's lie below a directory too
  }
  if (e == nullptr) {
    report(why);
    return;
  }
  e->file = file.path;
  e->file_time = content.modified();
  result.evidence.push_back(std::move(e));
}

constexpr std::size_t kMaxThreads = 32, kFilesPerThread = 4;

// f(i) for all i below `n`, on several threads. `tick` is called between, by the calling thread.
template <class F, class Tick>
void for_all(std::size_t n, unsigned threads, F&& f, Tick&& tick) {
  if (threads == 0) {
    threads = std::max(1u, std::thread::hardware_concurrency());
  }
  const std::size_t used = std::min({std::size_t{threads}, kMaxThreads, n / kFilesPerThread + 1});
  std::atomic<std::size_t> next{0}, done{0};
  const auto work = [&](bool ticks) {
    for (std::size_t i = next++; i < n; i = next++) {
      f(i);
      ++done;
      if (ticks) {
        tick(done.load());
      }
    }
  };
  std::vector<std::thread> helpers;
  for (std::size_t t = 1; t < used; ++t) {
    try {
      helpers.emplace_back(work, false);
    } catch (const std::system_error&) {
      break;  // fewer will do
    }
  }
  work(true);
  for (std::thread& t : helpers) {
    t.join();
  }
}

// Reads the files of a set, several at a time; the outcome is in the order of the files, however
// many threads there are.
class SetReader {
 public:
  SetReader(const std::vector<Candidate>& files, const LoadOptions& options, LoadResult& result)
      : files_(files),
        options_(options),
        result_(result),
        each_(files.size()),
        windows_(options.all_records ? UINT64_MAX : options.budget_records, files.size()),
        limit_(options.memory_bytes),
        held_(files.size()),
        over_(files.size()),
        stage_(files.size()) {}

  void read() {
    read_each();
    read_alone();
    if (windows_.large()) {
      for_all(
          files_.size(), options_.threads, [this](std::size_t i) { cut_whole(i); },
          [](std::size_t) {});
    }
    gather();
    if (windows_.large()) {
      const Windows::Again again = windows_.look_again(result_.evidence);
      read_again(again.whole, true);
      read_again(again.pinned, false);
    }
    name_functions(result_.evidence, result_.unreadable);
  }

 private:
  // What is read before the set is known to be large is cut as soon as it is: held whole until all
  // are read, the budget would come on top of the windows.
  enum class Stage : char { kReading, kWhole, kCut };

  void read_each() {
    for_all(
        files_.size(), options_.threads, [this](std::size_t i) { read_one(i); },
        [this](std::size_t done) {
          if (options_.progress) {
            options_.progress(done, files_.size());
          }
        });
  }

  // Several large files at a time may have been too many: one after the other.
  void read_alone() {
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (over_[i] != 0) {
        read_one(i);
      }
      if (over_[i] != 0) {
        each_[i].unreadable.push_back(
            {files_[i].path, fmt::format("needs more memory than is left of {} MiB for all files",
                                         options_.memory_bytes >> 20)});
      }
    }
  }

  void read_one(std::size_t i) {
    load(i);
    if (each_[i].evidence.empty()) {
      return;
    }
    bool large = false;
    for (const auto& e : each_[i].evidence) {
      large = windows_.count(*e);
    }
    stage_[i] = Stage::kWhole;
    if (large) {
      cut_whole(i);
      if (!caught_up_.exchange(true)) {
        for (std::size_t k = 0; k < files_.size(); ++k) {
          cut_whole(k);
        }
      }
    }
  }

  void load(std::size_t i) {
    over_[i] = 0;
    try {
      {
        const FileMemory memory(limit_);
        load_file(files_[i], !windows_.large(), each_[i]);
      }
      if (!each_[i].evidence.empty()) {
        hold(i);
      }
    } catch (const OverLimit&) {
      each_[i] = {};
      over_[i] = 1;
    } catch (const std::exception& e) {
      each_[i].evidence.clear();
      each_[i].unreadable.push_back({files_[i].path, e.what()});
    }
  }

  // What is gone or changed since, or too large, is not there.
  std::unique_ptr<RankEvidence> load_again(std::size_t i) {
    const auto [file, place] = file_of_[i];
    try {
      const FileMemory memory(limit_);
      LoadResult again;
      load_file(files_[file], true, again);
      if (place < again.evidence.size() && limit_.take(memory_of(*again.evidence[place]))) {
        return std::move(again.evidence[place]);
      }
    } catch (const std::exception&) {
    }
    return nullptr;
  }

  // Bytes of the limit that the evidence of a file takes.
  std::size_t needed(std::size_t i) const {
    constexpr std::size_t kFree = std::size_t{64} << 10;  // bytes that each file may have besides
    std::size_t all = 0;
    for (const auto& e : each_[i].evidence) {
      all += memory_of(*e);
    }
    return all > kFree ? all - kFree : 0;
  }
  void hold(std::size_t i) {
    const std::size_t bytes = needed(i);
    if (bytes > held_[i] && !limit_.take(bytes - held_[i])) {
      throw OverLimit();
    }
    keep_at_most(i, bytes);
    held_[i] = bytes;
  }
  void keep_at_most(std::size_t i, std::size_t bytes) {
    const std::size_t kept = std::min(bytes, held_[i]);
    limit_.give(held_[i] - kept);
    held_[i] = kept;
  }

  void cut_whole(std::size_t i) {
    Stage whole = Stage::kWhole;
    if (stage_[i].compare_exchange_strong(whole, Stage::kCut)) {
      for (const auto& e : each_[i].evidence) {
        windows_.cut(*e);
      }
      keep_at_most(i, needed(i));
    }
  }

  void gather() {
    for (std::size_t i = 0; i < each_.size(); ++i) {
      std::size_t k = 0;
      for (auto& e : each_[i].evidence) {
        result_.evidence.push_back(std::move(e));
        file_of_.emplace_back(i, k++);
      }
      std::move(each_[i].unreadable.begin(), each_[i].unreadable.end(),
                std::back_inserter(result_.unreadable));
      each_[i] = {};
    }
  }

  // list: of the evidence.
  void read_again(const std::vector<std::size_t>& list, bool whole) {
    const auto read = [&](std::size_t k) {
      const std::size_t i = list[k];
      auto e = load_again(i);
      if (e == nullptr) {
        return;  // the window stays
      }
      if (!whole) {
        windows_.cut_again(*e);
      }
      result_.evidence[i] = std::move(e);
    };
    for_all(list.size(), options_.threads, read, [](std::size_t) {});
  }

  const std::vector<Candidate>& files_;
  const LoadOptions& options_;
  LoadResult& result_;
  std::vector<LoadResult> each_;
  Windows windows_;
  MemoryLimit limit_;
  std::vector<std::size_t> held_;  // bytes of the limit, per file
  std::vector<char> over_;         // found no room beside the others
  std::vector<std::atomic<Stage>> stage_;
  std::atomic<bool> caught_up_{false};
  std::vector<std::pair<std::size_t, std::size_t>> file_of_;  // of each evidence, and place in it
};

// The whole file of what a summary has, and one file in two summaries, count once.
void drop_replaced(std::vector<std::unique_ptr<RankEvidence>>& all) {
  using Name = std::tuple<std::string_view, int, Rank, std::uint64_t, int, Time, std::string_view>;
  const auto name_of = [](const RankEvidence& e) {
    const std::string_view file = e.file;
    return Name{e.id.job,
                e.id.attempt,
                e.id.rank,
                e.incident,
                e.id.pid,
                e.id.start,
                file.substr(file.rfind('/') + 1)};
  };
  if (std::none_of(all.begin(), all.end(), [](const auto& e) { return e->holes.reduced; })) {
    return;
  }
  std::set<Name> whole, seen;
  for (const auto& e : all) {
    if (!e->holes.reduced) {
      whole.insert(name_of(*e));
    }
  }
  std::erase_if(all, [&](const auto& e) {
    return e->holes.reduced && (whole.contains(name_of(*e)) || !seen.insert(name_of(*e)).second);
  });
}

}  // namespace

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
  // Protocols 0 and 1 begin with the container: "(dp0\n", "}q\0(".
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

void count_kept(RankEvidence& e) {
  std::vector<std::vector<std::uint64_t>> seqs(e.groups.size());
  for (const Record& r : e.records) {
    if (r.kind == Kind::kCollective && r.group < seqs.size()) {
      seqs[r.group].push_back(r.seq);
    }
  }
  for (std::size_t row = 0; row < e.groups.size(); ++row) {
    GroupEvidence& g = e.groups[row];
    std::sort(seqs[row].begin(), seqs[row].end());
    const std::uint64_t before = g.kept;
    g.kept = 0;
    while (!seqs[row].empty() && g.kept < g.enqueued && seqs[row].back() == g.enqueued - g.kept) {
      ++g.kept;
      seqs[row].pop_back();
    }
    g.first_kept = g.kept == 0 ? 0 : g.enqueued - g.kept + 1;
    g.last_kept = g.kept == 0 ? 0 : g.enqueued;
    g.overwritten += before - std::min(before, g.kept);
  }
}

LoadResult load_paths(const std::vector<std::string>& paths, std::string_view prefix) {
  LoadOptions options;
  options.prefix = prefix;
  return load_paths(paths, options);
}

LoadResult load_paths(const std::vector<std::string>& paths, const LoadOptions& options) {
  const std::string& prefix = options.prefix;
  LoadResult result;
  std::vector<Candidate> files;
  Visited visited;
  for (const std::string& path : paths) {
    std::error_code ec;
    const fs::file_status status = fs::status(path, ec);
    if (status.type() == fs::file_type::not_found) {
      result.absent.push_back(path);
    } else if (fs::is_directory(status)) {
      struct stat st{};
      if (::stat(path.c_str(), &st) == 0 && visited.insert({st.st_dev, st.st_ino}).second) {
        collect(path, 0, visited, files, result);
      }
    } else {
      files.push_back({path, true});
    }
  }
  // One file given twice (itself and its directory) is read once.
  std::sort(files.begin(), files.end(), [](const Candidate& a, const Candidate& b) {
    return a.path != b.path ? a.path < b.path : a.asked_for > b.asked_for;
  });
  files.erase(std::unique(files.begin(), files.end(),
                          [](const Candidate& a, const Candidate& b) { return a.path == b.path; }),
              files.end());
  std::erase_if(files, [&](const Candidate& file) {
    const std::string name = fs::path(file.path).filename().string();
    return temporary(name) || name.compare(0, prefix.size(), prefix) != 0;
  });
  result.found_nothing = result.found_nothing && files.empty();
  SetReader(files, options, result).read();
  if (options.settle) {
    drop_replaced(result.evidence);
    settle_torch(result.evidence);
    settle_kineto(result.evidence);
    settle_inspector(result.evidence);
    settle_tools(result.evidence);
  }
  return result;
}

}  // namespace frtrace
