// diagnose.hpp - a case to its report: facts, causes, one judge, words. A pure function.
#pragma once

#include "report/report.hpp"

namespace frtrace {

Report diagnose(const Case&);

}  // namespace frtrace
