#include "catch.hpp"
#include "input/other_tools/settle.hpp"
#include "input/other_tools/stacks.hpp"
#include "model/case.hpp"

using namespace frtrace;

namespace {

std::span<const unsigned char> view_of_text(const std::string& text) {
  return {reinterpret_cast<const unsigned char*>(text.data()), text.size()};
}

std::unique_ptr<RankEvidence> spied(const std::string& file) {
  // As py-spy 0.4.3 writes it, two threads, one with native frames.
  static const std::string json = R"([
   {"pid": 77, "thread_id": 140097569806016, "thread_name": "loader", "os_thread_id": 79,
    "active": true, "owns_gil": true, "frames": [
     {"name": "clock_nanosleep", "filename": "/usr/lib/libc.so.6", "module": "/usr/lib/libc.so.6",
      "short_filename": "libc.so.6", "line": 0, "locals": null, "is_entry": true},
     {"name": "load", "filename": "data.py", "module": null, "line": 3, "locals":
      [{"name": "path", "addr": 5, "arg": true, "repr": "'/x'"}]}], "process_info": null},
   {"pid": 77, "thread_id": 140097580686208, "thread_name": "MainThread", "os_thread_id": 77,
    "active": false, "owns_gil": false, "frames": [
     {"name": "wait_for", "filename": "/job/train.py", "module": null, "line": 57, "locals": null}],
    "process_info": null}])";
  std::string why;
  auto e = load_py_spy(view_of_text(json), why);
  REQUIRE(e != nullptr);
  e->file = file;
  return e;
}

}  // namespace

TEST_CASE("py-spy: threads, frames, who holds the GIL, variables") {
  const auto e = spied("n1.3.json");
  REQUIRE(e->threads.threads.size() == 2);
  CHECK(e->id.pid == 77);
  CHECK(gil_holder(e->threads) == &e->threads.threads[0]);
  CHECK_FALSE(e->threads.frames[0].python);
  REQUIRE(e->threads.threads[0].variables.size() == 1);
  CHECK(e->threads.threads[0].variables[0].values[0].second == "'/x'");
  const ThreadStack* main = main_thread(e->threads, e->id.pid);
  REQUIRE(main != nullptr);
  CHECK(where_text(e->threads, *main).find("wait_for() at /job/train.py:57") == 0);
}

TEST_CASE("py-spy: what is no such array is refused") {
  for (const char* text :
       {"[]", "{}", "[1, 2]", "[{\"frames\": 3}]", "[{\"thread_id\": 1}]", "[", ""}) {
    std::string why;
    CHECK(load_py_spy(view_of_text(text), why) == nullptr);
  }
}

TEST_CASE("faulthandler: the last dump of a text, the main thread is its last") {
  const std::string text =
      "Thread 0x00007f01 (most recent call first):\n  File \"old.py\", line 1 in old\n"
      "training goes on\n"
      "Timeout (0:00:01)!\n"
      "Thread 0x00007f02 [loader] (most recent call first):\n  File \"data.py\", line 9 in load\n\n"
      "Current thread 0x00007f03 (most recent call first):\n"
      "  File \"/job/train.py\", line 57 in wait_for\n  File \"/job/train.py\", line 91 in "
      "<module>\n";
  REQUIRE(has_faulthandler(view_of_text(text)));
  const auto e = load_faulthandler(view_of_text(text));
  REQUIRE(e != nullptr);
  REQUIRE(e->threads.threads.size() == 2);
  CHECK(e->threads.threads[0].name == "loader");
  const ThreadStack* main = main_thread(e->threads, e->id.pid);
  REQUIRE(main != nullptr);
  CHECK(main->stack.size() == 2);
  CHECK(e->threads.frames[main->stack[0]].line == 57);
  CHECK_FALSE(has_faulthandler(view_of_text("(most recent call first)")));
}

TEST_CASE("stacks: by rank in the name or the folder, those that may wait stand for nobody") {
  std::vector<std::unique_ptr<RankEvidence>> all;
  all.push_back(spied("stacks/n1.3.json"));
  all.push_back(spied("logs/attempt_0/2/stderr.log"));
  settle_tools(all);
  CHECK(all[0]->id.rank == 3);
  CHECK(all[1]->id.rank == 2);
  CHECK_FALSE(all[0]->holes.may_wait);
  auto waits = spied("rank1.json");
  waits->threads.frames.edit().back().file =
      "/x/site-packages/torch/distributed/distributed_c10d.py";
  all.clear();
  all.push_back(std::move(waits));
  settle_tools(all);
  CHECK(all[0]->holes.may_wait);
  auto other = std::make_unique<RankEvidence>(*all[0]);  // of a rank with operations
  other->id.rank = 0;
  other->holes = {};
  all.push_back(std::move(other));
  const std::vector<Case> cases = make_cases(all, {});
  REQUIRE(cases.size() == 1);
  CHECK(cases[0].ranks.size() == 1);
  CHECK(cases[0].missing == std::vector<Rank>{1});
  CHECK(cases[0].stacks.contains(1));
}
