// processes.cpp - sentences about processes: groups made anew, ranks claimed by several processes.
#include <fmt/ranges.h>

#include <map>

#include "facts/exits.hpp"
#include "model/generations.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

// One restart, over all ranks.
struct Round {
  std::vector<int> ranks;          // evidence
  const Restart* first = nullptr;  // with the first exception; nullptr: unknown
  int who = -1;                    // evidence of `first`
  Time ended = 0, went_on = 0;     // the first end; when the last rank issued again
  bool all_went_on = true;
};

// The exception is the rank's own, not a consequence of a peer's failure.
bool is_own(const Restart& r) {
  return !r.caught.empty() && !is_consequence(r.caught);
}

std::string text_of(const Facts& f, const Round& round, std::size_t n) {
  const bool all = round.ranks.size() == f.c.ranks.size();
  std::string out = all ? "all ranks" : ranks_words(f.ranks(round.ranks));
  if (round.first != nullptr) {
    out = fmt::format("rank {} caught {}; ", f.rank(round.who), round.first->caught) + out;
  }
  if (!round.all_went_on) {
    return out + " destroyed their groups and make them anew";
  }
  const Time from = round.first != nullptr ? round.first->raised : round.ended;
  return out + fmt::format(" made their groups anew and went on {} later, in try {}",
                           duration_text(seconds_between(from, round.went_on)), n + 2);
}

}  // namespace

std::string twins_text(const Facts& f) {
  static constexpr const char* kCounts[] = {"no", "one", "two", "three", "four"};
  std::vector<std::string> parts;
  for (const auto& [rank, processes] : f.c.twins) {
    std::vector<std::string> places;
    for (const RankEvidence* e : processes) {
      places.push_back(fmt::format("{} on {}", e->id.pid, e->id.host));
    }
    const std::size_t n = processes.size();
    parts.push_back(fmt::format("{} processes say they are rank {} (pids {})",
                                n < std::size(kCounts) ? kCounts[n] : std::to_string(n), rank,
                                fmt::join(places, ", ")));
  }
  if (!f.c.missing.empty()) {
    parts.push_back("no " + ranks_words(f.c.missing));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::vector<std::string> restart_lines(const Facts& f) {
  std::vector<std::vector<Restart>> by_rank(f.c.ranks.size());
  std::map<std::size_t, Round> rounds;
  for (const int i : f.c.indices()) {
    by_rank[idx(i)] = restarts_of(f.ev(i));
    for (std::size_t n = 0; n < by_rank[idx(i)].size(); ++n) {
      const Restart& r = by_rank[idx(i)][n];
      Round& round = rounds[n];
      round.ranks.push_back(i);
      round.ended = round.ended == 0 ? r.destroyed : std::min(round.ended, r.destroyed);
      round.went_on = std::max(round.went_on, r.went_on);
      round.all_went_on = round.all_went_on && r.went_on != 0;
      if (is_own(r) && (round.first == nullptr || r.raised < round.first->raised)) {
        round.first = &r;
        round.who = i;
      }
    }
  }
  std::vector<std::string> out;
  for (const auto& [n, round] : rounds) {
    out.push_back(text_of(f, round, n));
  }
  return out;
}

}  // namespace frtrace
