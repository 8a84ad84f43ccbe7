// test_escapes.cpp - text of evidence neither drives a terminal nor forges a line, in any output.
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "builder.hpp"
#include "catch.hpp"
#include "format/text.hpp"
#include "report/lines.hpp"
#include "report/render.hpp"
#include "report/stacks_tree.hpp"
#include "report/to_torch.hpp"

using namespace frtest;

namespace {

// Title of a terminal, a new line that looks like a verdict, C1 as UTF-8 and as a byte, an override
// of the direction, a line separator, no UTF-8, DEL.
constexpr const char* kHostile =
    "\x1b]0;x\x07\nEXITED     rank 9 forged\r\xc2\x9b"
    "31m\x9b"
    "1m\xe2\x80\xae\xe2\x80\xa8\xff\xc3\x7f";

void plant(std::string& text) {
  text += kHostile;
}

void plant(ThreadsEvidence& t) {
  plant(t.not_asked);
  for (ThreadFrame& f : t.frames.edit()) {
    plant(f.function);
    plant(f.file);
  }
  for (ThreadModule& m : t.modules) {
    plant(m.file);
  }
  for (ThreadStack& s : t.threads) {
    for (std::string* text : {&s.name, &s.wchan, &s.syscall, &s.syscall_on}) {
      plant(*text);
    }
    for (FrameVariables& v : s.variables) {
      for (auto& [name, value] : v.values) {
        plant(name);
        plant(value);
      }
    }
  }
  for (ChildProcess& c : t.children) {
    for (std::string* text : {&c.name, &c.wchan, &c.syscall, &c.syscall_on}) {
      plant(*text);
    }
  }
}

// Into every text that a file can bring; `codes`: also where frtrace looks for words of its own.
void plant(RankEvidence& e, bool codes) {
  for (std::string* text : {&e.file, &e.id.job, &e.id.host, &e.id.boot_id, &e.id.command, &e.id.cwd,
                            &e.id.recorder, &e.reason, &e.exit.type, &e.exit.message,
                            &e.device.failure.name, &e.device.failure.text, &e.device.failure.call,
                            &e.device.observer_call, &e.ras.address, &e.ras.answer, &e.ras.error}) {
    plant(*text);
  }
  for (std::size_t i = 1; i < e.strings.size(); ++i) {
    plant(e.strings.edit()[i]);
  }
  for (auto* list : {&e.options, &e.layers}) {
    for (auto& [name, value] : *list) {
      codes ? plant(name) : void();
      plant(value);
    }
  }
  for (ThreadNotes& n : e.notes) {
    plant(n.note);
    for (auto& [name, time] : n.spans) {
      plant(name);
    }
  }
  for (PeerEvidence& p : e.peers) {
    plant(p.last_op);
    plant(p.last_site);
  }
  plant(e.threads);
  if (codes) {
    for (std::string* text : {&e.format, &e.ras.format}) {
      plant(*text);
    }
  }
}

void add_texts(RankEvidence& e) {
  e.options = {{"FR_STACKS", "python"}};
  e.layers = {{"threads", "native frames only: "}, {"torch", "missing: "}};
  e.notes = {{static_cast<std::uint32_t>(e.id.pid), "loading", 1, {{"epoch", 1}, {"batch", 2}}}};
  ThreadStack s;
  s.tid = e.id.pid;
  s.name = "python";
  s.activity = fr::Activity::kAsleep;
  s.answer = fr::Answer::kAnswered;
  s.syscall = "openat";
  s.syscall_on = "/data/fifo";
  s.stack = {0, 1};
  s.variables = {{1, {{"batch", "7"}}}};
  ThreadStack other = s;
  other.tid = e.id.pid + 1;
  other.name = "loader";
  e.threads.present = true;
  e.threads.frames = {{false, "c10d::wait(int)", "/usr/lib/libtorch.so", 0, 1},
                      {true, "load", "/home/u/load.py", 3, 0}};
  e.threads.threads = {s, other};
  e.threads.children = {{e.id.pid + 7, "worker", "S", fr::Activity::kAsleep, "", "futex", "", -1}};
  e.threads.not_asked = "another handler";
  e.threads.frames_lost = 1;
  e.ras.asked = true;
  e.device.failure = {
      true, 700, "cudaErrorIllegalAddress", "illegal", "cudaStreamSynchronize", false, 0, 1};
}

// The first byte that a terminal would obey, or that is no text.
std::size_t first_raw(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t n =
        text[at] == '\n' ? 1 : fr::printable_bytes(text.data() + at, text.size() - at);
    if (n == 0) {
      return at;
    }
    at += n;
  }
  return std::string::npos;
}

void check(const char* what, const std::string& text) {
  const std::size_t at = first_raw(text);
  INFO(what << ": " << printable(text.substr(at == std::string::npos ? 0 : at > 80 ? at - 80 : 0)));
  CHECK(at == std::string::npos);
  CHECK(text.find("\nEXITED     rank 9 forged") == std::string::npos);
  CHECK(!text.empty());
}

