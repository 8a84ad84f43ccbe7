// diagnose.hpp - the verdict on a case. A pure function: same case, same report.
#pragma once

#include "model/case.hpp"
#include "report/report.hpp"

namespace frtrace {

Report diagnose(const Case&);

}  // namespace frtrace
