// The dump as a reader of libfr/format/README.md's grammar finds it.
#include <signal.h>
#include <unistd.h>

#include <set>
#include <thread>

#include "catch.hpp"
#include "format/encode.hpp"
#include "format/ras_answer.hpp"
#include "format/ticks.hpp"
#include "recorder/recorder.hpp"
#include "sample/process.hpp"
#include "support.hpp"
#include "watch/control_page.hpp"

using namespace fr;
using namespace fr::test;

namespace {

struct Encoded {
  explicit Encoded(Rig& rig, DumpFacts facts = {}) {
    DumpEncoder encoder;
    REQUIRE(encoder.init(rig.header().n_records));
    const DumpEncoder::Bytes bytes = encoder.encode(rig.view, facts);
    REQUIRE(bytes.data != nullptr);
    content.assign(static_cast<const char*>(bytes.data), bytes.size);
  }
  Dump dump() const { return Dump(content); }
  std::string content;
};

std::vector<std::string> fields(const Dump& d, const char* table) {
  std::vector<std::string> names;
  const Node all = d[table]["fields"];
  for (std::size_t i = 0; i < all.size(); ++i) {
    names.push_back(all[i].text());
  }
  return names;
}

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> out;
  std::string word;
  for (const char c : text + " ") {
    if (c == ' ') {
      if (!word.empty()) {
        out.push_back(word);
      }
      word.clear();
    } else {
      word += c;
    }
  }
  return out;
}

}  // namespace

TEST_CASE("dump: the call that CUDA's observer is in, and the first asynchronous error") {
  Rig rig;
  auto& c = *const_cast<Cuda*>(rig.view.cuda());
  CHECK(Encoded(rig).dump()["device"].is_nil());
  c.error_code.store(700);
  c.error_tid.store(12);
  c.error_ticks.store(ticks_now(rig.hot.clock));
  c.error_ticket.store(5);
  c.error_name.store(rig.intern("cudaErrorIllegalAddress"));
  c.error_text.store(rig.intern("illegal memory access"));
  c.error_call.store(rig.intern("cudaStreamSynchronize"));
  CHECK(Encoded(rig).dump()["device"].is_nil());  // not whole yet
  c.error_ready.store(1);
  {
    const Encoded encoded(rig);
    const Dump d = encoded.dump();
    const Node error = d["device"]["error"];
    CHECK(error["code"].integer() == 700);
    CHECK(error["name"].text() == "cudaErrorIllegalAddress");
    CHECK(error["text"].text() == "illegal memory access");
    CHECK(error["call"].text() == "cudaStreamSynchronize");
    CHECK(error["ticket"].integer() == 4);
    CHECK(error["tid"].integer() == 12);
    CHECK(error["time"].is_int());
    CHECK(error["stack"].integer() == 0);
    CHECK(d["device"]["observer"].is_nil());  // fr makes no device call here
  }
  c.error_ticket.store(0);
  c.observer_tid.store(13);
  c.polled_ticks.store(ticks_now(rig.hot.clock));
  c.exhausted.store(3);
  const Encoded idle(rig);
  const Dump d = idle.dump();
  CHECK(d["device"]["error"]["ticket"].is_nil());
  CHECK(d["device"]["losses"]["events_exhausted"].integer() == 3);
  CHECK(d["device"]["observer"]["tid"].integer() == 13);
  CHECK(d["device"]["observer"]["call"].text().empty());
  CHECK(d["device"]["observer"]["since"].is_nil());
  CHECK(d["device"]["observer"]["polled"].is_int());
  c.call_ticks.store(ticks_now(rig.hot.clock));
  c.call.store(rig.intern("cuEventQuery"));
  const Dump stuck = Encoded(rig).dump();
  const Node observer = stuck["device"]["observer"];
  CHECK(observer["call"].text() == "cuEventQuery");
  CHECK(observer["since"].is_int());
}