using Scene = std::function<void(JobBuilder&)>;

const std::vector<std::pair<const char*, Scene>>& scenes() {
  static const std::vector<std::pair<const char*, Scene>> all = {
      {"missing", [](JobBuilder& j) { j.some({0, 1, 3}, JobBuilder::kWorld, {.line = 20}); }},
      {"exited",
       [](JobBuilder& j) {
         j.exception(2, "RuntimeError", "bad");
         j.some({0, 1, 3}, JobBuilder::kWorld, {.line = 20});
       }},
      {"signal",
       [](JobBuilder& j) {
         j.signal(2, 11);
         j.some({0, 1, 3}, JobBuilder::kWorld, {.line = 20});
       }},
      {"mismatch",
       [](JobBuilder& j) {
         j.some({0, 1, 3}, JobBuilder::kWorld, {.line = 20});
         j.some({2}, JobBuilder::kWorld, {.op = "broadcast", .line = 30, .dtype = "Half"});
       }},
      {"failed",
       [](JobBuilder& j) {
         j.fail(1, JobBuilder::kWorld, {.line = 20}, "connection reset");
         j.some({0, 2, 3}, JobBuilder::kWorld, {.line = 20});
       }},
      {"deadlock",
       [](JobBuilder& j) {
         const int g = j.group("tp", {0, 1, 2, 3}, "tp");
         j.all(g, {.line = 5});
         j.some({0, 1}, g, {.line = 5});
         j.some({2, 3}, JobBuilder::kWorld, {.line = 20});
       }},
      {"open", [](JobBuilder& j) { j.lose_file(2), j.some({0, 1}, JobBuilder::kWorld); }},
      {"ok", [](JobBuilder&) {}},
  };
  return all;
}

}  // namespace

TEST_CASE("hostile evidence: every output is plain text") {
  for (const auto& [name, scene] : scenes()) {
    for (const bool codes : {false, true}) {
      JobBuilder j(4);
      j.all(5, JobBuilder::kWorld, {.line = 20});
      scene(j);
      j.advance(12);
      auto evidence = j.take();
      for (auto& e : evidence) {
        add_texts(*e);
        plant(*e, codes);
      }
      const std::vector<Case> cases = make_cases(evidence, {});
      REQUIRE(cases.size() == 1);
      const std::vector<Report> reports = {diagnose(cases[0]), diagnose(cases[0])};
      LoadResult input;
      input.unreadable = {{kHostile, kHostile}};
      input.absent = {kHostile};
      INFO(name << (codes ? ", codes" : ""));
      for (const bool full : {false, true}) {
        TextStyle style;
        style.full = full;
        style.stacks = true;
        style.where = kHostile;
        check("text", render_text({reports[0]}, input, style));
        check("text of two jobs", render_text(reports, input, style));
        TableFilter filter;
        filter.full = full;
        check("table", render_table(cases, filter));
      }
      const StackTree tree = merge_stacks(stack_inputs(cases[0], {}));
      check("stacks", render_stacks_text(tree));
      for (const std::string& json :
           {render_json(reports, input, render_stacks_json(tree)), render_stacks_json(tree)}) {
        check("json", json);
        CHECK(nlohmann::json::accept(json));
      }
    }
  }
}

TEST_CASE("hostile evidence: names of directories for PyTorch's dumps") {
  namespace fs = std::filesystem;
  const std::string dir = fs::temp_directory_path() / ("fr-escapes-" + std::to_string(::getpid()));
  JobBuilder a(1, std::string("../a") + kHostile), b(1, "b");
  auto evidence = a.take();
  evidence.push_back(std::move(b.take().front()));
  std::string why;
  CHECK(save_torch(make_cases(evidence, {}), dir, why) == 2);
  std::size_t n = 0;
  for (const auto& entry : fs::directory_iterator(dir)) {
    check("directory", entry.path().string());
    ++n;
  }
  CHECK(n == 2);
  fs::remove_all(dir);
}

TEST_CASE("printable: what a terminal may get") {
  const auto n = [](std::string_view s) { return fr::printable_bytes(s.data(), s.size()); };
  CHECK(n("a") == 1);
  CHECK(n("\xc3\xbc") == 2);
  CHECK(n("\xe2\x82\xac") == 3);
  CHECK(n("\xf0\x9f\x9a\x80") == 4);
  for (const char* s : {"", "\x1b", "\n", "\x7f", "\x9b", "\xc2\x9b", "\xc0\x80", "\xe0\x80\x80",
                        "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x80\xae", "\xe2\x81\xa6",
                        "\xe2\x80\xa8", "\xef\xbb\xbf", "\xe2\x80", "\xff", "\xd8\x9c"}) {
    CHECK(n(s) == 0);
  }
}
