#include "metrics/node.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "format/codes.hpp"
#include "fr/fr.h"
#include "live/rings.hpp"
#include "model/dtype.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

constexpr std::size_t kMostGroups = 20, kMostOps = 8, kMostPairs = 100, kMostRanks = 32;
constexpr std::size_t kMostOpen = 4096, kMostArrivals = 4096;
constexpr Time kLate = 10'000'000;        // after all other ranks of the node
constexpr Time kMourned = 600 * kSecond;  // a job without a living rank is reported for so long

bool is_operation(std::uint16_t kind) {
  return kind == FR_COLLECTIVE || kind == FR_SEND || kind == FR_RECV;
}

std::string library_text(std::uint32_t version) {
  return version == 0
             ? ""
             : fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

double seconds(Time t) {
  return static_cast<double>(t) * 1e-9;
}

}  // namespace

NodeMetrics::NodeMetrics(std::string shm_dir, std::string node, Time stuck, Judge judge)
    : shm_dir_(std::move(shm_dir)),
      node_(std::move(node)),
      stuck_(stuck),
      judge_(std::move(judge)) {}

// Maps new rings and drops removed ones. A killed process leaves its ring behind; a process of
// another pid namespace cannot be looked up and counts as alive while its watchdog gives signs.
void NodeMetrics::find_rings() {
  std::set<std::pair<int, std::uint64_t>> found;
  const std::string dir = ring_directory(shm_dir_);
  for_each_ring(dir, [&](const std::string& name, std::unique_ptr<MappedRing> mapped) {
    const fr::Header& h = mapped->view().header();
    const std::pair key{h.pid, h.proc_start};
    if (found.insert(key).second && !rings_.contains(key)) {
      Ring ring;
      ring.path = dir + "/" + name;
      ring.job = fixed(h.job, sizeof h.job);
      ring.mapped = std::move(mapped);
      rings_.emplace(key, std::move(ring));
    }
  });
  std::erase_if(rings_, [&](const auto& r) { return !found.contains(r.first); });
}

std::string NodeMetrics::group_label(const fr::View& view, std::uint32_t group) {
  const fr::GroupRow* row = group == 0 ? nullptr : view.group(group);
  if (row == nullptr) {
    return "none";
  }
  std::string label(view.string(row->desc.load()));
  // of a group without a description the name may be a number or a hash
  label =
      label.empty() || label == "undefined" ? std::string(view.string(row->name.load())) : label;
  if (!groups_.contains(label) && groups_.size() >= kMostGroups) {
    return "other";
  }
  groups_.insert(label);
  return label;
}

std::string NodeMetrics::op_label(std::string_view op) {
  std::string label(op);
  if (!ops_.contains(label) && ops_.size() >= kMostOps) {
    return "other";
  }
  ops_.insert(label);
  return label;
}

// Counts the last of a node's ranks if it arrives long after all others. All use one clock: no
// skew.
void NodeMetrics::arrived(Ring& ring, Job& job, const fr::RecordCopy& r, Time time) {
  const fr::View& view = ring.mapped->view();
  const fr::GroupRow* row = view.group(r.payload.group);
  if (r.payload.kind != FR_COLLECTIVE || row == nullptr || time == 0) {
    return;
  }
  const std::string name(view.string(row->name.load()));
  const std::uint32_t instance = row->instance.load();
  const auto members =
      static_cast<std::size_t>(std::count_if(rings_.begin(), rings_.end(), [&](const auto& other) {
        return other.second.job == ring.job && other.second.alive &&
               other.second.fronts.contains({name, instance});
      }));
  if (members < 2) {
    return;
  }
  if (arrivals_.size() >= kMostArrivals) {
    arrivals_.clear();  // incomplete: some ranks are gone
  }
  const std::tuple key{ring.job, name, instance, r.payload.seq};
  Arrivals& a = arrivals_[key];
  ++a.n;
  if (time > a.last) {
    a.before = a.last;
    a.last = time;
    a.gpu = ring.header().local_rank.load();
  } else {
    a.before = std::max(a.before, time);
  }
  if (a.n >= members) {
    job.late[a.gpu] += a.last - a.before >= kLate ? 1 : 0;
    arrivals_.erase(key);
  }
}