TEST_CASE("dump: every key of the grammar, with its type") {
  Rig rig;
  const u32 g = rig.group("0", {0, 1});
  fr_op op = make_op(g, FR_COLLECTIVE, rig.intern("all_reduce"));
  end(rig.hot, rig.begin(op), State::kCompleted, 0);
  op.kind = FR_SEND;
  op.peer = 1;
  rig.begin(op);
  note(rig.hot, "hello", 5);
  step(rig.hot, 12);
  span_begin(rig.hot, rig.intern("epoch"));
  rig.tables->set_layer("torch", "adapter");
  ControlPage page;
  page.open("", "rig", 0, 0);
  page.join(getpid(), process_start(getpid()), 0, 0, "");
  DumpFacts facts;
  facts.reason = "why";
  facts.trigger = "manual";
  facts.incident = 7;
  facts.control = &page.page();
  const Encoded encoded(rig, facts);
  const Dump d = encoded.dump();

  CHECK(d["format"].text() == "fr.dump");
  CHECK(d["version"].integer() == 1);
  CHECK(d["reason"].text() == "why");
  CHECK(d["trigger"].text() == "manual");
  CHECK(d["incident"].integer() == 7);
  CHECK(d["written_unix_ns"].natural() >= rig.header().start_unix_ns);
  CHECK(d["salvage"].is_nil());

  const Node id = d["identity"];
  for (const char* key : {"job", "host", "boot_id", "command", "cwd", "recorder", "memory"}) {
    CAPTURE(key);
    CHECK(id[key].is_text());
  }
  for (const char* key : {"attempt", "rank", "local_rank", "world_size", "local_world_size", "pid",
                          "run", "start_unix_ns", "proc_start", "n_records"}) {
    CAPTURE(key);
    CHECK(id[key].is_int());
  }
  CHECK(id["memory"].text() == "shm");
  CHECK(id["pid"].integer() == getpid());

  REQUIRE(d["options"].size() == 2);
  CHECK(d["options"][1][0].text() == "FR_JOB");
  CHECK(d["options"][1][1].text() == "rig");
  CHECK(d["options"][1][2].text() == "FR_JOB");
  CHECK(d["layers"]["torch"].text() == "adapter");

  CHECK(std::set<std::string>{"tsc", "cntvct", "monotonic"}.count(d["clock"]["kind"].text()) == 1);
  CHECK(d["clock"]["base_unix_ns"].is_int());
  REQUIRE(d["clock"]["anchors"].size() >= 1);
  CHECK(d["clock"]["anchors"][0].size() == 3);

  CHECK(d["strings"][0].text().empty());
  CHECK(d["frames"].is_array());
  CHECK(d["stacks"].is_array());
  CHECK(d["threads"].is_array());

  CHECK(
      fields(d, "groups") ==
      words("group name desc backend instance n_ranks own_rank ranks created destroyed enqueued "
            "enqueued_time started started_time completed completed_time ended failed p2p_enqueued "
            "p2p_time p2p_ended lifecycle lifecycle_ended untracked wait_only wait_only_ended "
            "released "
            "kept first_kept last_kept overwritten dropped"));
  CHECK(fields(d, "lanes") == words("group peer direction enqueued enqueued_time started completed "
                                    "completed_time ended failed"));
  CHECK(fields(d, "records") ==
        words("ticket time kind seq group op stack tid peer flags in_numel out_numel in_dtype "
              "out_dtype "
              "reduce_op timeout_ms shape state started ended error end_tid"));
  for (const char* table : {"groups", "lanes", "records"}) {
    const Node rows = d[table]["rows"];
    for (std::size_t i = 0; i < rows.size(); ++i) {
      CHECK((rows[i].is_nil() || rows[i].size() == fields(d, table).size()));
    }
  }

  CHECK(d["notes"]["step"].integer() == 12);
  CHECK(d["notes"]["step_time"].is_int());
  const Node thread = d["notes"]["threads"][0];
  CHECK(thread["tid"].integer() == static_cast<i64>(own_tid()));
  CHECK(thread["note"].text() == "hello");
  CHECK(thread["note_time"].is_int());
  CHECK(thread["depth"].integer() == 1);
  REQUIRE(thread["spans"].size() == 1);
  CHECK(d.string(thread["spans"][0][0]) == "epoch");

  for (const char* key :
       {"dropped", "skipped", "overwritten", "torn", "shapes_overwritten", "status_lost",
        "strings_lost", "stacks_lost", "groups_lost", "lanes_lost", "crumbs_lost", "no_group"}) {
    CAPTURE(key);
    CHECK(d["losses"][key].integer() == 0);
  }
  CHECK(d["exit"].is_nil());
  REQUIRE(d["peers"].size() == 1);
  const Node peer = d["peers"][0];
  for (const char* key : {"rank", "local_rank", "pid", "status", "signal", "dumped"}) {
    CHECK(peer[key].is_int());
  }
  CHECK(peer["state"].text() == "live");
  CHECK(peer["exit_time"].is_nil());
  CHECK(peer["last_op"].is_text());
  CHECK(peer["last_site"].is_text());
}

