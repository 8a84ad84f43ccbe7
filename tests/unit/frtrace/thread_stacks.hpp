// thread_stacks.hpp - a rank with given frames in its main thread.
#pragma once

#include <msgpack.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model/hints.hpp"
#include "model/rank_data.hpp"

namespace frtest {

using namespace frtrace;

inline ThreadFrame py(std::string file, std::uint32_t line, std::string function) {
  return {true, std::move(function), std::move(file), line, 0};
}
inline ThreadFrame native(std::string function, std::string file = "/usr/lib/libc.so.6") {
  return {false, std::move(function), std::move(file), 0, 0x1234};
}

// A rank with these frames in its main thread, innermost first.
inline RankEvidence rank(std::vector<ThreadFrame> frames, ThreadStack facts = {}) {
  RankEvidence e;
  e.id.rank = 2;
  e.id.pid = 100;
  e.id.cwd = "/home/u";
  facts.tid = 100;
  facts.name = "python";
  facts.activity =
      facts.activity == fr::Activity::kUnknown ? fr::Activity::kAsleep : facts.activity;
  facts.answer = fr::Answer::kAnswered;
  for (std::uint32_t i = 0; i < frames.size(); ++i) {
    facts.stack.push_back(i);
  }
  e.threads.present = true;
  e.threads.frames = std::move(frames);
  e.threads.threads.push_back(std::move(facts));
  return e;
}

inline std::string hint(const RankEvidence& e, HintKind kind) {
  for (const Hint& h : hints_of(e)) {
    if (h.kind == kind) {
      return h.text;
    }
  }
  return {};
}

inline void say(msgpack::packer<msgpack::sbuffer>& p, const std::string& s) {
  p.pack(s);
}

}  // namespace frtest
