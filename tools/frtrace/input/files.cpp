// files.cpp - directories and files, told apart by content, read by several threads.
#include "input/files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "format/layout.hpp"
#include "input/torch/dump.hpp"
#include "input/trim.hpp"
#include "live/symbols.hpp"

namespace frtrace {

namespace fs = std::filesystem;

namespace {

constexpr int kMaxDepth = 2;
constexpr std::uintmax_t kMaxFileBytes = std::uintmax_t{1} << 31;

// A file mapped for reading. A live ring changes beneath it: fr::View copes with that.
class Mapping {
 public:
  explicit Mapping(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
      error_ = std::strerror(errno);
      return;
    }
    struct stat st{};
    if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
      error_ = "not a regular file";
    } else if (st.st_size == 0) {
      error_ = "empty";
    } else if (static_cast<std::uintmax_t>(st.st_size) > kMaxFileBytes) {
      error_ = "larger than any dump";
    } else {
      modified_ = Time{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec;
      size_ = static_cast<std::size_t>(st.st_size);
      data_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
      if (data_ == MAP_FAILED) {
        error_ = std::strerror(errno);
        data_ = nullptr;
      }
    }
    ::close(fd);
  }
  ~Mapping() {
    if (data_ != nullptr) {
      ::munmap(data_, size_);
    }
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const std::string& error() const { return error_; }
  Time modified() const { return plausible(modified_); }
  std::span<const unsigned char> bytes() const {
    return {static_cast<const unsigned char*>(data_), size_};
  }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
  Time modified_ = 0;
  std::string error_;
};

// By its name one of ours: worth a line when it cannot be read, wherever it was found.
bool named_like_evidence(std::string_view name) {
  return name.ends_with(".fr") || name.ends_with(".ring");
}

bool temporary(std::string_view name) {
  return name.find(".tmp") != std::string_view::npos || (!name.empty() && name.front() == '.');
}

struct Candidate {
  std::string path;
  bool asked_for;  // given as an argument, or lying directly in a given directory
};

void collect(const fs::path& dir, int depth, std::vector<Candidate>& out, LoadResult& result) {
  std::error_code ec;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(dir, ec), end; !ec && it != end; it.increment(ec)) {
    entries.push_back(it->path());
  }
  if (ec) {
    result.unreadable.push_back({dir.string(), ec.message()});
  }
  std::sort(entries.begin(), entries.end());
  for (const fs::path& path : entries) {
    const fs::file_status status = fs::status(path, ec);
    if (fs::is_directory(status)) {
      if (depth < kMaxDepth && path.filename().string().front() != '.') {
        collect(path, depth + 1, out, result);
      }
    } else if (fs::is_regular_file(status)) {
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

Time unix_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void load_file(const Candidate& file, LoadResult& result) {
  const std::string name = fs::path(file.path).filename().string();
  const auto report = [&](std::string why) {
    result.unreadable.push_back({file.path, std::move(why)});
  };
  const Mapping mapping(file.path);
  if (!mapping.error().empty()) {
    if (file.asked_for || named_like_evidence(name)) {
      report(mapping.error());
    }
    return;
  }
  std::string why;
  std::unique_ptr<RankEvidence> e;
  switch (format_of(mapping.bytes())) {
    case Format::kControl:
      return;
    case Format::kFrDump:
      e = load_fr(mapping.bytes(), why);
      break;
    case Format::kRing:
      e = load_ring(mapping.bytes(), unix_now(), ring_kind(name, mapping.bytes()), why);
      break;
    case Format::kPickle:
    case Format::kJson:
      e = format_of(mapping.bytes()) == Format::kPickle ? load_torch_pickle(mapping.bytes(), why)
                                                        : load_torch_json(mapping.bytes(), why);
      if (e == nullptr && !file.asked_for && !named_like_evidence(name)) {
        return;  // other people's JSON and pickles lie below a directory too
      }
      if (e != nullptr) {
        e->file_time = mapping.modified();
      }
      break;
    case Format::kUnrecognised:
      if (file.asked_for || named_like_evidence(name)) {
        report("not recognised: neither a dump nor a ring");
      }
      return;
  }
  if (e == nullptr) {
    report(why);
    return;
  }
  e->file = file.path;
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

// Several at a time; the outcome is in the order of the files, however many threads there are.
void load_files(const std::vector<Candidate>& files, const LoadOptions& options,
                LoadResult& result) {
  std::vector<LoadResult> each(files.size());
  Windows windows(options.all_records ? UINT64_MAX : options.budget_records, files.size());
  // What is read before the set is known to be large is cut as soon as it is: held whole until all
  // are read, the budget would come on top of the windows.
  enum class Stage : char { kReading, kWhole, kCut };
  std::vector<std::atomic<Stage>> stage(files.size());
  std::atomic<bool> caught_up{false};
  const auto cut_whole = [&](std::size_t i) {
    Stage whole = Stage::kWhole;
    if (stage[i].compare_exchange_strong(whole, Stage::kCut)) {
      windows.cut(*each[i].evidence.front());
    }
  };
  const auto load = [&](std::size_t i) {
    try {
      load_file(files[i], each[i]);
    } catch (const std::exception& e) {
      each[i].evidence.clear();
      each[i].unreadable.push_back({files[i].path, e.what()});
    }
  };
  const auto tick = [&](std::size_t done) {
    if (options.progress) {
      options.progress(done, files.size());
    }
  };
  const auto no_tick = [](std::size_t) {};
  for_all(
      files.size(), options.threads,
      [&](std::size_t i) {
        load(i);
        if (each[i].evidence.empty()) {
          return;
        }
        const bool large = windows.count(*each[i].evidence.front());
        stage[i] = Stage::kWhole;
        if (large) {
          cut_whole(i);
          if (!caught_up.exchange(true)) {
            for (std::size_t k = 0; k < files.size(); ++k) {
              cut_whole(k);
            }
          }
        }
      },
      tick);
  if (windows.large()) {
    for_all(files.size(), options.threads, cut_whole, no_tick);
  }
  std::vector<std::size_t> file_of;
  for (std::size_t i = 0; i < each.size(); ++i) {
    for (auto& e : each[i].evidence) {
      result.evidence.push_back(std::move(e));
      file_of.push_back(i);
    }
    std::move(each[i].unreadable.begin(), each[i].unreadable.end(),
              std::back_inserter(result.unreadable));
    each[i] = {};
  }
  if (!windows.large()) {
    name_functions(result.evidence, result.unreadable);
    return;
  }
  const Windows::Again again = windows.look_again(result.evidence);
  const auto read_again = [&](const std::vector<std::size_t>& list, bool whole) {
    for_all(
        list.size(), options.threads,
        [&](std::size_t k) {
          const std::size_t i = list[k];
          load(file_of[i]);
          auto& e = each[file_of[i]].evidence;
          if (e.empty()) {
            return;  // gone or changed since: the window stays
          }
          if (!whole) {
            windows.cut_again(*e.front());
          }
          result.evidence[i] = std::move(e.front());
        },
        no_tick);
  };
  read_again(again.whole, true);
  read_again(again.pinned, false);
  name_functions(result.evidence, result.unreadable);
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
  for (const std::string& path : paths) {
    std::error_code ec;
    const fs::file_status status = fs::status(path, ec);
    if (status.type() == fs::file_type::not_found) {
      result.absent.push_back(path);
    } else if (fs::is_directory(status)) {
      collect(path, 0, files, result);
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
  load_files(files, options, result);
  settle_torch(result.evidence);
  return result;
}

}  // namespace frtrace
