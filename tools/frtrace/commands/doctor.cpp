#include "commands/doctor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "commands/arguments.hpp"
#include "doctor/examine.hpp"
#include "model/rank_data.hpp"
#include "recorder/options.hpp"
#include "report/lines.hpp"

namespace frtrace {

namespace {

using namespace std::chrono_literals;
// nvidia-smi alone may take 10 s. All checks together must fit into a prolog of the job.
constexpr doctor::Patience kPatient{12s, 100s};

struct DoctorArguments {
  std::vector<std::string> files;
  doctor::Where where;
  bool json = false, full = false;
};

std::string title_of(const doctor::Examination& e, const std::string& shm_dir) {
  const std::vector<std::string> jobs =
      e.job.empty() ? doctor::jobs_here(shm_dir) : std::vector<std::string>();
  const std::string of =
      !jobs.empty()
          ? fmt::format("no job: this process's environment (--job of: {})", fmt::join(jobs, ", "))
      : e.job.empty()
          ? "no job: this process's environment"
          : fmt::format("job {}, {}", e.job,
                        e.ranks.empty() ? fmt::format("{} processes", e.processes)
                                        : ranks_words({e.ranks.begin(), e.ranks.end()}));
  return fmt::format("doctor: {}, {}", e.host, of);
}

doctor::Style style_of(const DoctorArguments& a) {
  doctor::Style style;
  style.full = a.full;
  style.width = std::clamp<std::size_t>(terminal_width(), 80, 120);
  style.colour = ::isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  return style;
}

int compare_nodes(const DoctorArguments& a) {
  const doctor::Comparison c = doctor::compare(a.files);
  if (!c.wrong.empty()) {
    std::cerr << "frtrace: " << printable(c.wrong) << ": not written by frtrace doctor --json\n";
    return kNothing;
  }
  std::cout << (a.json ? c.json
                       : doctor::render_items(fmt::format("doctor: {} nodes", c.nodes.size()),
                                              c.items, style_of(a)));
  return doctor::status_of(c.items);
}

}  // namespace

int doctor_command(int argc, char** argv) {
  CLI::App app{
      "Says what about this machine makes jobs hang, die or crawl; each thing with what was seen,\n"
      "why it bites and what to do. It looks at the processes of the job, else at its own\n"
      "environment, and needs neither root nor a GPU: what it may not see is unknown.",
      "frtrace doctor"};
  DoctorArguments a;
  a.where.shm_dir = fr::read_options().shm_dir;
  app.add_option("file", a.files,
                 "what --json wrote on several nodes: says what differs between them");
  app.add_option("--job", a.where.job, "a job whose ranks run here");
  app.add_flag("--json", a.json, "as JSON (schema frtrace.doctor/1)");
  app.add_flag("-v,--verbose,--full", a.full, "all checks, instead of a screen of 24 lines");
  add_shm_dir(app, a.where.shm_dir);
  app.add_option("--root", a.where.root)->group("");  // of tests
  app.footer(
      "Exit status: 0 nothing is bad, 1 something is, 2 wrong usage, 3 no such job or file,\n"
      "4 nothing is known to be bad, and a check that matters is unknown.");
  if (const auto status = parse(app, argc, argv)) {
    return *status;
  }
  if (!a.files.empty()) {
    return compare_nodes(a);
  }
  const doctor::Examination e =
      doctor::examine(a.where, [](const doctor::Check&) { return true; }, kPatient);
  if (!a.where.job.empty() && e.processes == 0) {
    std::cerr << "frtrace: no running process of a job " << printable(a.where.job)
              << " has a ring in " << printable(a.where.shm_dir) << "\n";
    return kNothing;
  }
  const std::vector<doctor::Item> items = doctor::items_of(e);
  std::cout << (a.json ? doctor::examination_json(e)
                       : doctor::render_items(title_of(e, a.where.shm_dir), items, style_of(a)));
  return doctor::status_of(items);
}

}  // namespace frtrace
