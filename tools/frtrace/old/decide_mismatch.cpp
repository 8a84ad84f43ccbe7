#include <fmt/ranges.h>

#include "old/diagnosis.hpp"

namespace frtrace {

int Diagnosis::class_by_precedent(const Divergence& d) {
  const Group& g = group(d.group);
  std::vector<int> votes(d.classes.size(), 0);
  for (std::size_t k = 0; k < d.classes.size(); ++k) {
    for (const int m : d.classes[k]) {
      const int i = g.evidence[at(m)];
      const Record* r = slots_[at(d.group)].at(c_, g, at(m), d.seq);
      const std::vector<Step>& steps = history_.of(i);
      const std::size_t index = static_cast<std::size_t>(r - ev(i).records.data());
      const std::size_t pos = step_of(steps, index);
      const auto usual = usual_next(steps, pos);
      if (usual) {
        votes[k] += steps[*usual].key == steps[pos].key ? 1 : -1;
      }
      // Sister groups: same description and size, other members, same slot.
      const std::uint64_t own = signature_hash(ev(i), *r);
      for (std::size_t s = 0; s < c_.groups.size(); ++s) {
        const Group& sister = c_.groups[s];
        if (static_cast<int>(s) == d.group || sister.ranks.size() != g.ranks.size() ||
            sister.desc != g.desc || sister.ranks == g.ranks) {
          continue;
        }
        for (std::size_t n = 0; n < sister.ranks.size(); ++n) {
          if (const Record* other = slots_[s].at(c_, sister, n, d.seq);
              other != nullptr && signature_hash(ev(sister.evidence[n]), *other) == own) {
            ++votes[k];
          }
        }
      }
    }
  }
  const auto best = std::max_element(votes.begin(), votes.end());
  return *best > 0 && std::count(votes.begin(), votes.end(), *best) == 1
             ? static_cast<int>(best - votes.begin())
             : -1;
}

bool Diagnosis::skipped(const Divergence& d, int member, int reference) {
  const Group& g = group(d.group);
  const Slots& s = slots_[at(d.group)];
  const auto key = [&](int m, std::uint64_t seq) -> std::optional<std::uint64_t> {
    const Record* r = s.at(c_, g, at(m), seq);
    if (r == nullptr) {
      return std::nullopt;
    }
    const int i = g.evidence[at(m)];
    const std::vector<Step>& steps = history_.of(i);
    const std::size_t index = static_cast<std::size_t>(r - ev(i).records.data());
    return steps[step_of(steps, index)].key;
  };
  const auto own = key(member, d.seq), others = key(reference, d.seq);
  if (!own || !others || *own == *others) {
    return false;
  }
  constexpr std::uint64_t kLookahead = 4;
  for (std::uint64_t ahead = 1; ahead <= kLookahead; ++ahead) {
    if (key(member, d.seq + ahead) == others) {
      return false;  // it came after all, in another order
    }
  }
  for (std::uint64_t ahead = 1; ahead <= kLookahead; ++ahead) {
    if (key(reference, d.seq + ahead) == own) {
      return true;
    }
  }
  // What usually follows: the last earlier slot with what the others have now.
  const std::uint64_t oldest = d.seq > 4096 ? d.seq - 4096 : 1;
  for (std::uint64_t j = d.seq - 1; j >= oldest && j > 0; --j) {
    const auto earlier = key(reference, j);
    if (!earlier) {
      break;
    }
    if (*earlier == *others) {
      for (std::uint64_t ahead = 1; ahead <= kLookahead && j + ahead < d.seq; ++ahead) {
        if (key(reference, j + ahead) == own) {
          return true;
        }
      }
      return false;
    }
  }
  return false;
}

bool Diagnosis::mismatch(Divergence d) {
  const Group& g = group(d.group);
  int right = 0;
  bool open = false;
  if (d.tie) {
    right = class_by_precedent(d);
    if (right < 0) {
      open = true;
      right = 0;
    } else {
      lower(Confidence::kLikely, "as many on either side, earlier iterations decide");
    }
  }
  if (d.incomplete_vote) {
    lower(Confidence::kLikely, "not all members' records of that slot are at hand");
    if (open && !c_.missing.empty()) {
      // Whoever is not heard could turn the vote.
      r_.kind = Verdict::kUndecided;
      r_.summary = fmt::format(
          "members of {} differ at #{} ({}); evidence of {} is lacking to say who is wrong",
          g.title(), d.seq, fmt::join(d.words, "; "), ranks_words(c_.missing));
      return true;
    }
  }
  std::vector<int> guilty;  // members
  for (std::size_t k = 0; k < d.classes.size(); ++k) {
    if (open || static_cast<int>(k) != right) {
      guilty.insert(guilty.end(), d.classes[k].begin(), d.classes[k].end());
    }
  }
  std::sort(guilty.begin(), guilty.end());
  const int reference = d.classes[at(right)].front();
  const int ref_evidence = g.evidence[at(reference)];
  const Record& due = *slots_[at(d.group)].at(c_, g, at(reference), d.seq);
  const std::string due_text = operation_text(ev(ref_evidence), due);
  const std::string due_site = at_site(ref_evidence, due.stack);
  const std::string due_op(ev(ref_evidence).text(due.op));
  const bool all_skipped = !open && std::all_of(guilty.begin(), guilty.end(),
                                                [&](int m) { return skipped(d, m, reference); });
  r_.kind = all_skipped ? Verdict::kMissing : Verdict::kMismatch;
  std::set<int> blamed;
  std::string own_words;
  for (const int m : guilty) {
    const int i = g.evidence[at(m)];
    blamed.insert(i);
    const Record& own = *slots_[at(d.group)].at(c_, g, at(m), d.seq);
    if (own_words.empty()) {
      own_words = operation_text(ev(i), own) + at_site(i, own.stack);
    }
    Blamed& b = blame(i, all_skipped ? "never_issued" : open ? "differs" : "minority");
    b.group = g.name;
    b.desc = g.desc;
    b.op = all_skipped ? due_op : std::string(ev(i).text(own.op));
    b.seq = d.seq;
    b.site = user_site(ev(i), own.stack);
    b.stack = stack_lines(i, own.stack);
    b.evidence.insert(b.evidence.begin(),
                      fmt::format("issued {}{} as #{}", operation_text(ev(i), own),
                                  at_site(i, own.stack), d.seq));
  }
  std::vector<Rank> others;
  for (std::size_t k = 0; k < d.classes.size(); ++k) {
    if (!open && static_cast<int>(k) == right) {
      for (const int m : d.classes[k]) {
        others.push_back(g.ranks[at(m)]);
      }
    }
  }
  std::sort(r_.ranks.begin(), r_.ranks.end());
  if (all_skipped) {
    r_.summary = fmt::format("{} never issued {}{}; what {} issued there is what comes after it",
                             ranks_words(r_.ranks), slot_text(due_op, d.seq, g), due_site,
                             r_.ranks.size() == 1 ? "it" : "they");
    say("why", fmt::format("as #{} {} issued {}, {} issued {}{}: one operation was left out, all "
                           "later ones are shifted",
                           d.seq, ranks_words(r_.ranks), own_words, ranks_words(others), due_text,
                           due_site));
  } else if (open) {
    r_.summary = fmt::format("{} differ at {}: {}", ranks_words(r_.ranks),
                             slot_text(due_op, d.seq, g), fmt::join(d.words, "; "));
    lower(Confidence::kPossible, "as many on either side, and nothing tells which is right");
  } else {
    if (r_.blamed.front().op != due_op) {
      r_.summary =
          fmt::format("{} issued {} where {} issued {}", ranks_words(r_.ranks),
                      slot_text(r_.blamed.front().op, d.seq, g), ranks_words(others), due_op);
    } else {
      r_.summary = fmt::format("{} issued {} with {}", ranks_words(r_.ranks),
                               slot_text(due_op, d.seq, g), fmt::join(d.words, "; "));
      if (!others.empty()) {
        r_.summary +=
            fmt::format("; {} {}", ranks_words(others), others.size() == 1 ? "differs" : "agree");
      }
    }
    say("why", fmt::format("{} issued {}{}; {} issued {}", ranks_words(others), due_text, due_site,
                           ranks_words(r_.ranks), own_words));
    // `if rank == 0: dist.barrier()` and its like
    const bool few = r_.blamed.front().op == "barrier";
    if (few != (due_op == "barrier") && !others.empty()) {
      say("hint",
          fmt::format("{} called barrier, {} did not: a barrier needs every rank of its "
                      "group, is it called under a condition?",
                      ranks_words(few ? r_.ranks : others), ranks_words(few ? others : r_.ranks)));
    }
  }
  if (d.past) {
    say("context", "all members completed it nevertheless: their results are wrong, not stuck");
    lower(Confidence::kLikely, "the operation completed");
  }
  int first = -1;
  for (std::size_t k = 0; k < graph_.meetings.size(); ++k) {
    if (graph_.meetings[k].group == d.group && graph_.meetings[k].seq == d.seq) {
      first = static_cast<int>(k);
    }
  }
  add_all_waiting(first, blamed);
  return true;
}

}  // namespace frtrace
