// Cases: a job, a fault in it, the evidence that is kept, and the answer that it decides.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <tuple>

#include "alter.hpp"
#include "faults.hpp"

namespace hangsim {

bool Evidence::has_status(const std::string& version) {
  return version == "2.3" || (version.rfind("2.", 0) == 0 && version != "2.0" && version != "2.2");
}

namespace {

// Classes that show the same evidence on the CPU (gloo).
bool gloo_too(const std::string& cls) {
  static constexpr const char* kToo[] = {"missing",   "skip",      "extra",        "branch",
                                         "in_flight", "no_file",   "straggler",    "circle",
                                         "killed",    "lone_send", "missing_recv", "wrong_peer",
                                         "node_lost", "inversion", "exit_early"};
  return std::find(std::begin(kToo), std::end(kToo), cls) != std::end(kToo);
}

// Groups that share a name; only their member lists tell them apart.
bool same_names(const Job& job) {
  return std::any_of(job.groups.begin(), job.groups.end(), [&](const Group& a) {
    return std::any_of(job.groups.begin(), job.groups.end(),
                       [&](const Group& b) { return &a != &b && a.name == b.name; });
  });
}

// ---------------------------------------------------------------- evidence

// Operations of the busiest rank in one step.
int per_step(const Job& job) {
  int most = 0;
  for (const Program& p : job.programs) {
    int n = 0;
    for (const Op& op : p) {
      if (op.step == 2 && op.communicates()) {
        n += op.what == What::kBatch ? static_cast<int>(op.parts.size()) + 1 : 1;
      }
    }
    most = std::max(most, n);
  }
  return most;
}

void choose_evidence(Case& c, Random& random, bool runs) {
  const int step = per_step(c.job);
  const std::size_t world = static_cast<std::size_t>(c.job.world);
  const bool timing = random.chance(60);
  const bool off = random.chance(30);  // clocks of the nodes differ
  std::vector<Ns> node_clock;
  for (int n = 0; n <= c.job.node(c.job.world - 1); ++n) {
    node_clock.push_back(off ? (random.below(401) - 200) * kMs : (random.below(5) - 2) * 100 * kUs);
  }
  Ns last = 0;
  for (const RankRun& r : c.run.ranks) {
    last = std::max(last, r.ended_at);
  }
  const Ns middle = last * random.between(30, 60) / 100;
  const bool apart = random.chance(40);
  // All dumps of a running job are taken before it ends.
  const Ns widest = runs ? std::min(3 * kSecond, last / 4) : 3 * kSecond;
  for (Evidence* e : {&c.fr, &c.torch}) {
    const bool torch = e == &c.torch;
    e->timing = timing || c.job.backend == "gloo";
    if (random.chance(35)) {
      e->ring = std::max(12, step * random.between(12, 40) / 10);
    }
    const Ns stuck = c.run.last_event + (torch ? 600 : 60) * kSecond;
    for (std::size_t r = 0; r < world; ++r) {
      const Ns spread = (apart ? widest : 200 * kMs) / 1000 * random.below(1000);
      e->at.push_back((runs ? middle : stuck) + spread);
      e->clock.push_back(node_clock[static_cast<std::size_t>(c.job.node(static_cast<int>(r)))]);
    }
  }
  if (!runs && random.chance(7)) {
    Evidence& e = random.chance(50) ? c.torch : c.fr;
    const int r = random.below(c.job.world);
    if (!c.run.ranks[static_cast<std::size_t>(r)].ended) {
      e.stale = r;
      e.at[static_cast<std::size_t>(r)] = c.run.last_event - random.between(1, 6) * kSecond / 2;
    }
  }
  if (random.chance(15)) {
    c.torch.frames = false;
  }
  if (random.chance(20)) {
    c.fr.frames = false;
  }
  if (random.chance(30)) {
    static const std::vector<std::string> kVersions = {"2.2", "2.3",  "2.5", "2.7",
                                                       "2.9", "2.11", "2.0", "1.5"};
    c.torch.version = random.pick(kVersions);
  }
  if (c.job.kind == "ddp" && random.chance(6)) {
    c.torch.version = "list";
  }
  c.torch.only_active = random.chance(12);
  c.torch.json = random.chance(6);
  c.torch.copied =
      !runs && random.chance(50);  // the time of a copy cannot tell a hang from a short wait
  static const std::vector<std::string> kPrefixes = {"nccl_trace_rank_", "trace_", "job7_dump_",
                                                     "fr_rank"};
  if (random.chance(25)) {
    c.torch.prefix = random.pick(kPrefixes);
  }
  if (random.chance(8)) {
    (random.chance(50) ? c.torch : c.fr).lost.push_back(random.below(c.job.world));
  }
  if (random.chance(8)) {
    (random.chance(50) ? c.torch : c.fr).truncated.push_back(random.below(c.job.world));
  }
}

// Number of records from that step on, the maximum over the ranks.
int since(const Case& c, int step) {
  std::ptrdiff_t most = 0;
  for (const RankRun& r : c.run.ranks) {
    most = std::max(most, std::count_if(r.issued.begin(), r.issued.end(),
                                        [&](const Issued& i) { return i.op->step >= step; }));
  }
  return static_cast<int>(most);
}

bool has_in_flight(const Case& c, int rank) {
  const RankRun& run = c.run.ranks[static_cast<std::size_t>(rank)];
  return !run.ended && std::any_of(run.issued.begin(), run.issued.end(),
                                   [](const Issued& i) { return i.done == kNever; });
}

// Some other rank has issued an operation that this rank has not issued yet.
bool is_waited_for(const Case& c, int rank) {
  std::map<int, std::uint64_t> collectives;
  std::map<std::tuple<int, int, What>, std::uint64_t> lanes;
  for (const Issued& i : c.run.ranks[static_cast<std::size_t>(rank)].issued) {
    if (i.op->what == What::kCollective) {
      collectives[i.op->group] = i.seq;
    } else if (i.op->is_p2p()) {
      lanes[{i.op->group, i.op->peer, i.op->what}] = i.seq;
    }
  }
  for (int other = 0; other < c.job.world; ++other) {
    for (const Issued& i : c.run.ranks[static_cast<std::size_t>(other)].issued) {
      const Group& g = c.job.groups[static_cast<std::size_t>(i.op->group)];
      const int own = g.position(rank);
      if (other == rank || own < 0 || i.done != kNever) {
        continue;
      }
      if (i.op->what == What::kCollective && collectives[i.op->group] < i.seq) {
        return true;
      }
      const What match = i.op->what == What::kSend ? What::kRecv : What::kSend;
      if (i.op->is_p2p() && i.op->peer == own &&
          lanes[{i.op->group, g.position(other), match}] < i.seq) {
        return true;
      }
    }
  }
  return false;
}

// Which of two faults the evidence shows.
void settle_two_faults(const Case& c, Plan& plan) {
  // The second may never have been reached.
  std::erase_if(plan.ranks, [&](int r) {
    const RankRun& run = c.run.ranks[static_cast<std::size_t>(r)];
    return run.hung_in == nullptr && !run.own_fault;
  });
  // The evidence says little about a rank that no rank waits for yet; a rank with an operation in
  // flight looks like a waiting rank.
  const std::vector<int> both = plan.ranks;
  std::erase_if(plan.ranks, [&](int r) { return !is_waited_for(c, r); });
  if (plan.ranks.size() < both.size()) {
    plan.alternatives = {{"missing", both}, {"exited", both}};
  } else if (both.size() == 2) {
    for (std::size_t i = 0; i < 2; ++i) {
      if (has_in_flight(c, both[i])) {
        plan.alternatives.push_back({"missing", {both[1 - i]}});
        plan.alternatives.push_back({"exited", {both[1 - i]}});
      }
    }
  }
  if (plan.ranks.size() == 1 && c.run.ranks[static_cast<std::size_t>(plan.ranks[0])].own_fault) {
    plan.kind = "exited";
  }
}

// Builds the truth for one kind of evidence of a case.
class TruthBuilder {
 public:
  TruthBuilder(const Case& c, const Plan& plan, const Evidence& e, bool torch)
      : c_(c), plan_(plan), e_(e), torch_(torch), gone_(e.lost) {
    gone_.insert(gone_.end(), e.truncated.begin(), e.truncated.end());
  }

