#include "old/diagnosis.hpp"

namespace frtrace {

// Nothing is stuck; does somebody keep the others waiting all the time?
bool Diagnosis::slow() {
  bool by_clocks = false;
  std::vector<Straggler> late = stragglers(c_, slots_, by_clocks);
  const std::size_t most = std::max<std::size_t>(1, c_.ranks.size() / 3);
  // A few milliseconds are what hosts differ by, and more where their clocks are compared.
  const double noticed_s = by_clocks ? 0.02 : 0.005;
  std::erase_if(late, [&](const Straggler& s) { return s.typical_s < noticed_s; });
  if (late.empty() || c_.ranks.size() < 2) {
    return false;
  }
  if (late.size() > most) {
    say("context", fmt::format("{} ranks of {} come later than the others to some operations: "
                               "uneven work, not stragglers",
                               late.size(), c_.ranks.size()));
    return false;
  }
  r_.kind = Verdict::kSlow;
  const Straggler& worst =
      *std::max_element(late.begin(), late.end(),
                        [](const Straggler& a, const Straggler& b) { return a.lost_s < b.lost_s; });
  for (const Straggler& s : late) {
    const RankEvidence& e = ev(s.evidence);
    const Record& r = e.records[s.record];
    const Group& g = group(s.group);
    Blamed& b = blame(s.evidence, "late");
    b.group = g.name;
    b.desc = g.desc;
    b.op = e.text(r.op);
    b.seq = r.seq;
    b.site = user_site(e, r.stack);
    b.stack = stack_lines(s.evidence, r.stack);
    b.evidence.insert(
        b.evidence.begin(),
        fmt::format("late in {} of {} {} of {}{}, by {} each; its own host time before them makes "
                    "the difference, {:.0f} % of {}",
                    s.late, s.of, b.op, g.title(), at_site(s.evidence, r.stack),
                    duration_text(s.typical_s), 100 * s.lost_s / s.span_s,
                    duration_text(s.span_s)));
  }
  std::sort(r_.ranks.begin(), r_.ranks.end());
  const Record& r = ev(worst.evidence).records[worst.record];
  r_.summary = fmt::format(
      "{} {} late again and again: {} of {}{}, by {} in {} of {}; the others wait for it",
      ranks_words(r_.ranks), r_.ranks.size() == 1 ? "comes" : "come", ev(worst.evidence).text(r.op),
      group(worst.group).title(), at_site(worst.evidence, r.stack), duration_text(worst.typical_s),
      worst.late, worst.of);
  if (by_clocks) {
    lower(Confidence::kPossible,
          "the files have no end times: the ranks' clocks are taken to agree");
  } else {
    lower(Confidence::kLikely, "measured over what the rings still hold");
  }
  return true;
}

}  // namespace frtrace
