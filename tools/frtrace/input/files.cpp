// files.cpp - reads directories and files, which are classified by content, on several threads.
#include "input/files.hpp"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "input/memory.hpp"
#include "input/one_file.hpp"
#include "input/other_tools/inspector.hpp"
#include "input/other_tools/kineto.hpp"
#include "input/other_tools/settle.hpp"
#include "input/summary/pool.hpp"
#include "input/symbols.hpp"
#include "input/torch/dump.hpp"
#include "input/trim.hpp"

namespace frtrace {

namespace fs = std::filesystem;

namespace {

constexpr int kMaxFolders = 2;

bool temporary(std::string_view name) {
  return name.find(".tmp") != std::string_view::npos || (!name.empty() && name.front() == '.');
}

// Files that `frtrace verdict` writes beside the dumps are not evidence.
bool is_verdict(std::string_view name) {
  return name.ends_with(".verdict.json") || name.ends_with(".verdict.txt");
}

// Directories and files by identity, not name: links may give one several names.
using Visited = std::set<std::pair<dev_t, ino_t>>;

bool read_nodes(const fs::path& path, std::vector<NodeRow>& rows) {
  std::string text(std::size_t{16} << 20, '\0');  // 12,500 nodes take 2 MiB
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
  // Real entries before links: their names tell more.
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

constexpr std::size_t kMaxThreads = 32, kFilesPerThread = 4;

// Calls f(i) for all i below `n`, on several threads. The calling thread calls `tick` in between.
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
      break;  // fewer threads will do
    }
  }
  work(true);
  for (std::thread& t : helpers) {
    t.join();
  }
}

// Reads the files of a set, several at a time; the result is in the order of the files, for any
// number of threads.
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
#ifdef __GLIBC__
      ::malloc_trim(0);  // cut records leave holes that the diagnosis does not fill
#endif
      const Windows::Again again = windows_.look_again(result_.evidence);
      read_again(again.whole, true);
      read_again(again.pinned, false);
    }
    name_functions(result_.evidence, result_.unreadable);
  }

 private:
  // Files that are read before the set is known to be large are cut as soon as it is. If they
  // stayed whole until all are read, the budget would come on top of the windows.
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

  // Several large files at a time may have been too many: reads them one after the other.
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
    const bool large = windows_.count(each_[i].evidence);
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

  // The evidence of a file, read again; nullptr if the file is gone, has changed, or is too large.
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
    constexpr std::size_t kFree = std::size_t{64} << 10;  // bytes per file that are not counted
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
      drop_known(each_[i]);
      const std::size_t pooled = pool(each_[i], true, pool_);
      keep_at_most(i, needed(i) + pooled);
    }
  }

  // Evidence that a rank lives is dropped for ranks of the node with evidence of their own.
  static void drop_known(const LoadResult& file) {
    const auto key = [](const RankEvidence& e, Rank rank) {
      return std::tuple(std::string_view(e.id.job), e.id.attempt, e.incident, rank);
    };
    std::set<std::tuple<std::string_view, int, std::uint64_t, Rank>> there;
    for (const auto& e : file.evidence) {
      there.insert(key(*e, e->id.rank));
    }
    for (const auto& e : file.evidence) {
      std::erase_if(e->peers, [&](const PeerEvidence& p) {
        return p.state == PeerState::kLive && there.contains(key(*e, p.rank));
      });
      e->peers.shrink_to_fit();
    }
  }

  // Pools the texts and stacks still in use, of summaries and of cut evidence; they are not needed
  // until all files are read. PyTorch's dumps keep their own tables, as settle_torch adds to them.
  static std::size_t pool(const LoadResult& file, bool is_cut, reduce::Pool& all) {
    std::vector<RankEvidence*> pooled;
    for (const auto& e : file.evidence) {
      if (e->holes.reduced || (is_cut && e->format.empty())) {
        pooled.push_back(e.get());
      } else if (is_cut) {
        reduce::Pool own;
        own.take({e.get()});
        own.hand_out();
      }
    }
    return all.take(pooled);
  }

  void gather() {
    for (std::size_t i = 0; i < each_.size(); ++i) {
      if (stage_[i] != Stage::kCut) {
        pool(each_[i], false, pool_);
      }
      std::size_t k = 0;
      for (auto& e : each_[i].evidence) {
        result_.evidence.push_back(std::move(e));
        file_of_.emplace_back(i, k++);
      }
      std::move(each_[i].unreadable.begin(), each_[i].unreadable.end(),
                std::back_inserter(result_.unreadable));
      each_[i] = {};
    }
    pool_.hand_out();
  }

  // list: indices of evidence.
  void read_again(const std::vector<std::size_t>& list, bool whole) {
    reduce::Pool tables;
    const auto read = [&](std::size_t k) {
      const std::size_t i = list[k];
      LoadResult file;
      file.evidence.push_back(load_again(i));
      if (file.evidence[0] == nullptr) {
        return;  // keep the window
      }
      if (!whole) {
        windows_.cut_again(*file.evidence[0]);
        pool(file, true, tables);
      }
      result_.evidence[i] = std::move(file.evidence[0]);
    };
    for_all(list.size(), options_.threads, read, [](std::size_t) {});
    tables.hand_out();
  }

  const std::vector<Candidate>& files_;
  const LoadOptions& options_;
  LoadResult& result_;
  std::vector<LoadResult> each_;
  Windows windows_;
  reduce::Pool pool_;
  MemoryLimit limit_;
  std::vector<std::size_t> held_;  // bytes of the limit, per file
  std::vector<char> over_;         // did not fit beside the others
  std::vector<std::atomic<Stage>> stage_;
  std::atomic<bool> caught_up_{false};
  std::vector<std::pair<std::size_t, std::size_t>> file_of_;  // of each evidence, and place in it
};

// Drops evidence from a summary if the whole file was read, and files that are in two summaries.
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
  // A file given twice (itself and its directory) is read once.
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