  Truth truth() {
    t_.answer = {plan_.kind, plan_.ranks};
    std::sort(t_.answer.ranks.begin(), t_.answer.ranks.end());
    for (const std::string& kind : plan_.also) {
      allow(kind, t_.answer.ranks);
    }
    t_.also.insert(t_.also.end(), plan_.alternatives.begin(), plan_.alternatives.end());
    if (!gone_.empty()) {
      lost_files();
    }
    if (plan_.kind == "ok" || plan_.kind == "slow") {
      if (torch_ && e_.version == "list" && e_.only_active) {
        undecidable("no numbers to match by");
        allow("undecided");
      }
      return std::move(t_);
    }
    stale();
    history();
    blind_spots();
    if (torch_) {
      torch_numbers();
      torch_gloo();
      torch_fields();
    }
    return std::move(t_);
  }

 private:
  void undecidable(const char* why) {
    t_.decidable = false;
    t_.lacking = t_.lacking.empty() ? why : t_.lacking + "; " + why;
  }
  void allow(const std::string& kind, const std::vector<int>& ranks = {}) {
    t_.also.push_back({kind, ranks});
  }
  bool p2p_job() const { return c_.job.kind == "3d" || c_.job.kind == "ring"; }

  void lost_files() {
    const bool guilty =
        std::all_of(gone_.begin(), gone_.end(), [&](int r) { return holds(t_.answer.ranks, r); });
    if (guilty && t_.answer.ranks.size() == gone_.size()) {
      allow("exited", t_.answer.ranks);
      allow("missing", t_.answer.ranks);
      if (plan_.kind != "missing" && plan_.kind != "exited") {
        undecidable("file of the guilty rank lost");
      }
    } else {
      undecidable("file of a rank lost");
    }
    allow("undecided");
  }

