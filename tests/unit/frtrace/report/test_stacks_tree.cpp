// test_stacks_tree.cpp - the tree of the stacks of all ranks.
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <msgpack.hpp>
#include <nlohmann/json.hpp>

#include "catch.hpp"
#include "model/hints.hpp"
#include "report/stacks_tree.hpp"
#include "thread_stacks.hpp"

using namespace frtest;

TEST_CASE("stacks: recursion and C++ names are short in words, whole in JSON") {
  const char* name =
      "std::vector<at::Tensor, std::allocator<at::Tensor> > torch::(anonymous "
      "namespace)::run<int>(std::vector<at::Tensor> const&, bool) const";
  std::vector<ThreadFrame> frames{native(name, "/x/libtorch.so")};
  for (int i = 0; i < 50; ++i) {
    frames.push_back(py("/home/u/train.py", 3, "walk"));
  }
  frames.push_back(py("/home/u/train.py", 9, "main"));
  const RankEvidence e = rank(frames);
  const StackTree tree = merge_stacks({{0, 100, "/home/u", &e.threads, "", nullptr}});
  CHECK(render_stacks_text(tree) ==
        "main threads of 1 rank, all with the same stack\n"
        "0              train.py:9 main\n"
        "0              train.py:3 walk [50 times]\n"
        "0              std::vector<...> torch::(anonymous namespace)::run<int> (libtorch.so)\n"
        "0              = asleep\n\n");
  const auto json = nlohmann::json::parse(render_stacks_json(tree));
  CHECK(json["classes"][0]["stack"].size() == 52);
  CHECK(json["classes"][0]["stack"][51].get<std::string>().find("bool) const") !=
        std::string::npos);
}

TEST_CASE("stacks: equal ranks are folded, the rarest stack comes first") {
  std::vector<RankEvidence> ranks;
  for (int r = 0; r < 8; ++r) {
    ranks.push_back(r == 2 ? rank({native("clock_nanosleep"), py("/home/u/train.py", 57, "load"),
                                   py("/home/u/train.py", 99, "<module>")})
                           : rank({py("/home/u/train.py", 91, "step"),
                                   py("/home/u/train.py", 99, "<module>")}));
    ranks.back().id.rank = r;
  }
  std::vector<StackInput> inputs;
  for (const RankEvidence& e : ranks) {
    inputs.push_back({e.id.rank, e.id.pid, e.id.cwd, &e.threads,
                      e.id.rank == 2 ? "nothing" : "all_reduce #41 of default_pg, in flight",
                      nullptr});
  }
  const StackTree tree = merge_stacks(inputs);
  REQUIRE(tree.classes.size() == 2);
  CHECK(tree.classes[0].ranks == std::vector<Rank>{2});
  CHECK(tree.classes[1].ranks.size() == 7);
  CHECK(render_stacks_text(tree) ==
        "main threads of 8 ranks, 2 different stacks\n"
        "0-7            train.py:99 <module>\n"
        "2                train.py:57 load\n"
        "2                clock_nanosleep (libc.so.6)\n"
        "2                = asleep | nothing\n"
        "0,1,3-7          train.py:91 step\n"
        "0,1,3-7          = asleep | all_reduce #41 of default_pg, in flight\n\n");
  const auto json = nlohmann::json::parse(render_stacks_json(tree));
  CHECK(json["schema"] == "frtrace.stacks/1");
  CHECK(json["classes"][0]["ranks"] == "2");
  CHECK(json["roles"][0]["tree"]["children"].size() == 2);
  // another frontier is another class, though the stack is the same
  inputs[7].frontier = "all_reduce #40 of default_pg, in flight";
  CHECK(merge_stacks(inputs).classes.size() == 3);
  // no evidence of a rank is said
  const ThreadsEvidence none;
  inputs.push_back({8, 1, "", &none, "", nullptr});
  CHECK(merge_stacks(inputs).without == 1);
}

TEST_CASE("stacks: threads of 4,096 ranks with equal stacks are one class each") {
  std::vector<ThreadFrame> frames;
  for (std::uint32_t i = 0; i < 40; ++i) {
    frames.push_back(py("/home/u/train.py", i, "function_" + std::to_string(i)));
  }
  std::vector<RankEvidence> ranks;
  for (int r = 0; r < 4096; ++r) {
    ranks.push_back(rank(frames));
    ranks.back().id.rank = r;
    for (int t = 1; t < 20; ++t) {
      ThreadStack other = ranks.back().threads.threads[0];
      other.tid = 100 + t;
      other.name = "pt_" + std::to_string(t);
      ranks.back().threads.threads.push_back(other);
    }
  }
  std::vector<StackInput> inputs;
  for (const RankEvidence& e : ranks) {
    inputs.push_back({e.id.rank, e.id.pid, e.id.cwd, &e.threads, "", nullptr});
  }
  const StackTree tree = merge_stacks(inputs);
  const std::string text = render_stacks_text(tree);
  CHECK(tree.classes.size() == 20);
  CHECK(text.find("0-4095") != std::string::npos);
}
