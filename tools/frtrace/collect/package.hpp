// package.hpp - what a node sends: a few words about itself and some files, as one zstd frame around a
// msgpack map, on stdout. A launcher that puts the node's name before each line gets it in base64.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace frtrace::collect {

struct Package {
  std::string host, boot_id;
  int status = 0;          // of the command, as its exit status
  std::string said;        // one line about what was done, or why not
  std::vector<int> ranks;  // that were seen there
  std::vector<std::pair<std::string, std::string>> files;  // name, content
};

std::string pack(const Package&);
// Believes nothing: false where it is not a whole package. Names come out as plain file names.
bool unpack(std::string_view bytes, Package&);

// A name that is safe as one of a file.
std::string file_name(std::string_view);

std::string to_base64_lines(std::string_view bytes);
// Of text without line ends; what is no base64 ends it.
std::string from_base64(std::string_view text);

}  // namespace frtrace::collect
