// test_node_metrics.cpp - metrics of a node's rings over time: jobs that die, start again, end.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "catch.hpp"
#include "metrics/node.hpp"
#include "region.hpp"

using namespace frtest;
using namespace frtrace;

namespace {

constexpr Time kLastSign = static_cast<Time>(Region::kUnix) + kSecond;

// A directory of rings, and its metrics.
class RingNode {
 public:
  ~RingNode() { std::filesystem::remove_all(dir_); }

  void put(const char* job, int pid, int attempt, int issued) const {
    Region r(issued);
    std::snprintf(r.header().job, sizeof r.header().job, "%s", job);
    r.header().pid = pid;
    r.header().attempt = attempt;
    r.header().local_world_size = 1;
    r.header().false_warnings = 2;
    const auto bytes = r.bytes();
    std::ofstream(path(pid), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  void drop(int pid) const { std::filesystem::remove(path(pid)); }

  // {series, without the node: value}, that long after the rings' last sign of life
  std::map<std::string, double> look(Time after) {
    std::map<std::string, double> out;
    std::istringstream text(metrics_.look(kLastSign + after));
    for (std::string line; std::getline(text, line);) {
      const std::size_t space = line.rfind(' ');
      if (line[0] != '#') {
        std::string name = line.substr(0, space);
        name.erase(name.find(kLabel), kLabel.size());
        out[name] = std::stod(line.substr(space));
      }
    }
    return out;
  }

 private:
  static constexpr std::string_view kLabel = ",node=\"n0\"";

  std::string path(int pid) const { return folder_ + "/" + std::to_string(pid) + ".ring"; }
  static std::string make_dir() {
    std::string name = "/tmp/fr-metrics-XXXXXX";
    return ::mkdtemp(name.data());
  }
  std::string make_folder() const {
    std::string name = dir_ + "/fr-" + std::to_string(::geteuid());
    std::filesystem::create_directory(name);
    return name;
  }

  const std::string dir_ = make_dir(), folder_ = make_folder();
  NodeMetrics metrics_{dir_, "n0", 10 * kSecond,
                       [](const auto&) { return std::string("missing"); }};
};

const std::string kRingCalls =
    "fr_operations_total{fr_job=\"a\",group=\"default_pg\",op=\"all_reduce\"}";

}  // namespace

TEST_CASE("metrics: two jobs are told apart, and looking again counts nothing twice") {
  RingNode node;
  node.put("a", 11, 0, 5);
  node.put("b", 12, 0, 9);
  for (int i = 0; i < 2; ++i) {
    const auto found = node.look(kSecond);
    CHECK(found.at(kRingCalls) == 5);
    CHECK(found.at("fr_operations_total{fr_job=\"b\",group=\"default_pg\",op=\"all_reduce\"}") ==
          9);
    CHECK(found.at("fr_wait_seconds_count{fr_job=\"a\",group=\"default_pg\"}") == 4);
    CHECK(found.at("fr_ranks{fr_job=\"a\"}") == 1);
    CHECK(found.at("fr_false_alarms_total{fr_job=\"a\",kind=\"warning\"}") == 2);
    CHECK(found.at("fr_false_alarms_total{fr_job=\"a\",kind=\"dump\"}") == 0);
  }
}

TEST_CASE("metrics: a job without a living rank is told for ten minutes, then no more") {
  RingNode node;
  node.put("a", 11, 0, 5);
  CHECK(node.look(kSecond).at("fr_ranks{fr_job=\"a\"}") == 1);
  const auto dead = node.look(90 * kSecond);
  CHECK(dead.at("fr_ranks{fr_job=\"a\"}") == 0);
  CHECK(dead.at("fr_ranks_expected{fr_job=\"a\"}") == 1);
  CHECK(dead.at(kRingCalls) == 5);
  CHECK(dead.count("fr_verdict{fr_job=\"a\",kind=\"missing\"}") == 0);
  CHECK(node.look(590 * kSecond).count("fr_ranks{fr_job=\"a\"}") == 1);
  CHECK(node.look(610 * kSecond).empty());
}

TEST_CASE("metrics: counters go on over a restart, and ranks are those of the last attempt") {
  RingNode node;
  node.put("a", 11, 0, 5);
  CHECK(node.look(kSecond).at(kRingCalls) == 5);
  node.put("a", 12, 1, 7);
  for (const bool left : {true, false}) {
    const auto found = node.look(2 * kSecond);
    CHECK(found.at(kRingCalls) == 12);
    CHECK(found.at("fr_ranks{fr_job=\"a\"}") == 1);
    CHECK(found.at("fr_ranks_expected{fr_job=\"a\"}") == 1);
    if (left) {
      node.drop(11);  // its ring may stay or go
    }
  }
  node.drop(12);
  CHECK(node.look(3 * kSecond).empty());
}

TEST_CASE("metrics: what stands too long is judged, where no rank is elsewhere") {
  RingNode node;
  node.put("a", 11, 0, 5);
  const std::string undecided = "fr_verdict{fr_job=\"a\",kind=\"undecided\"}";
  CHECK(node.look(5 * kSecond).count(undecided) == 0);
  CHECK(node.look(30 * kSecond).at(undecided) == 1);
  node.put("a", 12, 0, 4);  // both ranks of the job
  CHECK(node.look(30 * kSecond).at("fr_verdict{fr_job=\"a\",kind=\"missing\"}") == 1);
}
