// test_doctor.cpp - a check that hangs; the findings that a verdict quotes. The findings of each
// check are tested in tests/python/test_doctor.py.
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "catch.hpp"
#include "doctor/bearing.hpp"
#include "doctor/examine.hpp"

using namespace frtrace;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

// A directory that holds a machine, or programs.
struct Folder {
  fs::path path = make();
  static fs::path make() {
    std::string name = (fs::temp_directory_path() / "fr-doctor-XXXXXX").string();
    return ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name) << text;
  }
};

// A job of one rank of two here, on a machine on which everything is bad.
void make_sick(const Folder& root) {
  const std::string p = "proc/77/";
  root.write("answers/ranks", "77\t0\t0\t1\t2\tjob\t/dumps\t0\t60\t1\n");
  root.write(p + "environ", "MASTER_ADDR=n0");
  root.write(p + "cgroup", "0::/job\n");
  root.write("sys/fs/cgroup/job/memory.events", "oom_kill 1\n");
  root.write("answers/own addresses", "n1\n127.0.1.1\n");
  root.write("answers/addresses", "eth0 10.0.0.1 24\n");
  root.write("answers/statvfs:_dev_shm", "67108864 67108864 0 0");
  root.write("answers/writable:_dumps", "not writable /dumps");
  root.write("dev/nvidiactl", "");
  root.write("dev/kmsg", "4,1,0,-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n");
  root.write("proc/uptime", "60.0 60.0\n");
}

Report report_of(Verdict kind, const std::string& why) {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  Report r;
  r.job = "job";
  r.kind = kind;
  r.time = static_cast<Time>(::time(nullptr)) * kSecond;
  r.rank_reports.emplace_back();
  r.rank_reports[0].host = host;
  if (!why.empty()) {
    r.blamed.emplace_back();
    r.blamed[0].host = host;
    r.blamed[0].why = why;
  }
  return r;
}

}  // namespace

TEST_CASE("a check of the doctor that hangs costs its own answer") {
  const Folder programs;
  programs.write("nft", "#!/bin/sh\nexec sleep 60\n");
  fs::permissions(programs.path / "nft", fs::perms::owner_all);
  const std::string path = ::getenv("PATH");
  ::setenv("PATH", (programs.path.string() + ":" + path).c_str(), 1);
  const doctor::Examination e =
      doctor::examine({},
                      [](const doctor::Check& c) {
                        const std::string_view id = c.id;
                        return id == "firewall" || id == "clock_source" || id == "restart";
                      },
                      {300ms, 10s});
  ::setenv("PATH", path.c_str(), 1);
  REQUIRE(e.results.size() == 3);
  CHECK(e.results[0].check->id == std::string("firewall"));
  CHECK(e.results[0].finding.state == doctor::State::kUnknown);
  CHECK(e.results[1].finding.state != doctor::State::kUnknown);
  CHECK(e.results[2].finding.state != doctor::State::kUnknown);
}

TEST_CASE("a verdict quotes what is bad on this machine and bears on it") {
  const Folder root;
  make_sick(root);
  const auto quoted = [&](Report r, bool in_job = true) {
    look_at_machine(r, {root.path.string(), "", ""}, in_job);
    std::string out;
    for (const DoctorReport& d : r.doctor) {
      out += (out.empty() ? "" : " ") + d.id;
    }
    return out;
  };
  CHECK(quoted(report_of(Verdict::kTransport, "")) == "host_name");
  CHECK(quoted(report_of(Verdict::kExited, "killed")) == "shm memory dump_dir");
  CHECK(quoted(report_of(Verdict::kExited, "exception")) == "dump_dir");
  CHECK(quoted(report_of(Verdict::kDevice, "not_finished")) == "xid");
  CHECK(quoted(report_of(Verdict::kMissing, "never_issued")) == "dump_dir");
  CHECK(quoted(report_of(Verdict::kMissing, "never_started")) == "host_name dump_dir");
  CHECK(quoted(report_of(Verdict::kMismatch, "minority")).empty());
  CHECK(quoted(report_of(Verdict::kOk, "")).empty());

  Report elsewhere = report_of(Verdict::kExited, "killed");
  elsewhere.blamed[0].host = "another";
  CHECK(quoted(elsewhere).empty());

  // Limits and memory of this process say nothing about a job that is gone.
  Report over = report_of(Verdict::kExited, "killed");
  CHECK(quoted(over, false) == "shm memory dump_dir");
  fs::remove(root.path / "answers/ranks");
  CHECK(quoted(over, false).empty());
  over.missing_ranks = {1};
  CHECK(quoted(over, false) == "shm");
  over.time -= 48 * 3600 * kSecond;
  CHECK(quoted(over, false).empty());
}
