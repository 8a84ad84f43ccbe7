// jobs.hpp - the operations and iterations that the cases about causes share.
#pragma once

#include "builder.hpp"

namespace frtest {

inline constexpr int kWorld = JobBuilder::kWorld;
inline const Op kLoss{.line = 20, .numel = 1};
inline const Op kGrads{.line = 30, .numel = 4096};
inline const Op kSub{.line = 40, .numel = 64};
inline const Op kSend{.op = "send", .line = 50, .reduce_op = "", .kind = Kind::kSend};
inline const Op kRecv{.op = "recv", .line = 51, .reduce_op = "", .kind = Kind::kRecv};

using Ranks = std::vector<Rank>;

inline void iterations(JobBuilder& j, int n) {
  for (int i = 0; i < n; ++i) {
    j.all(kWorld, kLoss);
    j.all(kWorld, kGrads);
  }
}

}  // namespace frtest
