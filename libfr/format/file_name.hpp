// file_name.hpp - the grammar of file names:
// <job>.a<attempt>.r<rank>[.p<pid>].<number>[.later|.dead].fr|ring. The recorder writes it, peers and
// tools read it. Async-signal-safe.
//
// The first dump of a rank in an incident has the plain name and is never replaced. Later files of
// the rank itself (an exception, a signal, the hang went on) are `later`; those that peers write
// after its death are `dead`.
#pragma once

#include <cstddef>

#include "format/layout.hpp"

namespace fr {

// After the name of a live ring: where its process answers `frtrace stacks`. No dump's name.
inline constexpr char kStacksEnding[] = ".stacks";

// Room for every name that format_name writes: a job of at most 127 bytes and four numbers.
inline constexpr std::size_t kNameBytes = 256;

// Incidents of a directory are believed up to here: one a second for 30 years. Whoever may write there
// could otherwise have a job count on from any number.
inline constexpr u64 kMostIncident = 1'000'000'000;

struct NameParts {
  char job[128];
  i32 attempt;
  i32 rank;    // -1: "rx"
  i32 pid;     // of a dump, if another process has the rank, too; 0: not in the name
  u64 number;  // incident of a dump, pid of a live ring
  bool is_fr;  // ends in .fr, else .ring
  enum class Beside : u8 { kNone, kLater, kDead } beside;
};
// False when the name follows another grammar.
bool parse_name(const char* name, NameParts& parts) noexcept;
void format_name(char* out, std::size_t bytes, const char* job, i32 attempt, i32 rank, u64 number,
                 const char* ending, i32 pid = 0) noexcept;
// The file name for data of the rank that `header` describes.
void format_dump_name(char* out, std::size_t bytes, const Header& header, u64 incident,
                      NameParts::Beside beside, bool is_fr) noexcept;
// The ending that follows the number in a name of these parts: "fr", "ring", "later.fr", ...
const char* name_ending(NameParts::Beside beside, bool is_fr) noexcept;

}  // namespace fr
