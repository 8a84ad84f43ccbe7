// diagnose.hpp - a case to its report: facts, causes, one judge, words. A pure function.
#pragma once

#include "facts/facts.hpp"
#include "report/report.hpp"

namespace frtrace {

Report diagnose(const Case&);
Report diagnose(const Facts&);

}  // namespace frtrace