// A record that is seen for the first time, or again while it is open. False: it has not ended.
bool NodeMetrics::take(Ring& ring, Job& job, const fr::TickClock& clock, const fr::RecordCopy& r) {
  const auto begin = static_cast<Time>(clock.unix_ns(r.payload.ticks));
  if (!r.has_status || r.state == fr::State::kStarted || r.state == fr::State::kWaiting ||
      r.state == fr::State::kIdle) {
    const bool waits = r.has_status && r.state == fr::State::kWaiting;
    const bool tracked = (r.payload.flags & (FR_UNTRACKED | FR_WAIT_ONLY)) == 0;
    if (waits || tracked) {
      ring.oldest = ring.oldest == 0 ? begin : std::min(ring.oldest, begin);
    }
    return false;
  }
  const auto end = static_cast<Time>(clock.unix_ns(r.ended_ticks));
  ring.progress = std::max(ring.progress, end);
  if (r.state == fr::State::kCompleted && begin != 0 && end >= begin) {
    Histogram& h = job.waits[group_label(ring.mapped->view(), r.payload.group)];
    const double s = seconds(end - begin);
    const auto* bucket = std::lower_bound(kBuckets.begin(), kBuckets.end(), s);
    ++h.counts[static_cast<std::size_t>(bucket - kBuckets.begin())];
    h.sum += s;
  }
  return true;
}

void NodeMetrics::read_records(Ring& ring, Job& job, const fr::TickClock& clock) {
  const fr::View& view = ring.mapped->view();
  const std::uint64_t head = fr::get(view.header().head), n = view.n_slots();
  if (head < ring.next) {
    ring.next = 0;  // damage
  }
  if (head - ring.next > n) {
    job.lost["overwritten_unread"] +=
        ring.next == 0 ? 0 : static_cast<double>(head - ring.next - n);
    ring.next = head - n;
  }
  fr::RecordCopy r;
  ring.oldest = 0;
  const auto slot = [&](std::uint64_t ticket) {
    return static_cast<std::uint32_t>(ticket & (n - 1));
  };
  std::erase_if(ring.open, [&](std::uint64_t ticket) {
    return view.read(slot(ticket), r) != fr::Slot::kWhole || r.ticket != ticket ||
           take(ring, job, clock, r);
  });
  for (; ring.next < head; ++ring.next) {
    if (view.read(slot(ring.next), r) != fr::Slot::kWhole || r.ticket != ring.next) {
      if (head - ring.next < 64 && ring.alive) {
        return;  // being written; the next look reads it
      }
      continue;
    }
    if (!is_operation(r.payload.kind)) {
      continue;
    }
    std::pair key{group_label(view, r.payload.group), op_label(view.string(r.payload.op))};
    if (!job.counts.contains(key) && job.counts.size() >= kMostPairs) {
      key = {"other", "other"};
    }
    Count& count = job.counts[key];
    count.operations += 1;
    count.bytes += static_cast<double>(r.payload.in_numel) *
                   static_cast<double>(bytes_of_dtype(fr::dtype_name(r.payload.in_dtype)));
    const auto time = static_cast<Time>(clock.unix_ns(r.payload.ticks));
    ring.progress = std::max(ring.progress, time);
    arrived(ring, job, r, time);
    if (!take(ring, job, clock, r) && ring.open.size() < kMostOpen) {
      ring.open.insert(r.ticket);
    }
  }
}

void NodeMetrics::read_losses(Ring& ring, Job& job) {
  const fr::Header& h = ring.header();
  const std::pair<const char*, std::uint64_t> now[] = {
      {"dropped", fr::get(h.dropped)},           {"status_lost", fr::get(h.status_lost)},
      {"strings_lost", fr::get(h.strings_lost)}, {"stacks_lost", fr::get(h.stacks_lost)},
      {"groups_lost", fr::get(h.groups_lost)},   {"lanes_lost", fr::get(h.lanes_lost)},
      {"no_group", fr::get(h.no_group)}};
  for (const auto& [kind, value] : now) {
    std::uint64_t& before = ring.lost[kind];
    job.lost[kind] += value > before ? static_cast<double>(value - before) : 0;
    before = std::max(before, value);
  }
}

void NodeMetrics::read_fronts(Ring& ring, const fr::TickClock& clock) {
  const fr::View& view = ring.mapped->view();
  ring.fronts.clear();
  for (std::uint32_t g = 1; g < view.n_groups(); ++g) {
    const fr::GroupRow& row = *view.group(g);
    if (row.destroyed_ticks.load() != 0) {
      continue;
    }
    ring.fronts[{std::string(view.string(row.name.load())), row.instance.load()}] =
        fr::get(row.issued) & fr::kSeqMask;
    for (const auto* ticks : {&row.enqueued_ticks, &row.completed_ticks, &row.p2p_ticks}) {
      ring.progress = std::max(ring.progress, static_cast<Time>(clock.unix_ns(fr::get(*ticks))));
    }
  }
}