  void stale() {
    if (e_.stale < 0) {
      return;
    }
    undecidable("one dump is older than the hang");
    allow("undecided");
    if (torch_ && e_.copied) {
      // Nothing shows the age of the stale dump.
      allow("missing", {e_.stale});
    }
  }

  void history() {
    // If the fault itself leaves no trace, all waits lead to a rank without a file.
    const bool blind = (plan_.needs_timing && !e_.timing) || (torch_ && plan_.torch_blind) ||
                       plan_.kind == "transport" || plan_.between_two;
    if (blind && !gone_.empty()) {
      allow("exited", gone_);
    }
    if (e_.ring < since(c_, c_.fault_step) &&
        (p2p_job() || (plan_.kind != "missing" && plan_.kind != "exited"))) {
      undecidable("what happened is overwritten");
    }
    const bool deep = e_.ring >= since(c_, c_.fault_step - 1) && !(torch_ && e_.only_active);
    const bool pair = plan_.group.size() == 2;
    if ((plan_.needs_history || pair) && !deep) {
      undecidable("earlier iterations not kept");
      if (pair) {
        allow(plan_.kind, plan_.group);  // a tie
      }
    }
  }

  void blind_spots() {
    if (plan_.needs_timing && !e_.timing) {
      undecidable("starts not recorded");
      allow("undecided");
      allow("transport");
    }
    if (torch_ && plan_.torch_blind) {
      undecidable("PyTorch does not record it");
      allow("transport");
      allow("undecided");
    }
  }

  void torch_numbers() {
    if ((e_.version == "1.5" || e_.version == "list") && (p2p_job() || e_.ring < 1000)) {
      undecidable("one number for sends and collectives");
    }
    if (e_.version == "list" && (plan_.kind == "exited" || !gone_.empty())) {
      undecidable("nothing lists who is in a group");
    }
  }

