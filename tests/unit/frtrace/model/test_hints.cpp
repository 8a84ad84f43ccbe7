// test_hints.cpp - where a rank is, in words, and the hangs that are known by a stack.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <msgpack.hpp>
#include <nlohmann/json.hpp>

#include "catch.hpp"
#include "live/lock_files.hpp"
#include "model/hints.hpp"
#include "thread_stacks.hpp"

using namespace frtest;

TEST_CASE("threads: where a rank is, in words") {
  ThreadStack facts;
  facts.syscall = "clock_nanosleep";
  facts.variables.push_back({1, {{"self.wait_seconds", "0.1"}}});
  const RankEvidence e =
      rank({native("clock_nanosleep"),
            py("/v/lib/python3.11/site-packages/torch/utils/file_baton.py", 49, "FileBaton.wait"),
            py("/home/u/train.py", 57, "load_lock"), py("/home/u/train.py", 99, "<module>")},
           facts);
  const std::vector<std::string> lines = where_lines(e);
  REQUIRE(lines.size() >= 3);
  CHECK(lines[0] ==
        "is in load_lock() at train.py:57, in FileBaton.wait() at torch/utils/file_baton.py:49");
  CHECK(lines[1] == "asleep in clock_nanosleep");
  CHECK(variable_lines(e).empty());  // of a library's frames
  CHECK(variable_lines(e, ShownVariables::kAll).back() ==
        "in FileBaton.wait(), line 49: self.wait_seconds = 0.1");
  RankEvidence none;
  CHECK(where_lines(none).empty());
}

TEST_CASE("threads: variables of torch's own frames say nothing of the program") {
  ThreadStack facts;
  facts.variables.push_back({0, {{"relevant_args", "(tensor float32[1] cpu,)"}}});
  facts.variables.push_back({1, {{"step", "7"}}});
  const RankEvidence e =
      rank({py("/v/site-packages/torch/distributed/distributed_c10d.py", 3252, "all_reduce"),
            py("/home/u/train.py", 57, "train")},
           facts);
  CHECK(variable_lines(e) == std::vector<std::string>{"in train(): step = 7"});
}

TEST_CASE("threads: attributes of the program's own come before those it derives from") {
  ThreadStack facts;
  facts.variables.push_back({0,
                             {{"t", "1"},
                              {"self._target", "None"},
                              {"self._name", "'" + std::string(350, 'x') + "'"},
                              {"self.rank", "2"}}});
  const RankEvidence e = rank({py("/home/u/train.py", 26, "Reducer.reduce")}, facts);
  CHECK(variable_lines(e)[0] ==
        "in Reducer.reduce(): t = 1, self.rank = 2, self._target = None, and 1 more");
}

TEST_CASE("threads: a process whose interpreter shuts down is ending") {
  RankEvidence e = rank({native("", "/usr/lib/libpython3.11.so.1.0"),
                         native("Py_FinalizeEx", "/usr/lib/libpython3.11.so.1.0"),
                         native("Py_RunMain", "/usr/lib/libpython3.11.so.1.0")});
  CHECK(script_is_over(e.threads, e.id.pid));
  CHECK(where_lines(e).front() == "is ending: its script is over");
}

TEST_CASE("threads: who holds the GIL") {
  ThreadStack facts;
  facts.syscall = "futex";
  facts.gil = fr::Gil::kWaits;
  RankEvidence e = rank({py("/home/u/train.py", 5, "step")}, facts);
  CHECK(hint(e, HintKind::kGil) == "waits for the GIL; no thread that answered holds it");
  ThreadStack holder;
  holder.tid = 7;
  holder.gil = fr::Gil::kHolds;
  holder.activity = fr::Activity::kRunning;
  holder.stack = {0};
  e.threads.threads.push_back(holder);
  CHECK(hint(e, HintKind::kGil) ==
        "waits for the GIL, which thread 7 holds in step() at train.py:5");
}