void NodeMetrics::read(Ring& ring, Time now) {
  const fr::Header& h = ring.header();
  const auto heartbeat = static_cast<Time>(h.heartbeat_unix_ns.load());
  ring.alive = lives(h, now);
  Job& job = jobs_[ring.job];
  job.last_life = std::max(job.last_life, ring.alive ? now : heartbeat);
  const fr::TickClock clock(h);
  read_fronts(ring, clock);
  read_losses(ring, job);
  const std::uint64_t incidents = fr::get(h.incident);
  ring.incidents = std::max(ring.incidents, incidents);
}

std::string NodeMetrics::look(Time now) {
  find_rings();
  std::map<std::string, std::vector<Ring*>> by_job;
  for (auto& [key, ring] : rings_) {
    read(ring, now);
  }
  for (auto& [key, ring] : rings_) {
    read_records(ring, jobs_[ring.job], fr::TickClock(ring.header()));
    by_job[ring.job].push_back(&ring);
  }
  MetricsText out;
  for (auto& [name, rings] : by_job) {
    // of a job that was started again only the last attempt counts
    int attempt = std::numeric_limits<int>::min();
    for (const Ring* r : rings) {
      attempt = std::max(attempt, r->header().attempt);
    }
    std::erase_if(rings, [&](const Ring* r) { return r->header().attempt != attempt; });
    if (now - jobs_[name].last_life < kMourned) {
      tell(out, name, rings, now);
    }
  }
  std::erase_if(jobs_, [&](const auto& j) {
    return !by_job.contains(j.first) && now - j.second.last_life > kMourned;
  });
  return out.text();
}

void NodeMetrics::tell(MetricsText& out, const std::string& name, const std::vector<Ring*>& rings,
                       Time now) {
  const Labels job{{"fr_job", name}, {"node", node_}};
  const fr::Header& h = rings.front()->header();
  const fr::Device* device = rings.front()->mapped->view().device();
  Labels info = job;
  info.emplace_back("version", fixed(h.recorder, sizeof h.recorder));
  info.emplace_back("nccl", library_text(device != nullptr ? device->library_version.load() : 0));
  info.emplace_back("slurm_job_id", variable_of(h.pid, "SLURM_JOB_ID"));
  out.add("fr_info", "gauge", "The recorder of a job on this node.", info, 1);
  int expected = 0;
  std::size_t alive = 0;
  double incidents = 0;
  for (const Ring* r : rings) {
    expected = std::max(expected, r->header().local_world_size);
    alive += r->alive ? 1 : 0;
    incidents = std::max(incidents, static_cast<double>(r->incidents));
  }
  out.add("fr_ranks", "gauge", "Ranks of the job that live on this node.", job,
          static_cast<double>(alive));
  out.add("fr_ranks_expected", "gauge", "Ranks of the job that were started on this node.", job,
          std::max(expected, static_cast<int>(rings.size())));
  Job& totals = jobs_[name];
  totals.incidents = std::max(totals.incidents, incidents);
  // Ranks wait together, so the maximum over the ranks counts each false alarm once.
  for (const Ring* r : rings) {
    const fr::Header& own = r->header();
    totals.false_warnings =
        std::max(totals.false_warnings, static_cast<double>(fr::get(own.false_warnings)));
    totals.false_dumps =
        std::max(totals.false_dumps, static_cast<double>(fr::get(own.false_dumps)));
  }
  tell_ranks(out, job, rings, now);
  tell_totals(out, job, totals);
  tell_verdict(out, job, rings, now);
}

void NodeMetrics::tell_ranks(MetricsText& out, const Labels& job, const std::vector<Ring*>& rings,
                             Time now) {
  std::map<std::pair<std::string, std::uint32_t>, std::pair<std::uint64_t, std::uint64_t>> fronts;
  std::map<std::pair<std::string, std::uint32_t>, std::string> labels;
  std::size_t n = 0;
  for (const Ring* r : rings) {
    const fr::View& view = r->mapped->view();
    for (std::uint32_t g = 1; g < view.n_groups(); ++g) {
      const fr::GroupRow& row = *view.group(g);
      const std::pair key{std::string(view.string(row.name.load())), row.instance.load()};
      labels[key] = group_label(view, g);
    }
    for (const auto& [group, front] : r->fronts) {
      const auto at = fronts.try_emplace(group, front, front).first;
      at->second = {std::min(at->second.first, front), std::max(at->second.second, front)};
    }
    if (!r->alive || ++n > kMostRanks) {
      continue;
    }
    const fr::Header& h = r->header();
    Labels gpu = job;
    gpu.emplace_back("gpu", fmt::format("{}", h.local_rank.load()));
    if (r->progress != 0) {
      out.add("fr_last_progress_timestamp_seconds", "gauge",
              "Unix time of the last operation that a rank issued or completed.", gpu,
              seconds(r->progress));
    }
    if (const std::int64_t step = h.step.load(); step != std::numeric_limits<std::int64_t>::min()) {
      out.add("fr_step", "gauge", "Iteration that the program named last.", gpu,
              static_cast<double>(step));
    }
    out.add("fr_oldest_in_flight_seconds", "gauge",
            "Age of the oldest operation in flight; 0 none.", gpu,
            r->oldest != 0 ? seconds(std::max<Time>(now - r->oldest, 0)) : 0);
    const auto heartbeat = static_cast<Time>(h.heartbeat_unix_ns.load());
    out.add("fr_watchdog_age_seconds", "gauge", "Time since the rank's watchdog gave a sign.", gpu,
            seconds(std::max<Time>(now - heartbeat, 0)));
  }
  std::map<std::string, std::uint64_t> lags;
  for (const auto& [group, front] : fronts) {
    std::uint64_t& lag = lags[labels[group]];
    lag = std::max(lag, front.second - front.first);
  }
  for (const auto& [group, lag] : lags) {
    Labels l = job;
    l.emplace_back("group", group);
    out.add("fr_frontier_lag_operations", "gauge",
            "Collectives by which the last rank of this node is behind the first, in one group.", l,
            static_cast<double>(lag));
  }
}

