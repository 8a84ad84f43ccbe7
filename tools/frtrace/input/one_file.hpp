// one_file.hpp - one file to evidence. Only for files.cpp, which reads sets of them.
#pragma once

#include <string>

#include "input/files.hpp"

namespace frtrace {

struct Candidate {
  std::string path;
  bool asked_for;  // given as an argument, or lying directly in a given directory
};

// all_records: of a summary, also what is not needed of every rank.
void load_file(const Candidate& file, bool all_records, LoadResult& result);

}  // namespace frtrace