TEST_CASE("threads: known hangs are recognised, others are not") {
  const auto file_baton = [](const std::string& path) {
    ThreadStack facts;
    facts.variables.push_back({0, {{"self.lock_file_path", "'" + path + "'"}}});
    return rank({py("/x/torch/utils/file_baton.py", 49, "FileBaton.wait")}, facts);
  };
  char host[256] = "";
  REQUIRE(::gethostname(host, sizeof host - 1) == 0);
  const std::string path = "/tmp/fr-test-lock-" + std::to_string(::getpid());
  std::ofstream(path).put('x');
  const RankEvidence e = file_baton(path);
  CHECK(lock_wait(e).path == path);
  const std::string said = hint(e, HintKind::kLockFile);
  CHECK(said.find("if nobody is building, remove it") != std::string::npos);
  // The state of the lock file on this machine is added to a finished report.
  const auto after = [&](const std::string& lock, Time start) {
    Report r;
    r.blamed.resize(1);
    r.blamed[0].lock = {lock, host, start};
    r.blamed[0].evidence = {hint(file_baton(lock), HintKind::kLockFile)};
    look_at_lock_files(r);
    return r.blamed[0].evidence[0];
  };
  CHECK(after(path, 0).find("it still exists") != std::string::npos);
  CHECK(after(path, 0).find("stale") == std::string::npos);  // start unknown
  CHECK(after(path, Time{4'000'000'000} * 1'000'000'000)
            .find("before this process began, no process") != std::string::npos);
  ::unlink(path.c_str());
  CHECK(after(path + "-gone", 0).find("gone by now") != std::string::npos);

  ThreadStack on;
  on.syscall = "openat";
  on.syscall_on = "/x/pipe";
  CHECK(hint(rank({}, on), HintKind::kFifo).empty());
  on.wchan = "wait_for_partner";
  CHECK(hint(rank({}, on), HintKind::kFifo).find("/x/pipe") != std::string::npos);

  ThreadStack d;
  d.activity = fr::Activity::kUninterruptible;
  d.wchan = "nfs_wait";
  d.syscall_on = "/mnt/x";
  CHECK(hint(rank({}, d), HintKind::kUninterruptible).find("nfs_wait for /mnt/x") !=
        std::string::npos);

  CHECK(!hint(rank({native("c10d::detail::TCPClient::receive()")}), HintKind::kStore).empty());
  CHECK(!hint(rank({py("/x/torch/utils/data/dataloader.py", 1, "_M._try_get_data")}),
              HintKind::kLoaderWorker)
             .empty());
  RankEvidence loader = rank({py("/x/torch/utils/data/dataloader.py", 1, "_M._try_get_data")});
  loader.threads.children_known = true;
  CHECK(hint(loader, HintKind::kLoaderWorker).find("it has no child process") != std::string::npos);
  loader.threads.children = {
      {7, "pt_data_worker", "Z", fr::Activity::kGone, "", "", "", 9},
      {8, "pt_data_worker", "S", fr::Activity::kAsleep, "", "read", "/x/data", -1},
      {9, "sh", "S", fr::Activity::kAsleep, "", "", "", -1}};
  CHECK(hint(loader, HintKind::kLoaderWorker) ==
        "waits for a batch of its DataLoader: worker 7 was killed by signal 9, "
        "worker 8 is asleep in read of /x/data");
  const auto cuda = py("/x/torch/cuda/__init__.py", 400, "_lazy_init");
  const auto fork = py("/usr/lib/python3.11/multiprocessing/popen_fork.py", 71, "Popen._launch");
  CHECK(hint(rank({cuda, py("/home/u/train.py", 3, "work"), fork}), HintKind::kForkedCuda)
            .find("starts CUDA in a forked process") == 0);
  CHECK(hint(rank({cuda, py("/home/u/train.py", 3, "work")}), HintKind::kForkedCuda).empty());
  CHECK(hint(rank({py("/home/u/train.py", 3, "work"), fork}), HintKind::kForkedCuda).empty());
  CHECK(!hint(rank({py("<frozen importlib._bootstrap>", 1, "_ModuleLock.acquire")}),
              HintKind::kImportLock)
             .empty());
  ThreadStack s;
  s.activity = fr::Activity::kStopped;
  s.state = "T";
  CHECK(hint(rank({}, s), HintKind::kStopped).starts_with("is stopped (SIGSTOP or SIGTSTP"));
  s.state = "t";
  CHECK(hint(rank({}, s), HintKind::kStopped) == "is stopped by a debugger (state t)");
  ThreadStack lock;
  lock.syscall = "futex";
  RankEvidence two =
      rank({native("PyThread_acquire_lock_timed"), py("/home/u/a.py", 3, "f")}, lock);
  CHECK(hint(two, HintKind::kPythonLock) == "waits for a Python lock");
  lock.tid = 8;
  lock.stack = {0, 1};
  two.threads.threads.push_back(lock);
  CHECK(hint(two, HintKind::kPythonLock) ==
        "waits for a Python lock; so does thread 8 in f() at a.py:3");
  two.threads.threads.back().syscall = "clock_nanosleep";  // it may hold the lock
  CHECK(hint(two, HintKind::kPythonLock) ==
        "waits for a Python lock; thread 8 is in f() at a.py:3");
  ThreadStack queue;
  queue.syscall = "futex";
  CHECK(hint(rank({native("PyThread_acquire_lock_timed"),
                   py("/usr/lib/python3.11/threading.py", 327, "Condition.wait"),
                   py("/usr/lib/python3.11/queue.py", 171, "Queue.get"),
                   py("/home/u/train.py", 26, "reduce")},
                  queue),
             HintKind::kPythonLock) == "waits in Queue.get() for an item");
  CHECK(hints_of(rank({py("/home/u/train.py", 1, "main"), native("epoll_wait")})).empty());
}

TEST_CASE("threads: what the recorder cannot see is said") {
  RankEvidence e = rank({native("hold", "/x/libguilty.so")});
  e.layers.emplace_back("threads", "native frames only: free-threaded");
  CHECK(where_lines(e).back() == "native frames only: free-threaded");
  CHECK(where_lines(e)[1] == "asleep");  // of a GIL nothing is known
  const StackTree tree = merge_stacks({{2, 100, "", &e.threads, "", &e}});
  CHECK(render_stacks_text(tree).find("rank 2: native frames only") != std::string::npos);
}

TEST_CASE("threads: an object of many attributes is cut, a child process is named") {
  ThreadStack facts;
  facts.syscall = "wait4";
  facts.syscall_on = "process 77";
  std::vector<std::pair<std::string, std::string>> values;
  for (int i = 0; i < 40; ++i) {
    values.emplace_back("self.attribute_" + std::to_string(i), "'value'");
  }
  facts.variables.push_back({0, values});
  RankEvidence e = rank({py("/home/u/train.py", 7, "wait")}, facts);
  e.threads.children = {{77, "ninja", "S", fr::Activity::kAsleep, "", "poll", "", -1}};
  const std::vector<std::string> lines = where_lines(e);
  REQUIRE(lines.size() == 3);
  CHECK(lines[1] == "asleep in wait4 of process 77");
  CHECK(lines[2] == "waits for its child process 77 (ninja), which is asleep in poll");
  CHECK(variable_lines(e)[0].size() < 400);
  CHECK(variable_lines(e)[0].find(" more") != std::string::npos);
}

TEST_CASE("threads: a crash is told with its address, its thread and its stack") {
  RankEvidence e = rank({py("/home/u/train.py", 99, "main")});
  e.exit.present = true;
  e.exit.kind = ExitBy::kCrash;
  e.exit.type = "SIGSEGV";
  e.exit.message =
      "address 0x10: nothing is mapped there; thread 101 (decoder) in ? (guilty.so+0x1) < ?";
  std::vector<std::string> lines = crash_lines(e);  // that thread is not in the evidence
  CHECK(lines[0] == "got SIGSEGV, address 0x10: nothing is mapped there");
  ThreadStack other;
  other.tid = 101;
  other.name = "decoder";
  other.activity = fr::Activity::kInterrupted;
  e.threads.frames.push_back(native("deref", "/x/guilty.so"));
  e.threads.frames.push_back(py("/home/u/train.py", 57, "decode"));
  other.stack = {1, 2};
  e.threads.threads.push_back(other);
  lines = crash_lines(e);
  CHECK(lines[0] == "got SIGSEGV, address 0x10: nothing is mapped there, in thread 101 (decoder)");
  CHECK(lines[1] == "stack: deref (guilty.so) < train.py:57 decode");
  CHECK(lines[2] == "is in decode() at train.py:57, within deref (guilty.so)");
  CHECK(now_at(e) == Site{"train.py", 57, "decode"});
  e.threads = {};  // salvaged: the record in the ring is all there is
  CHECK(crash_lines(e).back() == "stack: ? (guilty.so+0x1) < ?");
}

TEST_CASE("threads: in the program's own code, or inside torch, as native frames tell") {
  const ThreadFrame user = py("/home/u/train.py", 17, "load_shard");
  const ThreadFrame wait = native("c10d::Work::wait", "/v/torch/lib/libtorch_cpu.so");
  CHECK(is_in_program(rank({native("read"), user})));
  CHECK_FALSE(is_in_torch(rank({native("read"), user})));
  CHECK(is_in_torch(rank({native("futex"), wait, user})));
  CHECK_FALSE(is_in_program(rank({native("futex"), wait, user})));
  // Without native frames the reason for a line's wait is not known.
  CHECK_FALSE(is_in_program(rank({user})));
  CHECK_FALSE(is_in_torch(rank({user})));
  // A loader of data is no wait for ranks.
  CHECK(is_in_program(rank(
      {native("poll"), py("/v/torch/utils/data/dataloader.py", 1131, "_try_get_data"), user})));
  CHECK(is_in_torch(
      rank({native("poll"), py("/v/torch/distributed/distributed_c10d.py", 1, "barrier"), user})));

  ThreadStack lock;
  lock.syscall = "futex";
  RankEvidence e = rank({native("futex"), user}, lock);
  CHECK(is_in_program(e));
  e.threads.frames.push_back(wait);
  ThreadStack other;  // it may hold that lock, and waits for ranks
  other.tid = 101;
  other.stack = {0, 2, 1};
  e.threads.threads.push_back(other);
  CHECK_FALSE(is_in_program(e));
}

TEST_CASE("threads: at exit a rank is where its thread is that issued operations") {
  ThreadStack main;
  main.whole = true;
  RankEvidence e =
      rank({native("futex"), py("/usr/lib/python3.11/threading.py", 1590, "_shutdown")}, main);
  e.threads.frames.push_back(py("/home/u/train.py", 24, "shard_write"));
  ThreadStack saver;
  saver.tid = 101;
  saver.stack = {0, 2};
  e.threads.threads.push_back(saver);
  CHECK(program_thread(e)->tid == 100);  // it issued nothing
  Record r;
  r.kind = Kind::kCollective;
  r.tid = 101;
  e.records.push_back(r);
  CHECK(program_thread(e)->tid == 101);
  CHECK(now_at(e) == Site{"train.py", 24, "shard_write"});
  const std::vector<std::string> lines = where_lines(e);
  CHECK(lines.front() ==
        "is in shard_write() at train.py:24, within futex (libc.so.6), in its thread 101");
  CHECK(lines.back() == "its script is over: its main thread waits for that thread to end");
}
