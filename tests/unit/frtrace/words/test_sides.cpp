// test_sides.cpp - whatever the fault: the operation that a rank waits in is its own, and what the
// sides of a difference issued is told apart.
#include <functional>

#include "catch.hpp"
#include "jobs.hpp"

using namespace frtest;

namespace {

struct Fault {
  const char* name;
  Verdict kind;
  std::function<void(JobBuilder&)> make;
};

const Op kBarrier{.op = "barrier", .line = 99, .numel = 0, .reduce_op = ""};

Fault mismatch(const char* name, Op right, Op wrong, Rank guilty = 0) {
  return {name, Verdict::kMismatch, [=](JobBuilder& j) {
            for (Rank r = 0; r < 4; ++r) {
              j.issue(r, kWorld, r == guilty ? wrong : right);
            }
          }};
}

const Op kBroadcast{.op = "broadcast", .line = 60, .numel = 8, .reduce_op = "", .peer = 0};

Op with(Op op, const std::function<void(Op&)>& change) {
  change(op);
  return op;
}

const std::vector<Fault> kDifferences = {
    mismatch("size", kLoss, with(kLoss, [](Op& o) { o.numel = 2; })),
    mismatch("size elsewhere", kLoss, with(kLoss, [](Op& o) { o.numel = 2, o.line = 77; })),
    mismatch("dtype", kLoss, with(kLoss, [](Op& o) { o.dtype = "Half"; })),
    mismatch("reduce op", kLoss, with(kLoss, [](Op& o) { o.reduce_op = "MAX"; })),
    mismatch("root", kBroadcast, with(kBroadcast, [](Op& o) { o.peer = 2; })),
    mismatch("operation", kLoss, kBarrier),
    mismatch("operation of the last rank", kLoss, kBarrier, 3),
};

const std::vector<Fault> kOthers = {
    {"missing", Verdict::kMissing, [](JobBuilder& j) { j.some({1, 2, 3}, kWorld, kLoss); }},
    {"exception", Verdict::kExited,
     [](JobBuilder& j) {
       j.exception(0, "ValueError", "no such batch");
       j.advance(0.1);
       j.some({1, 2, 3}, kWorld, kLoss);
     }},
    {"killed", Verdict::kExited,
     [](JobBuilder& j) {
       j.some({1, 2, 3}, kWorld, kLoss);
       j.gone(0);
     }},
    {"left out in another group", Verdict::kMissing,
     [](JobBuilder& j) {
       const int g = j.group("1", {0, 1}, "pair");
       for (int i = 0; i < 4; ++i) {
         j.all(g, kSub);
         j.all(kWorld, kLoss);
       }
       j.issue(0, kWorld, kLoss);
       j.issue(1, g, kSub);
       j.some({2, 3}, kWorld, kLoss);
     }},
};

Report diagnosed(const Fault& f, std::vector<std::string>& own) {
  JobBuilder j(4);
  iterations(j, 3);
  f.make(j);
  j.advance(20);
  for (Rank r = 0; r < 4; ++r) {
    const RankEvidence& e = j.rank(r);
    const Record& last = e.records.back();
    own.push_back(std::string(e.text(last.op)) + ":" +
                  std::to_string(user_site(e, last.stack).line));
  }
  return j.diagnose();
}

}  // namespace

TEST_CASE("sides: ranks wait in their own operation, at their own line") {
  std::vector<Fault> all = kDifferences;
  all.insert(all.end(), kOthers.begin(), kOthers.end());
  for (const Fault& f : all) {
    INFO(f.name);
    std::vector<std::string> own;
    const Report r = diagnosed(f, own);
    CHECK(r.kind == f.kind);
    CHECK(!r.waiting.empty());
    for (const Waiting& w : r.waiting) {
      for (const Rank rank : w.ranks) {
        CHECK(w.op + ":" + std::to_string(w.site.line) == own[static_cast<std::size_t>(rank)]);
      }
    }
  }
}

TEST_CASE("sides: what the others issued is not what the blamed issued") {
  for (const Fault& f : kDifferences) {
    INFO(f.name);
    std::vector<std::string> own;
    const Report r = diagnosed(f, own);
    std::string others;
    for (const Finding& x : r.findings) {
      others = x.id == "why" ? x.text : others;
    }
    REQUIRE(r.blamed.size() == 1);
    const std::size_t at = others.find(" issued ");
    if (at == std::string::npos) {  // the same call at the same place: the first line has both
      CHECK(r.summary.find(" instead of ") != std::string::npos);
      continue;
    }
    CHECK(r.blamed[0].evidence.front().find(others.substr(at + 1)) == std::string::npos);
  }
}
