// package.hpp - the answer of a node: a few words about itself and some files, as one zstd frame
// around a msgpack map, on stdout; in base64 for a launcher that puts the node's name before each
// line.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace frtrace::collect {

struct Package {
  std::string host, boot_id;
  int status = 0;          // exit status of the command
  std::string said;        // one line about what was done, or why not
  std::vector<int> ranks;  // seen on the node
  std::vector<std::pair<std::string, std::string>> files;  // name, content
};

std::string pack(const Package&);
// Trusts no input: false if it is not a whole package. Names are reduced to plain file names.
bool unpack(std::string_view bytes, Package&);

// Turns a name into a safe file name.
std::string file_name(std::string_view);

std::string to_base64_lines(std::string_view bytes);
// Decodes text without line ends, up to the first character that is not base64.
std::string from_base64(std::string_view text);

}  // namespace frtrace::collect
