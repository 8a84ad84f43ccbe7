// What the recorder itself noticed while the job ran, and kept as notes of its own.
#include <algorithm>
#include <vector>

#include "words/words.hpp"

namespace frtrace {

void add_told(const Facts& f, Report& r) {
  constexpr std::string_view kOwn = "fr: ";  // fr_note of users may begin so, too: it is shown
  constexpr std::size_t kMost = 16;
  std::vector<std::pair<Time, std::string_view>> told;
  const auto add = [&](Time time, std::string_view text) {
    const bool is_own = text.starts_with(kOwn);
    if (is_own &&
        std::none_of(told.begin(), told.end(), [&](const auto& x) { return x.second == text; })) {
      told.emplace_back(time, text);
    }
  };
  for (const RankEvidence* e : f.c.ranks) {
    for (const Record& record : e->records) {
      if (record.kind == Kind::kNote) {
        add(record.time, e->text(record.op));
      }
    }
    for (const ThreadNotes& n : e->notes) {  // what the ring has overwritten
      add(n.note_time, n.note);
    }
  }
  std::stable_sort(told.begin(), told.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  constexpr std::string_view kOpen = "nothing tells which is right: ";  // then; the verdict does
  for (std::size_t k = 0; k < told.size() && k < kMost; ++k) {
    std::string text(told[k].second.substr(kOwn.size()));
    const std::size_t open = r.ranks.empty() ? std::string::npos : text.find(kOpen);
    say(r, "told", open == std::string::npos ? text : text.erase(open, kOpen.size()));
  }
}

}  // namespace frtrace