TEST_CASE("dump: records say what was recorded, in every state") {
  Rig rig(64);
  const u32 g = rig.group("0");
  const fr_frame f = {rig.intern("train.py"), rig.intern("step"), 57};
  const u32 shape[3] = {1 | 1 << 12, 1 | 7 << 8, 1024};
  fr_op op = make_op(g, FR_COLLECTIVE, rig.intern("all_reduce"));
  op.in_dtype = 7;
  op.out_dtype = 16;
  op.reduce_op = 1;
  op.in_numel = 1024;
  op.out_numel = 1024;
  op.timeout_ms = 5'000;
  op.stack = rig.tables->stack(&f, 1);
  op.shape = shape;
  op.n_shape = 3;
  op.flags = FR_ASYNC;
  const u32 error = rig.intern("closed");
  rig.begin(op);
  started(rig.hot, rig.begin(op));
  const fr_ticket waits = rig.begin(op);
  wait_begin(rig.hot, waits);
  const fr_ticket idle = rig.begin(op);
  wait_begin(rig.hot, idle);
  wait_end(rig.hot, idle);
  end(rig.hot, rig.begin(op), State::kCompleted, 0);
  end(rig.hot, rig.begin(op), State::kFailed, error);
  end(rig.hot, rig.begin(op), State::kReleased, 0);
  op.flags = FR_UNTRACKED;
  rig.begin(op);
  const Encoded encoded(rig);
  const Dump d = encoded.dump();
  REQUIRE(d.rows("records") == 8);
  const char* states[] = {"enqueued",  "started", "waiting",  "idle",
                          "completed", "failed",  "released", "unknown"};
  for (std::size_t i = 0; i < 8; ++i) {
    CAPTURE(i);
    CHECK(d.cell("records", i, "ticket").natural() == i);
    CHECK(d.cell("records", i, "state").text() == states[i]);
    CHECK(d.cell("records", i, "seq").natural() == i + 1);
    CHECK(d.cell("records", i, "kind").text() == "collective");
    CHECK(d.string(d.cell("records", i, "op")) == "all_reduce");
    CHECK(d.cell("records", i, "in_dtype").text() == "Float");
    CHECK(d.cell("records", i, "out_dtype").text() == "BFloat16");
    CHECK(d.cell("records", i, "reduce_op").text() == "SUM");
    CHECK(d.cell("records", i, "timeout_ms").natural() == 5'000);
    CHECK(d.cell("records", i, "time").is_int());
    const Node words_of = d.cell("records", i, "shape");
    REQUIRE(words_of.size() == 3);
    CHECK(words_of[2].natural() == 1024);
    const Node stack = d["stacks"][d.cell("records", i, "stack").natural()];
    REQUIRE(stack.size() == 1);
    const Node frame = d["frames"][stack[0].natural()];
    CHECK(d.string(frame[0]) == "train.py");
    CHECK(d.string(frame[1]) == "step");
    CHECK(frame[2].natural() == 57);
  }
  CHECK(d.string(d.cell("records", 5, "error")) == "closed");
  CHECK(d.cell("records", 0, "started").is_nil());
  CHECK(d.cell("records", 1, "started").is_int());
  CHECK(d.cell("records", 4, "ended").is_int());
  CHECK(d.cell("records", 3, "ended").is_nil());
}

TEST_CASE("dump: groups, lanes and what was lost") {
  Rig rig(64);
  const u32 g = rig.group("0", {0, 2, 4, 9});
  for (int i = 0; i < 100; ++i) {
    end(rig.hot, rig.collective(g), State::kCompleted, 0);
  }
  fr_op op = make_op(g, FR_RECV);
  op.peer = 3;
  rig.begin(op);
  rig.hot.ring.claim();  // and a writer that died
  const Encoded encoded(rig);
  const Dump d = encoded.dump();
  REQUIRE(d.rows("groups") == 2);
  CHECK(d.string(d.cell("groups", 1, "name")) == "0");
  CHECK(d.string(d.cell("groups", 1, "backend")) == "gloo");
  CHECK(d.cell("groups", 1, "enqueued").natural() == 100);
  CHECK(d.cell("groups", 1, "completed").natural() == 100);
  CHECK(d.cell("groups", 1, "p2p_enqueued").natural() == 1);
  const u64 kept = d.cell("groups", 1, "kept").natural();
  CHECK(kept == 62);
  CHECK(d.cell("groups", 1, "first_kept").natural() == 39);
  CHECK(d.cell("groups", 1, "last_kept").natural() == 100);
  CHECK(d.cell("groups", 1, "overwritten").natural() == 38);
  CHECK(d["losses"]["overwritten"].natural() == 38);
  CHECK(d["losses"]["torn"].natural() == 1);
  const Node ranks = d.cell("groups", 1, "ranks");
  REQUIRE(ranks.size() == 2);
  CHECK(ranks[0][0].integer() == 0);
  CHECK(ranks[0][1].integer() == 3);
  CHECK(ranks[0][2].integer() == 2);
  CHECK(d.cell("groups", 0, "first_kept").is_nil());
  REQUIRE(d.rows("lanes") == 1);
  CHECK(d.cell("lanes", 0, "group").natural() == g);
  CHECK(d.cell("lanes", 0, "peer").integer() == 3);
  CHECK(d.cell("lanes", 0, "direction").text() == "recv");
  CHECK(d.cell("lanes", 0, "enqueued").natural() == 1);
}

TEST_CASE("dump: salvage, exit record and a long note") {
  Rig rig(64);
  ExitRecord& e = rig.header().exit;
  e.claimed = 1;
  std::snprintf(e.kind, sizeof e.kind, "exception");
  std::snprintf(e.type, sizeof e.type, "ValueError");
  std::snprintf(e.message, sizeof e.message, "%s", std::string(2'000, 'm').c_str());
  e.time_unix_ns = rig.header().start_unix_ns + 5;
  e.ready = 1;
  e.state = kExitNoted;
  const std::string text(200, 'n');
  note(rig.hot, text.data(), text.size());
  rig.header().heartbeat_unix_ns = rig.header().start_unix_ns + 7;
  rig.header().warned_unix_ns = rig.header().start_unix_ns + 6;
  DumpFacts facts;
  facts.salvaged_by = 3;
  facts.salvage = dump::Salvage::kDead;
  const Encoded encoded(rig, facts);
  const Dump d = encoded.dump();
  CHECK(d["salvage"]["by_rank"].integer() == 3);
  CHECK(d["salvage"]["why"].text() == "dead");
  CHECK(d["salvage"]["last_sign_unix_ns"].natural() == rig.header().start_unix_ns + 7);
  CHECK(d["identity"]["warned"].integer() == 6);
  CHECK(d["exit"]["state"].text() == "noted");
  CHECK(d["exit"]["kind"].text() == "exception");
  CHECK(d["exit"]["type"].text() == "ValueError");
  CHECK(d["exit"]["message"].text().size() == sizeof e.message - 1);
  CHECK(d["exit"]["time"].integer() == 5);
  for (const char* key : {"status", "signal", "sender_pid", "stack"}) {
    CHECK(d["exit"][key].is_int());
  }
  CHECK(d.cell("records", 0, "shape").text() == text);
  CHECK(d.cell("records", 0, "kind").text() == "note");
  CHECK(d["notes"]["threads"][0]["note"].text() == text);
  e.ready = 0;  // its writer died between the texts
  CHECK(Encoded(rig).dump()["exit"]["message"].text().empty());
}

TEST_CASE("dump: at most 80 bytes per record of a typical trace") {
  Rig rig(16384);
  const u32 world = rig.group("0", {0, 1, 2, 3, 4, 5, 6, 7});
  const u32 tp = rig.group("tp", {0, 1});
  u32 stacks[40];
  const u32 file = rig.intern("/home/user/project/train.py");
  for (u32 s = 0; s < 40; ++s) {
    fr_frame frames[15];
    for (u32 i = 0; i < 15; ++i) {
      frames[i] = {file, rig.intern(("function_" + std::to_string((s * 7 + i) % 60)).c_str()),
                   s + i * 13 + 1};
    }
    stacks[s] = rig.tables->stack(frames, 15);
  }
  const u32 ops[] = {rig.intern("allreduce_"), rig.intern("_allgather_base_"),
                     rig.intern("_reduce_scatter_base_")};
  for (u32 i = 0; i < 20'000; ++i) {
    fr_op op = make_op(i % 3 == 0 ? world : tp, FR_COLLECTIVE, ops[i % 3]);
    op.stack = stacks[i % 40];
    op.in_dtype = op.out_dtype = 16;
    op.reduce_op = i % 3 == 0 ? 1 : 0;
    op.timeout_ms = 600'000;
    op.in_numel = op.out_numel = 1'000'000 + i * 37 % 5'000;
    const u32 shape[4] = {1 | 1 << 12 | FR_SHAPE_SAME_OUT, 2 | 16 << 8, 1024,
                          976 + i * 37 % 5'000 / 1024};
    op.shape = shape;
    op.n_shape = 4;
    const fr_ticket t = rig.begin(op);
    started(rig.hot, t);
    end(rig.hot, t, State::kCompleted, 0);
  }
  const Encoded encoded(rig);
  const Dump d = encoded.dump();
  const std::size_t n = d.rows("records");
  CHECK(n > 16'000);
  const double each = static_cast<double>(encoded.content.size()) / static_cast<double>(n);
  WARN("bytes per record: " << each << ", "
                            << static_cast<double>(d.raw_bytes) / static_cast<double>(n)
                            << " before compression");
  CHECK(each <= 80);
}

TEST_CASE("dump: encoding allocates nothing, and the same encoder serves again") {
  Rig rig(1024);
  const u32 g = rig.group("0");
  for (int i = 0; i < 2'000; ++i) {
    rig.collective(g);
  }
  note(rig.hot, "note", 4);
  DumpEncoder encoder;
  REQUIRE(encoder.init(1024));
  const u64 before = allocations();
  const DumpEncoder::Bytes bytes = encoder.encode(rig.view, DumpFacts{});
  const u64 after = allocations();
  CHECK(after == before);
  const std::string first(static_cast<const char*>(bytes.data), bytes.size);
  const auto again = encoder.encode(rig.view, DumpFacts{});
  const Dump a(first);
  const Dump b(std::string(static_cast<const char*>(again.data), again.size));
  CHECK(a.rows("records") == b.rows("records"));
  CHECK(a.raw_bytes == b.raw_bytes);
}

TEST_CASE("dump: all tables full, all shapes long, still fits") {
  Rig rig(1024);
  for (u32 i = 1; i < kGroups; ++i) {
    rig.group(("g" + std::to_string(i)).c_str(), {0, 3, 4, 8, 9});
  }
  for (u32 i = 0; i < kStrings; ++i) {
    rig.intern((std::string(40, 's') + std::to_string(i)).c_str());
  }
  for (u32 i = 0; i < kStacks; ++i) {
    const fr_frame f[2] = {{i % 500, 3, i}, {i % 400, 4, i}};
    rig.tables->stack(f, 2);
  }
  std::vector<u32> shape(FR_MAX_SHAPE_WORDS);
  for (u32 i = 0; i < 2'000; ++i) {
    for (u32 w = 0; w < shape.size(); ++w) {
      shape[w] = i * 2654435761u + w * 40503u;
    }
    fr_op op = make_op(1 + i % 500);
    op.shape = shape.data();
    op.n_shape = FR_MAX_SHAPE_WORDS;
    op.peer = static_cast<i32>(i);
    op.kind = i % 2 == 0 ? FR_COLLECTIVE : FR_SEND;
    rig.begin(op);
  }
  const Encoded encoded(rig);
  const Dump d = encoded.dump();
  CHECK(d.rows("groups") == kGroups);
  CHECK(d["losses"]["shapes_overwritten"].natural() > 0);
  CHECK(d["losses"]["lanes_lost"].natural() > 0);
}

TEST_CASE("dump: texts that are not UTF-8 or hold line breaks come back byte for byte") {
  Rig rig(64);
  const std::string odd = "a\n\"\\\xff\xfe\x01";
  const u32 id = rig.intern(odd.c_str());
  const Encoded encoded(rig);
  CHECK(encoded.dump()["strings"][id].text() == odd);
}

TEST_CASE("dump: taken beside four recording threads, every record is whole") {
  Rig rig(256);
  const u32 g = rig.group("0");
  std::atomic<bool> done{false};
  std::vector<std::thread> writers;
  for (int w = 0; w < 4; ++w) {
    writers.emplace_back([&] {
      while (!done) {
        fr_op op = make_op(g);
        op.in_numel = ticks_now(rig.hot.clock);
        op.out_numel = ~op.in_numel;
        end(rig.hot, rig.begin(op), State::kCompleted, 0);
      }
    });
  }
  u64 wrong = 0;
  for (int i = 0; i < 20; ++i) {
    const Encoded encoded(rig);
    const Dump d = encoded.dump();
    for (std::size_t r = 0; r < d.rows("records"); r += 16) {
      wrong +=
          d.cell("records", r, "in_numel").natural() != ~d.cell("records", r, "out_numel").natural()
              ? 1
              : 0;
    }
  }
  done = true;
  for (auto& w : writers) {
    w.join();
  }
  CHECK(wrong == 0);
}
