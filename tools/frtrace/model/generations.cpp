#include "model/generations.hpp"

#include <algorithm>

#include "model/operation.hpp"

namespace frtrace {

namespace {

constexpr std::string_view kCaughtNote = "caught ";  // python/fr/caught.py

// When the process destroyed its default groups, in order of time.
std::vector<Time> ends_of(const RankEvidence& e) {
  std::vector<Time> out;
  for (const GroupEvidence& g : e.groups) {
    if (g.used && g.destroyed != 0 && e.text(g.desc) == "default_pg") {
      out.push_back(g.destroyed);
    }
  }
  std::ranges::sort(out);
  return out;
}

std::uint32_t generation_at(const std::vector<Time>& ends, Time time) {
  return static_cast<std::uint32_t>(std::ranges::upper_bound(ends, time) - ends.begin());
}

// After `ended`, the process made groups again or is making them.
bool has_begun_again(const RankEvidence& e, Time ended) {
  return std::ranges::any_of(e.records, [&](const Record& r) {
    return r.time > ended && (communicates(r) ||
                              (r.kind == Kind::kLifecycle && e.text(r.op) == "init_process_group"));
  });
}

}  // namespace

void settle_generations(RankEvidence& e) {
  const std::vector<Time> ends = ends_of(e);
  if (ends.empty() || !e.format.empty()) {
    return;
  }
  std::uint32_t newest = static_cast<std::uint32_t>(ends.size());
  newest -= has_begun_again(e, ends.back()) ? 0 : 1;
  for (GroupEvidence& g : e.groups) {
    g.generation = generation_at(ends, g.created);
    if (g.used && g.generation < newest) {
      g.failed = 0;
      g.ended = g.enqueued;
    }
  }
  for (Record& r : e.records) {
    const bool is_over =
        communicates(r) && r.group < e.groups.size() && e.groups[r.group].generation < newest;
    if (is_over && (r.state == State::kFailed || blocks(r))) {
      r.state = State::kReleased;
    }
  }
}

std::vector<Restart> restarts_of(const RankEvidence& e) {
  const std::vector<Time> ends = ends_of(e);
  std::vector<Restart> out;
  for (const Time ended : ends) {
    if (has_begun_again(e, ended)) {
      out.emplace_back().destroyed = ended;
    }
  }
  for (const Record& r : e.records) {
    const std::string_view note = r.kind == Kind::kNote ? e.text(r.op) : std::string_view();
    const std::size_t g = generation_at(ends, r.time);
    if (g < out.size() && note.starts_with(kCaughtNote)) {
      out[g].caught = note.substr(kCaughtNote.size());
      out[g].raised = r.time;
    }
    if (g < out.size() && r.error != 0 && communicates(r) && out[g].failed.empty()) {
      out[g].failed = e.text(r.error);
    }
    if (g > 0 && g <= out.size() && communicates(r) && out[g - 1].went_on == 0) {
      out[g - 1].went_on = r.time;
    }
  }
  return out;
}

}  // namespace frtrace
