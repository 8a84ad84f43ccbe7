// one_file.hpp - reads one file. Only for files.cpp, which reads sets of files.
#pragma once

#include <string>

#include "input/files.hpp"

namespace frtrace {

struct Candidate {
  std::string path;
  bool asked_for;  // given as an argument, or directly in a given directory
};

// all_records: also read the older records of a summary.
void load_file(const Candidate& file, bool all_records, LoadResult& result);

}  // namespace frtrace
