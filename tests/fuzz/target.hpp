// target.hpp - what all targets do with what they loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "input/files.hpp"
#include "input/other_tools/inspector.hpp"
#include "input/other_tools/kineto.hpp"
#include "input/other_tools/settle.hpp"
#include "input/torch/dump.hpp"
#include "input/trim.hpp"
#include "model/case.hpp"
#include "report/render.hpp"
#include "words/diagnose.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace frfuzz {

using Loaded = std::unique_ptr<frtrace::RankEvidence>;

inline void report(const std::vector<Loaded>& all) {
  std::vector<frtrace::Report> reports;
  for (const frtrace::Case& c : frtrace::make_cases(all, {})) {
    reports.push_back(frtrace::diagnose(c));
  }
  (void)frtrace::render_json(reports, {});
}

// The way of one file through the tool; `settle`: beside others of PyTorch's.
inline void go(Loaded e, bool settle) {
  if (e == nullptr) {
    return;
  }
  std::vector<Loaded> all;
  e->file = "trace_rank_1";
  for (const char* file : {"trace_rank_0", "trace_rank_2"}) {
    all.push_back(std::make_unique<frtrace::RankEvidence>(*e));
    all.back()->file = file;
    all.back()->id.rank = file[11] - '0';
    if (settle && !all.back()->records.empty() && all.size() == 2) {
      all.back()->records.pop_back();
    }
  }
  all.push_back(std::move(e));
  if (settle) {
    frtrace::settle_torch(all);
  }
  frtrace::settle_kineto(all);
  frtrace::settle_inspector(all);
  frtrace::settle_tools(all);
  report(all);
  frtrace::Windows windows(0, all.size());
  windows.count(all);
  for (const Loaded& one : all) {
    windows.cut(*one);
  }
  (void)windows.look_again(all);
  for (const Loaded& one : all) {
    windows.cut_again(*one);
  }
  report(all);
}

}  // namespace frfuzz