void NodeMetrics::tell_totals(MetricsText& out, const Labels& job, const Job& totals) {
  const auto with = [&](std::initializer_list<std::pair<std::string, std::string>> more) {
    Labels l = job;
    l.insert(l.end(), more);
    return l;
  };
  for (const auto& [key, count] : totals.counts) {
    out.add("fr_operations_total", "counter", "Operations that the ranks of this node issued.",
            with({{"group", key.first}, {"op", key.second}}), count.operations);
  }
  for (const auto& [key, count] : totals.counts) {
    out.add("fr_operation_bytes_total", "counter", "Bytes of the inputs of these operations.",
            with({{"group", key.first}, {"op", key.second}}), count.bytes);
  }
  constexpr const char* kWaits = "fr_wait_seconds";
  constexpr const char* kWaitsHelp = "From the call of an operation to its completion.";
  for (const auto& [group, h] : totals.waits) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < h.counts.size(); ++i) {
      sum += h.counts[i];
      const std::string le = i < kBuckets.size() ? fmt::format("{}", kBuckets[i]) : "+Inf";
      out.add(kWaits, "histogram", kWaitsHelp, with({{"group", group}, {"le", le}}),
              static_cast<double>(sum), "_bucket");
    }
    out.add(kWaits, "histogram", kWaitsHelp, with({{"group", group}}), h.sum, "_sum");
    out.add(kWaits, "histogram", kWaitsHelp, with({{"group", group}}), static_cast<double>(sum),
            "_count");
  }
  for (const auto& [gpu, n] : totals.late) {
    out.add("fr_late_arrivals_total", "counter",
            "Collectives to which a rank came last, 10 ms or more after all others of this node.",
            with({{"gpu", fmt::format("{}", gpu)}}), n);
  }
  out.add("fr_incidents_total", "counter", "Incidents: hangs of which dumps were written.", job,
          totals.incidents);
  constexpr const char* kFalse = "Warnings and dumps that were followed by progress.";
  out.add("fr_false_alarms_total", "counter", kFalse, with({{"kind", "warning"}}),
          totals.false_warnings);
  out.add("fr_false_alarms_total", "counter", kFalse, with({{"kind", "dump"}}), totals.false_dumps);
  for (const auto& [kind, n] : totals.lost) {
    out.add("fr_records_lost_total", "counter", "What could not be recorded, or was not read here.",
            with({{"kind", kind}}), n);
  }
}

void NodeMetrics::tell_verdict(MetricsText& out, const Labels& job, const std::vector<Ring*>& rings,
                               Time now) {
  bool stuck = false;
  int world = 0;
  std::vector<std::string> paths;
  for (const Ring* r : rings) {
    paths.push_back(r->path);
    world = std::max(world, r->header().world_size.load());
    stuck = stuck || (r->alive && r->oldest != 0 && now - r->oldest > stuck_);
  }
  if (!stuck) {
    return;
  }
  // Ranks of other nodes cannot be seen from here; without them the verdict is undecided.
  const bool all_here = world != 0 && static_cast<std::size_t>(world) <= rings.size();
  const std::string kind = all_here ? judge_(paths) : "undecided";
  if (kind != "ok") {
    Labels l = job;
    l.emplace_back("kind", kind);
    out.add("fr_verdict", "gauge", "1 while operations stand for FR_WARN_S: what frtrace says.", l,
            1);
  }
}

}  // namespace frtrace