  void torch_gloo() {
    if (c_.job.backend != "gloo") {
      return;
    }
    if (p2p_job()) {
      undecidable("gloo does not record sends and receives");
      allow("undecided");
    }
    const bool absent = std::any_of(c_.run.ranks.begin(), c_.run.ranks.end(), [](const RankRun& r) {
      return (r.ended && r.how != ExitHow::kException) ||
             (r.hung_in != nullptr && r.hung_in->stopped);
    });
    if (absent || !gone_.empty()) {
      undecidable("gloo records neither failures nor who is in a group");
      allow("undecided");
    }
  }

  void torch_fields() {
    if (e_.only_active && c_.job.early_end && plan_.kind == "mismatch") {
      undecidable("the slot is over for the others");
      allow("missing", t_.answer.ranks);
    }
    if ((!e_.frames || e_.json) && plan_.needs_history &&
        plan_.text.find("all_to_all") != std::string::npos) {
      undecidable("one uneven all_to_all looks like the other");
    }
    if (c_.cls == "dtype" && (e_.version[0] != '2' || e_.version == "2.0")) {
      undecidable("dtypes not recorded");
      allow("undecided");
      allow("transport");
    }
    if (e_.only_active && !e_.has_status()) {
      undecidable("neither completed operations nor frontiers");
    }
  }

