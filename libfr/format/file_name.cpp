// file_name.cpp - reads and writes the names of dumps and rings.
#include "format/file_name.hpp"

#include <cstring>

#include "format/text.hpp"

namespace fr {

bool parse_name(const char* name, NameParts& parts) noexcept {
  // job has no dots (options.cpp sees to it), so the parts are counted from the left
  const auto number = [](const char*& at, u64& value) {
    const char* first = at;
    value = 0;
    while (*at >= '0' && *at <= '9' && at - first < 19) {
      value = value * 10 + static_cast<u64>(*at++ - '0');
    }
    return at != first;
  };
  const char* dot = std::strchr(name, '.');
  if (dot == nullptr || dot == name || static_cast<std::size_t>(dot - name) >= sizeof parts.job) {
    return false;
  }
  std::memcpy(parts.job, name, static_cast<std::size_t>(dot - name));
  parts.job[dot - name] = '\0';
  u64 value = 0;
  const char* at = dot + 1;
  if (*at++ != 'a' || !number(at, value)) {
    return false;
  }
  parts.attempt = static_cast<i32>(value);
  if (std::strncmp(at, ".r", 2) != 0) {
    return false;
  }
  at += 2;
  if (*at == 'x') {
    parts.rank = -1;
    ++at;
  } else if (number(at, value)) {
    parts.rank = static_cast<i32>(value);
  } else {
    return false;
  }
  parts.pid = 0;
  if (std::strncmp(at, ".p", 2) == 0) {
    at += 2;
    if (!number(at, value)) {
      return false;
    }
    parts.pid = static_cast<i32>(value);
  }
  if (*at++ != '.' || !number(at, parts.number)) {
    return false;
  }
  for (const auto beside :
       {NameParts::Beside::kNone, NameParts::Beside::kLater, NameParts::Beside::kDead}) {
    for (const bool is_fr : {true, false}) {
      if (*at == '.' && std::strcmp(at + 1, name_ending(beside, is_fr)) == 0) {
        parts.beside = beside;
        parts.is_fr = is_fr;
        return true;
      }
    }
  }
  return false;
}

const char* name_ending(NameParts::Beside beside, bool is_fr) noexcept {
  switch (beside) {
    case NameParts::Beside::kNone:
      break;
    case NameParts::Beside::kLater:
      return is_fr ? "later.fr" : "later.ring";
    case NameParts::Beside::kDead:
      return is_fr ? "dead.fr" : "dead.ring";
  }
  return is_fr ? "fr" : "ring";
}

void format_name(char* out, std::size_t bytes, const char* job, i32 attempt, i32 rank, u64 number,
                 const char* ending, i32 pid) noexcept {
  if (rank >= 0 && pid != 0) {
    format(out, bytes, "%s.a%d.r%d.p%d.%l.%s", job, attempt, rank, pid, number, ending);
  } else if (rank >= 0) {
    format(out, bytes, "%s.a%d.r%d.%l.%s", job, attempt, rank, number, ending);
  } else {
    format(out, bytes, "%s.a%d.rx.%l.%s", job, attempt, number, ending);
  }
}

void format_dump_name(char* out, std::size_t bytes, const Header& header, u64 incident,
                      NameParts::Beside beside, bool is_fr) noexcept {
  char job[sizeof header.job];  // another process wrote the header: its text may lack the end
  std::memcpy(job, header.job, sizeof job);
  job[sizeof job - 1] = '\0';
  format_name(out, bytes, job, header.attempt, header.rank.load(), incident,
              name_ending(beside, is_fr), header.shares_rank.load() != 0 ? header.pid : 0);
}

}  // namespace fr
