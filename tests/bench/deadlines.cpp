// deadlines.cpp - prints what simulated weeks of tests/unit/watch/week.hpp came to, for the learned
// deadlines beside a fixed one and beside five times the longest wait without a floor.
#include <cstdio>
#include <string>

#include "watch/week.hpp"

using namespace fr::test;

namespace {

constexpr int kWeeks = 20;

std::string times(std::vector<double> s) {
  if (s.empty()) {
    return "none";
  }
  std::sort(s.begin(), s.end());
  char text[48];
  std::snprintf(text, sizeof text, "%.0f / %.0f", s[s.size() / 2], s.back());
  return text;
}

void add(std::vector<double>& to, const std::vector<double>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

void tell(const char* name, Job job, Rule rule) {
  WeekResult all;
  std::size_t planted = 0;
  for (int week = 1; week <= kWeeks; ++week) {
    job.seed = static_cast<fr::u64>(week);
    const WeekResult one = Week(job, rule).run();
    all.false_warnings += one.false_warnings;
    all.false_dumps += one.false_dumps;
    all.missed += one.missed;
    add(all.steady_s, one.steady_s);
    add(all.sleeping_s, one.sleeping_s);
    add(all.computing_s, one.computing_s);
    add(all.rare_s, one.rare_s);
  }
  planted = all.steady_s.size() + all.sleeping_s.size() + all.computing_s.size() +
            all.rare_s.size() + all.missed;
  std::printf("%-21s %8.2f %8.2f  %11s %11s %11s %13s  %5.1f %%\n", name,
              static_cast<double>(all.false_warnings) / kWeeks,
              static_cast<double>(all.false_dumps) / kWeeks, times(all.steady_s).c_str(),
              times(all.sleeping_s).c_str(), times(all.computing_s).c_str(),
              times(all.rare_s).c_str(),
              100.0 * all.missed / static_cast<double>(planted > 0 ? planted : 1));
}

}  // namespace

int main() {
  const struct {
    const char* text;
    Job job;
  } jobs[] = {{"one node, barriers of their own for checkpoints and evaluations", {}},
              {"several nodes", {.sees_all = false, .tells = true}},
              {"several nodes that do not tell each other who has come", {.sees_all = false}},
              {"several nodes, torch's timeout is 10 min",
               {.timeout_s = 600, .sees_all = false, .tells = true}},
              {"one node, others wait in the step's collective", {.waits_in_step = true}},
              {"several nodes, others wait in the step's collective",
               {.sees_all = false, .tells = true, .waits_in_step = true}},
              {"one node, steps of 20 s, others wait in the step's collective",
               {.step_s = 20, .waits_in_step = true}}};
  std::printf("%d simulated weeks each; seconds to the dump of a planted hang: median / most\n",
              kWeeks);
  for (const auto& j : jobs) {
    std::printf("\n%s\n%-21s %8s %8s  %11s %11s %11s %13s  %7s\n", j.text, "", "warnings", "dumps",
                "all came", "one sleeps", "computes", "evaluation", "missed");
    tell("learned", j.job, Rule::kLearned);
    tell("fixed 10 s, 60 s", j.job, Rule::kFixed);
    tell("5 x longest, no floor", j.job, Rule::kFiveTimesLongest);
  }
  return 0;
}