  const Case& c_;
  const Plan& plan_;
  const Evidence& e_;
  const bool torch_;
  std::vector<int> gone_;  // ranks without a readable file
  Truth t_;
};

std::vector<Class> classes_of(const std::vector<Recipe>& all) {
  std::vector<Class> out;
  for (const Recipe& r : all) {
    out.push_back(r.cls);
  }
  return out;
}

const Recipe* find(const std::vector<Recipe>& all, std::string_view cls) {
  const auto it =
      std::find_if(all.begin(), all.end(), [&](const Recipe& r) { return r.cls.name == cls; });
  return it == all.end() ? nullptr : &*it;
}

void list_faulty(Truth& t) {
  t.faulty = t.answer.ranks;
  for (const Answer& a : t.also) {
    t.faulty.insert(t.faulty.end(), a.ranks.begin(), a.ranks.end());
  }
  std::sort(t.faulty.begin(), t.faulty.end());
  t.faulty.erase(std::unique(t.faulty.begin(), t.faulty.end()), t.faulty.end());
}

Case make_below(const Recipe& recipe, std::uint64_t seed, std::string_view kind, int world) {
  for (std::uint64_t attempt = 0; attempt < 400; ++attempt) {
    Random random(scramble(seed, scramble(scramble(recipe.cls.name), attempt)));
    Case c;
    c.cls = recipe.cls.name;
    c.seed = seed;
    c.below = true;
    static constexpr int kWorlds[] = {2, 3, 4, 4, 6, 8, 8, 12, 16, 16, 24, 32, 64};
    const std::string job_kind = kind.empty() ? random.pick(recipe.jobs) : std::string(kind);
    try {
      c.job = make_job(job_kind, world > 0 ? world : kWorlds[random.below(13)], random);
    } catch (const std::invalid_argument&) {
      continue;  // this kind of job cannot have so many ranks
    }
    static constexpr int kNodes[] = {1, 1, 2, 4, 8};
    c.job.ranks_per_node = kNodes[random.below(5)];
    c.job.early_end = false;
    c.job.full_in_launch = random.chance(50);
    Fabric& f = c.job.fabric;
    f.all_by_net = random.chance(15);
    f.trees = random.chance(35);
    f.pxn = random.chance(25);
    f.channels = random.between(1, 3);
    f.loops = random.between(1, 5);
    Context context{c.job, random, random.between(3, c.job.steps - 2)};
    c.fault_step = context.step;
    const std::optional<Plan> plan = recipe.plant(context);
    if (!plan) {
      continue;
    }
    c.fault = plan->text;
    c.run = simulate(c.job, scramble(seed, 77));
    if (c.run.finished) {
      continue;
    }
    c.name = fmt::format("{}-{}-{}", c.cls, c.job.kind, seed);
    choose_evidence_below(c, *plan, random);
    c.fr_truth = truth_below(c, *plan);
    list_faulty(c.fr_truth);
    return c;
  }
  throw std::runtime_error(
      fmt::format("no such fault possible: {} in {} of {} ranks", recipe.cls.name, kind, world));
}

}  // namespace

const std::vector<Class>& classes() {
  static const std::vector<Class> kClasses = classes_of(recipes());
  return kClasses;
}

const std::vector<Class>& classes_below() {
  static const std::vector<Class> kClasses = classes_of(recipes_below());
  return kClasses;
}

Case make_case(std::uint64_t seed, std::string_view cls, std::string_view kind, int world,
               bool below, int ring) {
  const auto& all = below ? recipes_below() : recipes();
  Random pick(seed);
  const Recipe* recipe = &all[static_cast<std::size_t>(pick.below(static_cast<int>(all.size())))];
  if (!cls.empty()) {
    recipe = find(recipes(), cls);
    if (const Recipe* other = find(recipes_below(), cls); other != nullptr) {
      return make_below(*other, seed, kind, world);
    }
    if (recipe == nullptr) {
      throw std::invalid_argument(fmt::format("no such class: {}", cls));
    }
  } else if (below) {
    return make_below(*recipe, seed, kind, world);
  }
  for (std::uint64_t attempt = 0; attempt < 200; ++attempt) {
    Random random(scramble(seed, scramble(scramble(recipe->cls.name), attempt)));
    Case c;
    c.cls = recipe->cls.name;
    c.seed = seed;
    std::string job_kind = random.pick(recipe->jobs);
    if (!kind.empty()) {
      job_kind = kind;
    }
    c.job = make_job(job_kind, world, random);
    const bool runs = recipe->outcome == Outcome::kRuns;
    if (!same_names(c.job) && (c.cls == "cascade" || (gloo_too(c.cls) && random.chance(20)))) {
      c.job.backend = "gloo";
    } else if (random.chance(5)) {
      c.job.backend = "xccl";
    }
    if (c.cls == "cascade" && c.job.backend != "gloo") {
      continue;
    }
    Context context{c.job, random, random.between(3, c.job.steps - 2)};
    c.fault_step = context.step;
    const std::optional<Plan> planned = recipe->plant(context);
    if (!planned) {
      continue;
    }
    Plan plan = *planned;
    c.run = simulate(c.job, scramble(seed, 77));
    if (c.run.finished != runs) {
      continue;  // this fault did no harm there
    }
    c.fault = plan.text;
    if (c.cls == "two_faults") {
      settle_two_faults(c, plan);
    }
    c.name = fmt::format("{}-{}-{}", c.cls, c.job.kind, seed);
    choose_evidence(c, random, runs);
    cut_rings(c, ring);  // the truth depends on the records that are kept
    if (c.cls == "no_file") {
      c.fr.lost = c.torch.lost = plan.ranks;
      c.fr.truncated.clear();
      c.torch.truncated.clear();
    }
    if (c.cls == "node_lost") {
      c.fr.lost = plan.ranks;
      c.fr.truncated.clear();
      c.torch.lost.clear();
      c.torch.truncated.clear();
    }
    c.fr_truth = TruthBuilder(c, plan, c.fr, false).truth();
    c.torch_truth = TruthBuilder(c, plan, c.torch, true).truth();
    if (c.cls == "cascade") {
      c.torch_truth.also.push_back({"missing", c.torch_truth.answer.ranks});
    }
    list_faulty(c.fr_truth);
    list_faulty(c.torch_truth);
    return c;
  }
  throw std::runtime_error(
      fmt::format("no such fault possible: {} in {} of {} ranks", recipe->cls.name, kind, world));
}

}  // namespace hangsim
