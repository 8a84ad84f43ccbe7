// test_call_site.cpp - the frame of the user's code, and an operation in one line.
#include <cstdlib>
#include <random>

#include "catch.hpp"
#include "format/call_site.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

TEST_CASE("the user's frame is the first outside torch and fr") {
  Rig rig(64);
  const auto frame = [&](const char* file, u32 line) {
    return fr_frame{rig.intern(file), rig.intern("f"), line};
  };
  const fr_frame frames[] = {frame("/usr/lib/python3/dist-packages/torch/distributed/c10d.py", 1),
                             frame("/venv/lib/python3.11/site-packages/fr/__init__.py", 2),
                             frame("<frozen runpy>", 3), frame("/home/u/train.py", 4),
                             frame("/home/u/main.py", 5)};
  CHECK(user_site(rig.view, rig.tables->stack(frames, 5)).line == 4);
  CHECK(user_site(rig.view, rig.tables->stack(frames, 3)).line == 1);  // only libraries: innermost
  CHECK(user_site(rig.view, 0).file.empty());

  const fr_frame within[] = {frames[0], frame("/v/site-packages/accelerate/accelerator.py", 6),
                             frames[3]};
  fr_op op = make_op(rig.group("0"), FR_COLLECTIVE, rig.intern("all_reduce"));
  op.stack = rig.tables->stack(within, 3);
  char text[200];
  describe(rig.view, rig.read(rig.begin(op)), text, sizeof text);
  CHECK(std::string(text) == "all_reduce #1 of desc at train.py:4 (f, in accelerate f)");
}

TEST_CASE("a group that nobody described is called by its members") {
  Rig rig(64);
  const auto label = [&](const std::vector<i32>& ranks) {
    static int made = 0;
    const std::string name = std::to_string(++made);
    fr_group_info info{};
    info.struct_bytes = sizeof info;
    info.n_ranks = static_cast<i32>(ranks.size());
    info.name = name.c_str();
    info.desc = "undefined";
    info.ranks = ranks.empty() ? nullptr : ranks.data();
    const u32 row = rig.tables->add_group(info, 1);
    return std::string(GroupLabel(rig.view, rig.view.group(row)).text());
  };
  CHECK(label({2, 3}) == "group {2,3}");
  CHECK(label({5}) == "group {5}");
  CHECK(label({4, 5, 6, 7}) == "group {4-7}");
  CHECK(label({0, 8, 16, 24, 32}) == "group {0,8,16,24,32}");
  CHECK(label({0, 8, 16, 24, 32, 40}) == "group {0,8,16,24,32,...}");
  CHECK(label({1000000000, 1000000001, 1000000002, 7, 9, 1000000003, 1000000004, 1000000005, 8, 10,
               1000000006})
            .starts_with("group {1000000000-1000000002,7,9,1000000003-1000000005,8,...}"));
  CHECK(GroupLabel(rig.view, nullptr).text().empty());
}

TEST_CASE("whose a file is, by its path") {
  for (const char* file : {"/home/u/train.py", "train.py", "/home/u/torch_job/train.py",
                           "/home/u/my-packages/a.py", "/opt/src/lightning/trainer.py", "<string>",
                           "<stdin>", "<ipython-input-3-1>", "/home/u/bin/train.py"}) {
    INFO(file);
    CHECK(origin_of(file) == Origin::kUser);
  }
  for (const char* file :
       {"/v/lib/python3.11/site-packages/accelerate/data.py", "/usr/lib/python3/dist-packages/a.py",
        "/home/u/.local/lib/python3.12/site-packages/lightning/pytorch/loops/fit.py"}) {
    INFO(file);
    CHECK(origin_of(file) == Origin::kPackage);
  }
  for (const char* file :
       {"", "??", "<frozen runpy>", "<eval_with_key>.3", "/usr/lib/python3.11/socket.py",
        "/usr/local/lib/python3.13t/json/decoder.py", "/usr/lib64/python3.9/socket.py",
        "/usr/lib/python311.zip/socket.py", "/v/lib/python3.11/site-packages/torch/nn/module.py",
        "/home/u/pytorch/torch/distributed/distributed_c10d.py", "/v/x/site-packages/numpy/a.so",
        "/lib/libc.so.6", "/v/lib/python3.11/site-packages/fr/capture.py",
        "/opt/fr-wheel/fr/capture.py", "/opt/py/lib/python3.11/contextlib.py"}) {
    INFO(file);
    CHECK(origin_of(file) == Origin::kCore);
  }
  CHECK(origin_of("/v/bin/accelerate") == Origin::kCommand);
  CHECK(origin_of("/usr/bin/python3.11") == Origin::kCommand);
  CHECK(package_of("/v/site-packages/accelerate/data.py") == "accelerate");
  CHECK(package_of("/v/site-packages/six.py") == "six");
  CHECK(package_of("/home/u/train.py").empty());
  CHECK(plain_name("Accelerator.gather") == "gather");
  CHECK(plain_name("Trainer.__init__") == "Trainer.__init__");
}

TEST_CASE("what hangs is described in one line, cut to fit") {
  Rig rig(64);
  const u32 g = rig.group("0");
  const fr_frame f = {rig.intern("/home/u/train.py"), rig.intern("step"), 91};
  fr_op op = make_op(g, FR_COLLECTIVE, rig.intern("all_reduce"));
  op.stack = rig.tables->stack(&f, 1);
  const RecordCopy r = rig.read(rig.begin(op));
  char text[200];
  describe(rig.view, r, text, sizeof text);
  CHECK(std::string(text) == "all_reduce #1 of desc at train.py:91 (step)");
  for (std::size_t n = 1; n < 50; ++n) {
    std::vector<char> small(n, 'x');
    describe(rig.view, r, small.data(), n);
    CHECK(std::string(small.data()) == std::string(text).substr(0, n - 1));
  }
  RecordCopy oldest;
  rig.begin(op);
  REQUIRE(oldest_in_flight(rig.view, g, oldest));
  CHECK(oldest.payload.seq == 1);
  REQUIRE(last_operation(rig.view, oldest));
  CHECK(oldest.payload.seq == 2);
}
