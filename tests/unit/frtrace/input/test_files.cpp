// test_files.cpp - directories and files: which are read, and what memory they may take.
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <thread>

#include "catch.hpp"
#include "format/layout.hpp"
#include "input/files.hpp"
#include "model/case.hpp"
#include "region.hpp"
#include "small_dump.hpp"
#include "words/diagnose.hpp"

using namespace frtrace;
using namespace frtest;

namespace {

// A directory of its own that goes with the test.
struct Scratch {
  std::filesystem::path path;
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "frtrace.XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Scratch() { std::filesystem::remove_all(path); }
  void write(const std::string& name, std::span<const unsigned char> bytes) const {
    const std::filesystem::path file = path / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  LoadResult load(LoadOptions options = {}) const { return load_paths({path.string()}, options); }
};

}  // namespace

TEST_CASE("formats are told by content") {
  const auto format = [](std::vector<unsigned char> b) { return format_of(b); };
  CHECK(format(dump(0)) == Format::kFrDump);
  CHECK(format({0x80, 2, '}'}) == Format::kPickle);
  CHECK(format({'{', '}'}) == Format::kJson);
  CHECK(format({}) == Format::kUnrecognised);
  CHECK(format({'x'}) == Format::kUnrecognised);
  Region region(1);
  CHECK(format_of(region.bytes()) == Format::kRing);
}

TEST_CASE("a directory: what can be read is, the rest is named") {
  const Scratch dir;
  dir.write("j.a0.r0.3.fr", dump(0));
  dir.write("sub/j.a0.r1.3.fr", dump(1));
  dir.write("sub/notes.txt", std::vector<unsigned char>{'h', 'i'});
  dir.write("a/b/c/too_deep.fr", dump(1));
  dir.write("readme.txt", std::vector<unsigned char>{'h', 'i'});
  dir.write("old.fr.tmp", std::vector<unsigned char>{1, 2, 3});
  dir.write("torch_0", std::vector<unsigned char>{0x80, 2, '}', '.'});
  dir.write("empty.fr", std::vector<unsigned char>{});
  const auto cut = dump(1);
  dir.write("cut.fr", std::vector<unsigned char>{cut.begin(), cut.begin() + 40});
  std::vector<unsigned char> control(sizeof(std::uint64_t));
  std::memcpy(control.data(), &fr::kControlMagic, sizeof(std::uint64_t));
  dir.write("control", control);
  const LoadResult r = load_paths({dir.path.string()}, "");
  CHECK(r.evidence.size() == 2);
  std::map<std::string, std::string> why;
  for (const Unreadable& u : r.unreadable) {
    why[std::filesystem::path(u.file).filename().string()] = u.why;
  }
  CHECK(why.size() == 4);
  CHECK(why["cut.fr"] == "truncated");
  CHECK(why["empty.fr"] == "empty");
  CHECK(why["torch_0"].find("PyTorch") != std::string::npos);
  CHECK(why.contains("readme.txt"));

  const auto cases = make_cases(r.evidence, {});
  REQUIRE(cases.size() == 1);
  const Report report = diagnose(cases[0]);
  CHECK(report.kind == Verdict::kMissing);
  CHECK(report.ranks == std::vector<Rank>{1});
  CHECK(report.blamed[0].site == Site{"train.py", 57, "step"});

  CHECK(load_paths({dir.path.string()}, "j.a0").evidence.size() == 2);
  CHECK(load_paths({dir.path.string()}, "zzz").found_nothing);
  CHECK(load_paths({dir.path.string() + "/nowhere"}, "").absent.size() == 1);
  CHECK(load_paths({dir.path.string(), dir.path.string() + "/j.a0.r0.3.fr"}, "").evidence.size() ==
        2);
}

TEST_CASE("a directory with loops of links, links to devices, pipes and files that are one") {
  const Scratch dir;
  const msgpack::sbuffer whole = plain_dump(0);
  dir.write("a.fr", compress(whole.data(), whole.size()));
  namespace fs = std::filesystem;
  fs::create_directory(dir.path / "below");
  dir.write("below/b.fr", compress(plain_dump(1).data(), plain_dump(1).size()));
  fs::create_directory_symlink(dir.path, dir.path / "below" / "up");
  fs::create_directory_symlink("loop", dir.path / "loop");
  fs::create_directory_symlink("below", dir.path / "alias");
  fs::create_symlink("a.fr", dir.path / "0-latest.fr");
  fs::create_symlink("/dev/zero", dir.path / "zero.fr");
  fs::create_symlink("/dev/tty", dir.path / "tty.fr");
  fs::create_symlink("gone", dir.path / "dangling.fr");
  REQUIRE(::mkfifo((dir.path / "pipe.fr").c_str(), 0600) == 0);
  fs::create_symlink("pipe.fr", dir.path / "linked-pipe.fr");
  const LoadResult result = dir.load();
  REQUIRE(result.evidence.size() == 2);
  CHECK(fs::path(result.evidence[0]->file).filename() == "a.fr");
  CHECK(result.evidence[1]->file == (dir.path / "below" / "b.fr").string());
  CHECK(result.unreadable.empty());
  // Asked for by name: told, not opened.
  const LoadResult named = load_paths({(dir.path / "pipe.fr").string(), "/dev/zero"}, "");
  REQUIRE(named.unreadable.size() == 2);
  CHECK(named.unreadable[0].why == "not a regular file");
  CHECK(named.unreadable[1].why == "not a regular file");
}

TEST_CASE("a file that is cut and rewritten while it is read is no end of the reader") {
  const Scratch dir;
  Region region(64);
  const auto bytes = region.bytes();
  std::atomic<bool> stop{false}, ok{true};
  const std::string path = dir.path / "x.ring";
  dir.write("x.ring", bytes);
  std::thread writer([&] {
    while (!stop) {
      ok = ok && ::truncate(path.c_str(), 4096) == 0;
      dir.write("x.ring", bytes);
    }
  });
  for (int i = 0; i < 300; ++i) {
    const LoadResult result = dir.load();
    CHECK(result.evidence.size() + result.unreadable.size() == 1);
  }
  stop = true;
  writer.join();
  CHECK(ok.load());
}

TEST_CASE("memory: bombs are bounded over all files together, and named") {
  const Scratch dir;
  for (int rank = 0; rank < 8; ++rank) {
    dir.write("r" + std::to_string(rank) + ".fr", large_dump(rank, 4000, 1000));
  }
  CHECK(dir.load().evidence.size() == 8);
  for (const unsigned threads : {1u, 4u}) {
    LoadOptions options;
    options.threads = threads;
    options.memory_bytes = std::size_t{24} << 20;  // a file takes 12 while read, keeps 4
    const LoadResult some = dir.load(options);
    INFO(threads << " threads");
    CHECK(some.evidence.size() >= 2);
    CHECK(some.evidence.size() < 8);
    REQUIRE(some.unreadable.size() == 8 - some.evidence.size());
    CHECK(some.unreadable[0].why == "needs more memory than is left of 24 MiB for all files");
    // Memory needed only while a file is read is free again for the next file, so all of them fit.
    options.memory_bytes = std::size_t{48} << 20;
    CHECK(dir.load(options).evidence.size() == 8);
  }
  LoadOptions none;
  none.memory_bytes = std::size_t{1} << 20;
  CHECK(dir.load(none).evidence.empty());
}
