// Cases of widely drawn jobs: chooses the fault, the job and the evidence that is kept.
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "alter.hpp"
#include "wide.hpp"

namespace hangsim {

namespace {

// Hash per rank of the outcome of a run: operations and whether they ended, without times.
std::vector<std::uint64_t> outcome(const Run& run) {
  std::vector<std::uint64_t> out;
  for (const RankRun& r : run.ranks) {
    std::uint64_t& mine = out.emplace_back(r.ended ? 1 : 0);
    for (const Issued& i : r.issued) {
      const Op& op = *i.op;
      mine = scramble(mine, scramble(op.name) ^ static_cast<std::uint64_t>(numel(op.in)));
      mine = scramble(mine, static_cast<std::uint64_t>(op.group * 4096 + op.peer));
      mine = scramble(mine, i.done != kNever ? 1 : 2);
    }
  }
  return out;
}

// A fault is visible if the run without it has another outcome.
std::vector<bool> visible(const Case& c, const Job& whole, const std::vector<Guilt>& guilts,
                          std::uint64_t seed) {
  std::vector<bool> out(guilts.size(), true);
  if (guilts.size() < 2) {
    return out;
  }
  const auto with = outcome(c.run);
  for (std::size_t i = 0; i < guilts.size(); ++i) {
    Job job = c.job;
    const auto r = static_cast<std::size_t>(guilts[i].rank);
    job.programs[r] = whole.programs[r];
    std::vector<std::uint64_t> without = outcome(simulate(job, seed));
    // An operation left out or added on a rank shows in the outcome of the other ranks.
    if (is_of_order(guilts[i].how)) {
      without[r] = with[r];
    }
    out[i] = without != with;
  }
  return out;
}

Ns end_of_step(const Run& run, int step) {
  Ns at = 0;
  for (const RankRun& r : run.ranks) {
    for (const Issued& i : r.issued) {
      at = i.op->step <= step ? std::max(at, i.done) : at;
    }
  }
  return at;
}

// Chooses the times of the dumps. Clocks of nodes may differ much only after a hang: in a running
// job only the times tell a hang from a short wait.
void choose_times(Case& c, Random& random) {
  const bool hangs = !c.run.finished;
  const bool ended = c.cls == "finished";
  const int off = random.below(100);
  const Ns skew = off < 40 ? kMs : off < 65 || !(hangs || ended) ? kSecond / 2 : 8 * kSecond;
  std::vector<Ns> node_clock;
  for (int n = 0; n <= c.job.node(c.job.world - 1); ++n) {
    node_clock.push_back(skew / 1000 * (random.below(2001) - 1000));
  }
  Ns begin = c.run.last_event, spread = 200 * kMs;
  if (ended) {
    begin += 4 * kSecond;
    spread = 3 * kSecond;
  } else if (!hangs) {
    const Ns first = c.cls == "went_on" ? end_of_step(c.run, c.fault_step)
                                        : c.run.last_event * random.between(25, 55) / 100;
    spread = random.chance(40) ? std::min(2 * kSecond, (c.run.last_event - first) / 3) : spread;
    begin = first + (c.run.last_event - first) / 100 * random.below(50);
  } else if (random.chance(40)) {
    spread = 15 * kSecond;
  }
  for (Evidence* e : {&c.fr, &c.torch}) {
    const Ns later = hangs ? (e == &c.torch ? 600 : 60) * kSecond : 0;
    for (int r = 0; r < c.job.world; ++r) {
      e->at.push_back(begin + later + spread / 1000 * random.below(1000));
      e->clock.push_back(node_clock[static_cast<std::size_t>(c.job.node(r))]);
    }
  }
}

void choose_torch(Evidence& e, const Case& c, Random& random) {
  static const std::vector<std::string> kVersions = {"2.3", "2.4", "2.5",  "2.6", "2.7",
                                                     "2.8", "2.9", "2.10", "2.11"};
  const int how = random.below(100);
  if (how < 35) {
    e.version = random.pick(kVersions);
  } else if (how < 50) {
    // Some nodes have another release of PyTorch.
    const std::string one = random.pick(kVersions), two = random.pick(kVersions);
    for (int r = 0; r < c.job.world; ++r) {
      e.versions.push_back(c.job.node(r) % 2 == 0 ? one : two);
    }
  }
  e.frames = !random.chance(15);
  e.only_active = random.chance(14);
  e.json = random.chance(7);
  e.copied = !c.run.finished && random.chance(50);
  static const std::vector<std::string> kPrefixes = {"nccl_trace_rank_", "comm_lib_trace_rank_",
                                                     "trace_", "job7_dump_", "fr_rank"};
  e.prefix = random.pick(kPrefixes);
}

void choose_evidence(Case& c, const std::vector<Guilt>& guilts, Random& random) {
  choose_times(c, random);
  const bool timing = random.chance(60);
  for (Evidence* e : {&c.fr, &c.torch}) {
    e->timing = timing;
    if (random.chance(40)) {
      e->ring = random.chance(50) ? random.between(20, 80) : random.between(80, 400);
    }
  }
  choose_torch(c.torch, c, random);
  c.fr.frames = !random.chance(15);
  if (c.cls == "cut_file") {
    c.fr.truncated = c.torch.truncated = {guilts[0].rank};
    return;
  }
  if (c.run.finished) {
    return;
  }
  if (random.chance(5)) {
    Evidence& e = random.chance(50) ? c.torch : c.fr;
    const int r = random.below(c.job.world);
    if (!c.run.ranks[static_cast<std::size_t>(r)].ended) {
      e.stale = r;
      e.at[static_cast<std::size_t>(r)] = c.run.last_event - random.between(1, 6) * kSecond / 2;
    }
  }
  for (int n = random.chance(12) ? random.between(1, 2) : 0; n > 0; --n) {
    Evidence& e = random.chance(50) ? c.torch : c.fr;
    (random.chance(50) ? e.lost : e.truncated).push_back(random.below(c.job.world));
  }
}

void list_faulty(Truth& t, const std::vector<Guilt>& guilts) {
  for (const Guilt& g : guilts) {
    t.faulty.push_back(g.rank);
  }
  for (const Answer& a : t.also) {
    t.faulty.insert(t.faulty.end(), a.ranks.begin(), a.ranks.end());
  }
  std::sort(t.faulty.begin(), t.faulty.end());
  t.faulty.erase(std::unique(t.faulty.begin(), t.faulty.end()), t.faulty.end());
}

Job draw_job(const std::string& kind, int world, Random& random) {
  const std::vector<std::string> old = job_kinds();
  if (std::find(old.begin(), old.end(), kind) == old.end()) {
    return make_wide_job(kind, world, random);
  }
  Job job = make_job(kind, world, random);
  for (Program& p : job.programs) {
    Op& rest = p.emplace_back(plain(What::kWork));  // as in the others
    rest.step = job.steps + 1;
    rest.host = 20 * kSecond;
  }
  return job;
}

std::vector<std::string> kinds_in(Half half) {
  std::vector<std::string> out = wide_job_kinds(half);
  if (half != Half::kHeldOut) {
    const std::vector<std::string> old = job_kinds();
    out.insert(out.end(), old.begin(), old.end());
  }
  return out;
}

// False: the fault is not possible in this job, or does no harm.
bool try_case(Case& c, const WideRecipe& recipe, const std::string& kind, int world, Random& random,
              int faults, int ring) {
  try {
    c.job = draw_job(kind, world, random);
  } catch (const std::invalid_argument&) {
    return false;
  }
  const Job whole = c.job;
  Context context{c.job, random, random.between(3, c.job.steps - 1)};
  c.fault_step = context.step;
  WideFault fault;
  fault.guilts = recipe.plant(context);
  const bool runs = recipe.outcome == Outcome::kRuns;
  if (fault.guilts.empty() && (!runs || c.cls == "went_on")) {
    return false;
  }
  const std::uint64_t seed = scramble(c.seed, 77);
  c.run = simulate(c.job, seed);
  if (c.run.finished != runs) {
    return false;
  }
  while (static_cast<int>(fault.guilts.size()) > std::max(1, faults)) {
    const auto r = static_cast<std::size_t>(fault.guilts.back().rank);
    c.job.programs[r] = whole.programs[r];
    fault.guilts.pop_back();
    c.run = simulate(c.job, seed);
  }
  fault.visible = visible(c, whole, fault.guilts, seed);
  for (const Guilt& g : fault.guilts) {
    c.fault += fmt::format("{}rank {}: {}", c.fault.empty() ? "" : "; ", g.rank, g.text);
  }
  choose_evidence(c, fault.guilts, random);
  cut_rings(c, ring);  // the truth depends on the records that are kept
  c.fr_truth = runs ? running_truth(c, fault) : wide_truth(c, fault, false);
  c.torch_truth = runs ? running_truth(c, fault) : wide_truth(c, fault, true);
  list_faulty(c.fr_truth, fault.guilts);
  list_faulty(c.torch_truth, fault.guilts);
  return true;
}

// Adds an earlier attempt, two hours before: a job of the same kind, maybe of another size.
void add_earlier(Case& c) {
  static constexpr const char* kClasses[] = {"stuck", "gone", "other_size"};
  Random random(scramble(c.seed, 31));
  auto before = std::make_shared<Case>(
      make_wide_case(c.seed, kClasses[random.below(3)], c.job.kind, 0, Half::kAll));
  before->name = c.name;
  before->torch.prefix = c.torch.prefix;
  before->torch.json = c.torch.json;
  before->torch.copied = c.torch.copied;
  for (Evidence* e : {&before->fr, &before->torch}) {
    for (Ns& clock : e->clock) {
      clock -= 7200 * kSecond;
    }
  }
  c.attempt = 1;
  c.earlier = std::move(before);
}

}  // namespace

Case make_wide_case(std::uint64_t seed, std::string_view cls, std::string_view kind, int world,
                    Half half, int faults, int ring) {
  const auto& all = wide_recipes();
  Random pick(scramble(seed, 4242));
  const WideRecipe* recipe =
      &all[static_cast<std::size_t>(pick.below(static_cast<int>(all.size())))];
  if (!cls.empty()) {
    const auto it = std::find_if(all.begin(), all.end(),
                                 [&](const WideRecipe& r) { return r.cls.name == cls; });
    if (it == all.end()) {
      throw std::invalid_argument(fmt::format("no such class: {}", cls));
    }
    recipe = &*it;
  }
  const std::vector<std::string> kinds = kinds_in(half);
  for (std::uint64_t attempt = 0; attempt < 500; ++attempt) {
    Random random(scramble(seed, scramble(scramble(recipe->cls.name), 9000 + attempt)));
    Case c;
    c.cls = recipe->cls.name;
    c.seed = seed;
    c.wide = true;
    const std::string job_kind = kind.empty() ? random.pick(kinds) : std::string(kind);
    if (!try_case(c, *recipe, job_kind, world, random, faults, ring)) {
      continue;
    }
    c.held_out = is_held_out(c.job.kind);
    c.name = fmt::format("{}-{}-{}", c.cls, c.job.kind, seed);
    if (c.cls == "rejoined") {
      add_earlier(c);
    }
    return c;
  }
  throw std::runtime_error(
      fmt::format("no such fault possible: {} in {} of {} ranks", recipe->cls.name, kind, world));
}

const std::vector<Class>& classes_wide() {
  static const std::vector<Class> kClasses = [] {
    std::vector<Class> out;
    for (const WideRecipe& r : wide_recipes()) {
      out.push_back(r.cls);
    }
    return out;
  }();
  return kClasses;
}

}  // namespace hangsim
