#include "input/other_tools/settle.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "input/torch/naming.hpp"

namespace frtrace {

namespace {

using All = std::vector<std::unique_ptr<RankEvidence>>;

bool is_tools(const RankEvidence& e) {
  return e.holes.from_log || e.holes.only_stacks;
}

// By the file's name, else by its folder's: torchrun writes attempt_0/3/stderr.log.
Rank rank_by_path(const std::string& path) {
  const TorchName name = torch_name(path);
  if (name.rank >= 0) {
    return name.rank;
  }
  const std::size_t slash = path.rfind('/');
  const std::size_t before = slash == std::string::npos ? slash : path.rfind('/', slash - 1);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  Rank rank = -1;
  if (slash != std::string::npos && slash > begin) {
    const auto parsed = std::from_chars(path.data() + begin, path.data() + slash, rank);
    rank = parsed.ptr == path.data() + slash ? rank : -1;
  }
  return rank;
}

// The rank may be in an operation, or wait for one that it has issued: it is in a call of
// torch.distributed, of the device or of autograd. Such a stack does not prove that the rank did
// not come.
bool may_wait(const RankEvidence& e) {
  static constexpr std::string_view kFiles[] = {
      "torch/distributed/",     "torch/cuda/", "torch/autograd/", "torch/_tensor",
      "torch/utils/checkpoint", "libcuda",     "libnccl",         "libgloo",
      "libtorch_cuda"};
  static constexpr std::string_view kFunctions[] = {"synchronize", "wait",    "item",    "tolist",
                                                    "cpu",         "barrier", "backward"};
  const ThreadStack* main = main_thread(e.threads, e.id.pid);
  if (main == nullptr || main->stack.empty()) {
    return true;
  }
  constexpr std::size_t kInnermost = 12;
  for (std::size_t i = 0; i < std::min(kInnermost, main->stack.size()); ++i) {
    const ThreadFrame& f = e.threads.frames[main->stack[i]];
    const auto in_file = [&](std::string_view part) {
      return f.file.find(part) != std::string::npos;
    };
    if (std::any_of(std::begin(kFiles), std::end(kFiles), in_file) ||
        std::find(std::begin(kFunctions), std::end(kFunctions), f.function) !=
            std::end(kFunctions)) {
      return true;
    }
  }
  return false;
}

// Gives the main thread its id, if the tool does not report the process.
void number_main(ThreadsEvidence& threads, int from, int to) {
  for (ThreadStack& t : threads.threads) {
    t.tid = t.tid == from ? to : t.tid;
  }
}

// A process may have several pieces of evidence: each one without stacks gets them.
bool give_stacks(RankEvidence& stacks, const All& all) {
  bool given = false;
  for (const auto& e : all) {
    const bool same = stacks.id.pid != 0 && e->id.pid != 0
                          ? stacks.id.pid == e->id.pid
                          : stacks.id.rank >= 0 && stacks.id.rank == e->id.rank;
    if (is_tools(*e) || !same) {
      continue;
    }
    given = true;
    if (!e->threads.present) {
      e->threads = stacks.threads;
      e->threads_by = stacks.id.recorder;
      number_main(e->threads, stacks.id.pid, e->id.pid);
    }
  }
  return given;
}

// Attaches NCCL's counts to the first other evidence, and the counts identify the ranks of
// processes. True: nothing is left to tell.
bool give_counts(const RankEvidence& counts, const All& all) {
  for (const auto& e : all) {
    if (e.get() != &counts && (!is_tools(*e) || e->holes.from_log)) {
      if (counts.ras.asked && !e->ras.asked) {
        e->ras = counts.ras;
      }
      return true;
    }
  }
  return false;
}

struct JobOf {
  std::string job;
  int attempt = 0;
  std::uint64_t incident = 0;
  int world_size = 0;
  std::uint64_t run = 0;
  Time written = 0;
};

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string dir = slash == std::string::npos ? "" : path.substr(0, slash);
  const std::string name = dir.substr(dir.rfind('/') + 1);
  return name.empty() || name == "." ? "log" : name;
}

}  // namespace

void settle_tools(All& all) {
  if (std::none_of(all.begin(), all.end(), [](const auto& e) { return is_tools(*e); })) {
    return;
  }
  std::map<std::string, JobOf> jobs;
  std::set<Rank> dumped;
  int world = 0;
  for (const auto& e : all) {
    world = std::max({world, e->id.world_size, e->id.rank + 1});
    if (!is_tools(*e)) {
      jobs[e->id.job] = {e->id.job,        e->id.attempt, e->incident,
                         e->id.world_size, e->id.run,     e->written};
      dumped.insert(e->id.rank);
    }
  }
  // RAS knows the ranks of processes that other tools have inspected.
  for (const auto& e : all) {
    const auto same = std::find_if(all.begin(), all.end(), [&](const auto& o) {
      return o != e && o->id.rank >= 0 && o->id.pid == e->id.pid && e->id.pid != 0;
    });
    if (e->holes.only_stacks && e->id.rank < 0 && same != all.end()) {
      e->id.rank = (*same)->id.rank;
    }
  }
  std::erase_if(all, [&](const auto& e) {
    return e->holes.only_stacks && !e->threads.present && give_counts(*e, all);
  });
  for (const auto& e : all) {
    if (e->holes.only_stacks) {
      e->id.rank = e->id.rank >= 0 ? e->id.rank : rank_by_path(e->file);
      e->holes.rank_from_name = true;
    }
  }
  std::erase_if(all, [&](const auto& e) {
    return (e->holes.only_stacks && give_stacks(*e, all)) ||
           (e->holes.from_log && dumped.contains(e->id.rank));
  });
  // A rank's lines in a log and its stacks are merged into one piece of evidence.
  std::map<Rank, RankEvidence*> logged;
  for (const auto& e : all) {
    if (e->holes.from_log) {
      logged[e->id.rank] = e.get();
    }
  }
  std::erase_if(all, [&](const auto& e) {
    const auto it = logged.find(e->id.rank);
    if (!e->holes.only_stacks || it == logged.end()) {
      return false;
    }
    it->second->threads = e->threads;
    it->second->threads_by = e->id.recorder;
    number_main(it->second->threads, e->id.pid, it->second->id.pid);
    return true;
  });
  for (const auto& e : all) {
    if (!is_tools(*e)) {
      continue;
    }
    const JobOf job = jobs.size() == 1 ? jobs.begin()->second : JobOf{folder_of(e->file)};
    e->id.job = job.job;
    e->id.attempt = job.attempt;
    e->incident = job.incident;
    e->id.run = job.run;
    e->id.world_size = std::max(job.world_size, world);
    e->written = e->written != 0 ? e->written : job.written != 0 ? job.written : e->file_time;
    if (e->holes.only_stacks) {
      e->threads_by = e->id.recorder;
      e->holes.may_wait = e->threads.present && may_wait(*e);
    }
  }
}

}  // namespace frtrace
