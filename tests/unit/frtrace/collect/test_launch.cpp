// The command line of each launcher, and the launcher chosen by default.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "catch.hpp"
#include "collect/launch.hpp"
#include "collect/package.hpp"
#include "model/nodes.hpp"

using namespace frtrace;
using namespace frtrace::collect;

namespace {

Launch launch_by(Launcher launcher) {
  Launch l;
  l.launcher = launcher;
  l.nodes = {"n1", "n2"};
  l.slurm_job = "42";
  l.command = {"/opt/frtrace", "node", "evidence", "--job=it's $x"};
  l.files = "/shared/out";
  l.timeout_s = 30;
  l.extra = {"--more"};
  return l;
}

std::string words(const Command& c) {
  return fmt::format("{}", fmt::join(c.argv, "|"));
}

// A shell reads it as the four words of the command.
constexpr const char* kLine = R"('/opt/frtrace' 'node' 'evidence' '--job=it'\''s $x')";

}  // namespace

TEST_CASE("launch: srun is one step for all nodes, beside the training step", "[collect]") {
  const auto plans = plan(launch_by(Launcher::kSrun));
  REQUIRE(plans.size() == 1);
  CHECK(words(plans[0]) ==
        "srun|--jobid=42|--overlap|--nodes=2|--ntasks=2|--ntasks-per-node=1|--nodelist=n1,n2|"
        "--gres=none|--mem=0|--cpu-bind=none|--mpi=none|--kill-on-bad-exit=0|--no-kill|--quiet|"
        "-o|/shared/out/%N.out|-e|/shared/out/%N.err|--more|/opt/frtrace|node|evidence|"
        "--job=it's $x");
  CHECK(plans[0].env == std::vector<std::string>{"SLURM_*", "SRUN_*"});
  CHECK(plans[0].answer == Command::Answer::kFiles);
}

TEST_CASE("launch: ssh asks nothing and leaves nothing to the remote shell", "[collect]") {
  const auto plans = plan(launch_by(Launcher::kSsh));
  REQUIRE(plans.size() == 2);
  CHECK(words(plans[1]) ==
        fmt::format("ssh|-T|-o|BatchMode=yes|-o|ConnectTimeout=10|--more|--|n2|{}", kLine));
  CHECK(plans[1].nodes == std::vector<std::size_t>{1});
}

TEST_CASE("launch: pdsh and clush have one process and answer in lines", "[collect]") {
  Launch l = launch_by(Launcher::kPdsh);
  l.command.back() = "--job=50%n";
  CHECK(words(plan(l)[0]) ==
        "pdsh|-R|ssh|-w|n1,n2|-f|64|-t|10|-u|30|-S|--more|"
        "'/opt/frtrace' 'node' 'evidence' '--job=50%%n'");
  CHECK(plan(l)[0].env == std::vector<std::string>{"PDSH_RCMD_TYPE=ssh"});
  l = launch_by(Launcher::kClush);
  CHECK(words(plan(l)[0]) ==
        fmt::format("clush|-R|ssh|-w|n1,n2|-f|64|-t|10|-u|30|-S|--nostdin|--color=never|--more|{}",
                    kLine));
  CHECK(plan(l)[0].answer == Command::Answer::kLines);
}

TEST_CASE("launch: kubectl runs the command in each pod without a shell", "[collect]") {
  Launch l = launch_by(Launcher::kKubectl);
  l.name_space = "ml";
  l.containers = {"node", ""};
  const auto plans = plan(l);
  CHECK(words(plans[0]) ==
        "kubectl|--more|exec|-n|ml|n1|-c|node|--|/opt/frtrace|node|evidence|--job=it's $x");
  CHECK(words(plans[1]) ==
        "kubectl|--more|exec|-n|ml|n2|--|/opt/frtrace|node|evidence|--job=it's $x");
}

TEST_CASE("launch: the launcher follows from what is found", "[collect]") {
  const auto chosen = [](const char* job, bool hosts, bool pods, bool kubernetes,
                         const char* slurm_job) {
    return default_launcher({job, hosts, pods, kubernetes, slurm_job});
  };
  CHECK(chosen("train", false, false, false, "") == Launcher::kLocal);
  CHECK(chosen("1234", false, false, false, "") == Launcher::kSrun);
  CHECK(chosen("train", false, false, false, "7") == Launcher::kSrun);
  CHECK(chosen("train", false, false, true, "") == Launcher::kKubectl);
  CHECK(chosen("1234", false, true, false, "") == Launcher::kKubectl);
  CHECK(chosen("1234", true, false, false, "7") == Launcher::kSsh);
}

TEST_CASE("launch: names that a launcher or a shell would read otherwise are refused",
          "[collect]") {
  for (const char* good : {"n1", "user@gpu-07.cluster", "10.0.0.1", "fe80::1", "a_b"}) {
    CHECK(is_node_name(good));
  }
  for (const char* bad :
       {"", "-oProxyCommand=x", "a b", "a;b", "$(a)", "n[1-4]", "a,b", "^f", "a\nb", "a/b", "%h"}) {
    CHECK_FALSE(is_node_name(bad));
  }
}

TEST_CASE("package: comes back whole, in lines too, or not at all", "[collect]") {
  Package p;
  p.host = "n1";
  p.ranks = {0, 3};
  p.said = "2 rings";
  p.files = {{"job.a0.r0.17.ring", std::string("\0\xff\n\x80", 4)}, {"../../etc/x", "y"}};
  const std::string bytes = pack(p);
  Package got;
  REQUIRE(unpack(bytes, got));
  CHECK((got.host == "n1" && got.said == "2 rings" && got.ranks == p.ranks));
  REQUIRE(got.files.size() == 2);
  CHECK(got.files[0] == p.files[0]);
  CHECK(got.files[1].first == "_._.._etc_x");
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    Package none;
    CHECK_FALSE(unpack(std::string_view(bytes).substr(0, cut), none));
  }
  for (std::size_t n : {0, 1, 2, 3, 3071, 3072, 3073, 10000}) {
    const std::string text(n, '\xa7');
    std::string lines = to_base64_lines(text);
    std::erase(lines, '\n');
    CHECK(from_base64(lines) == text);
  }
}

TEST_CASE("nodes: the file of who answered comes back", "[collect]") {
  NodesFile file;
  file.job = "train";
  file.nodes = {{"n1", true, 0, 1.5, {0, 1}, "host", "boot", "2 rings", ""},
                {"n2", false, -1, 60, {}, "", "", "", "no answer within 60 s"}};
  NodesFile got;
  REQUIRE(parse_nodes(nodes_json(file), got));
  REQUIRE(got.nodes.size() == 2);
  CHECK((got.nodes[0].answered && got.nodes[0].ranks == std::vector<int>{0, 1}));
  CHECK((!got.nodes[1].answered && got.nodes[1].why == "no answer within 60 s"));
  CHECK(got.nodes[1].exit == -1);
  NodesFile other;
  CHECK_FALSE(parse_nodes(R"({"schema": "other", "nodes": []})", other));
  CHECK(parse_nodes(R"({"schema": "frtrace.nodes/1", "nodes": [3, {"node": 4, "ranks": "x"}]})",
                    other));
}
