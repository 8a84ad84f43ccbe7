// ablate.cpp - answers of the engine with each switch off in turn. See ablate.py.
//
// ablate CASES SWITCHES PROCESSES: files with a dump directory per line, and a number of a switch per
// line. A line of output per answer:
//   <switch, -1 none> <case> <kind> <ranks of the verdict> <ranks of all causes> <links>
// for every case with no switch off, and for each case where a switch changes the answer. `crash`
// or `hang` instead of a kind: the engine crashed or hung with that switch off.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ablate/switch.hpp"
#include "causes/rules.hpp"
#include "input/files.hpp"
#include "model/case.hpp"
#include "words/diagnose.hpp"

namespace {

using namespace frtrace;

constexpr unsigned kLimit_s = 20;  // of one case with one switch

struct Loaded {
  std::unique_ptr<LoadResult> input;
  std::vector<Case> cases;
  std::string answer;
  std::bitset<fr_ablate::kSwitches> reached;
};

std::string answer_of(const Loaded& l) {
  if (l.cases.empty()) {
    return "nothing - - -";
  }
  const Report r = diagnose(l.cases.front());
  std::set<Rank> named(r.ranks.begin(), r.ranks.end());
  for (const auto& cause : r.causes) {
    named.insert(cause.ranks.begin(), cause.ranks.end());
  }
  std::vector<std::string> links;
  for (const auto& link : r.links) {
    links.push_back(fmt::format("{}>{}", link.from, link.to));
  }
  const auto list = [](const auto& all) {
    return all.empty() ? std::string("-") : fmt::format("{}", fmt::join(all, ","));
  };
  return fmt::format("{} {} {} {}", verdict_name(r.kind), list(r.ranks), list(named), list(links));
}

// Prints the changed answers of one switch from the case `first` on, and the case before it begins one,
// so that its parent knows where it ended.
void print_changes(int number, const std::vector<Loaded>& all, std::size_t first, int progress) {
  for (std::size_t i = first; i < all.size(); ++i) {
    if (!all[i].reached.test(static_cast<std::size_t>(number))) {
      continue;
    }
    if (write(progress, &i, sizeof i) != sizeof i) {
      _exit(1);
    }
    alarm(kLimit_s);
    const std::string answer = answer_of(all[i]);
    if (answer != all[i].answer) {
      fmt::print("{} {} {}\n", number, i, answer);
    }
  }
  std::fflush(stdout);
}

// In processes of their own: the engine may crash or not come to an end with that switch.
void try_switch(int number, const std::vector<Loaded>& all) {
  fr_ablate::g_off = number;
  for (std::size_t first = 0; first < all.size();) {
    int progress[2];
    if (pipe2(progress, O_NONBLOCK) != 0) {
      _exit(1);
    }
    fcntl(progress[1], F_SETPIPE_SZ, 1 << 16);
    const pid_t child = fork();
    if (child == 0) {
      setvbuf(stdout, nullptr, _IOLBF, 0);
      close(STDERR_FILENO);  // std::terminate says why, hundreds of times
      print_changes(number, all, first, progress[1]);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    std::size_t last = first;
    while (read(progress[0], &last, sizeof last) == sizeof last) {
    }
    close(progress[0]);
    close(progress[1]);
    if (!WIFSIGNALED(status)) {
      return;
    }
    fmt::print("{} {} {} - - -\n", number, last, WTERMSIG(status) == SIGALRM ? "hang" : "crash");
    std::fflush(stdout);
    first = last + 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: ablate CASES SWITCHES PROCESSES\n");
    return 2;
  }
  std::ifstream list(argv[1]);
  std::vector<Loaded> all;
  fr_ablate::g_notes = true;
  for (std::string path; std::getline(list, path);) {
    Loaded& l = all.emplace_back();
    LoadOptions options;
    options.threads = 1;
    l.input = std::make_unique<LoadResult>(load_paths({path}, options));
    l.cases = make_cases(l.input->evidence, {});
    fr_ablate::g_reached.reset();
    l.answer = answer_of(l);
    l.reached = fr_ablate::g_reached;
    fmt::print("-1 {} {}\n", all.size() - 1, l.answer);
  }
  std::fflush(stdout);
  fr_ablate::g_notes = false;
  std::ifstream wanted(argv[2]);
  const std::vector<int> switches{std::istream_iterator<int>(wanted), {}};
  const auto processes = static_cast<std::size_t>(std::atoi(argv[3]));
  for (std::size_t p = 0; p < processes; ++p) {
    if (fork() == 0) {
      for (std::size_t i = p; i < switches.size(); i += processes) {
        try_switch(switches[i], all);
      }
      _exit(0);
    }
  }
  while (wait(nullptr) > 0) {
  }
  return 0;
}
