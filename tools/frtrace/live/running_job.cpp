#include "live/running_job.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "format/call_site.hpp"
#include "fr/fr.h"
#include "recorder/in_flight.hpp"

namespace frtrace {

namespace {

constexpr std::uint64_t kLookBack = 256;  // records in which an operation is searched
constexpr Time kStepsOver = 60 * kSecond;

double seconds_to(Time from, Time now) {
  return static_cast<double>(std::max<Time>(now - from, 0)) * 1e-9;
}

// Finds the newest record for which `wanted` is true; false: none.
template <class Wanted>
bool newest(const fr::View& view, fr::RecordCopy& r, Wanted&& wanted) {
  const std::uint64_t head = fr::get(view.header().head), slots = view.n_slots();
  const std::uint64_t last = head - std::min({head, slots, kLookBack});
  for (std::uint64_t t = head; t-- > last;) {
    if (view.read(static_cast<std::uint32_t>(t & (slots - 1)), r) == fr::Slot::kWhole &&
        r.ticket == t && r.payload.kind <= FR_LIFECYCLE && wanted(r.payload)) {
      return true;
    }
  }
  return false;
}

std::uint64_t collectives(const fr::GroupRow& g) {
  return fr::get(g.issued) & fr::kSeqMask;
}

Time last_move(const fr::GroupRow& g, const fr::TickClock& clock) {
  Time last = 0;
  for (const auto* ticks : {&g.enqueued_ticks, &g.completed_ticks, &g.p2p_ticks}) {
    last = std::max(last, static_cast<Time>(clock.unix_ns(fr::get(*ticks))));
  }
  return last;
}

std::optional<std::int64_t> step_of(const fr::Header& h) {
  const std::int64_t step = h.step.load();
  return step == std::numeric_limits<std::int64_t>::min() ? std::nullopt : std::optional(step);
}

}  // namespace

std::map<std::string, std::size_t> jobs_here(const std::string& shm_dir, Time now) {
  std::map<std::string, std::size_t> out;
  for_each_ring(ring_directory(shm_dir), [&](const std::string&, const auto& ring) {
    const fr::Header& h = ring->view().header();
    out[fixed(h.job, sizeof h.job)] += lives(h, now) ? 1 : 0;
  });
  return out;
}

// Only the last attempt counts: rings of an earlier one may still be there.
void RunningJob::find_rings(Time now) {
  std::set<std::pair<int, std::uint64_t>> found;
  const std::string dir = ring_directory(shm_dir_);
  // Mapped rings are kept: mapping 1,024 rings again takes longer than everything else.
  std::map<std::string, std::pair<int, std::uint64_t>> known;
  for (const auto& [key, ring] : rings_) {
    known.emplace(ring.path, key);
  }
  const auto take = [&](const std::string& name, std::unique_ptr<MappedRing> mapped) {
    const fr::Header& h = mapped->view().header();
    const std::pair key{h.pid, h.proc_start};
    if (fixed(h.job, sizeof h.job) == job_ && found.insert(key).second && !rings_.contains(key)) {
      rings_.emplace(key, Ring{dir + "/" + name, std::move(mapped), false});
    }
  };
  for_each_ring(dir, take, [&](const std::string& name) {
    const auto it = known.find(dir + "/" + name);
    struct stat st{};
    const bool same = it != known.end() && ::stat(it->first.c_str(), &st) == 0 &&
                      st.st_ino == rings_.at(it->second).mapped->inode();
    if (same) {
      found.insert(it->second);
    }
    return !same;
  });
  int attempt = std::numeric_limits<int>::min();
  for (const auto& [key, ring] : rings_) {
    attempt = found.contains(key) ? std::max(attempt, ring.header().attempt) : attempt;
  }
  std::erase_if(rings_, [&](const auto& r) {
    return !found.contains(r.first) || r.second.header().attempt != attempt;
  });
  for (auto& [key, ring] : rings_) {
    const fr::Header& h = ring.header();
    ring.alive = lives(h, now);
    dump_dir_ = fixed(h.dump_dir, sizeof h.dump_dir);
    const auto start = static_cast<Time>(h.start_unix_ns);
    started_ = started_ == 0 ? start : std::min(started_, start);
  }
}

std::vector<std::string> RunningJob::rings() const {
  std::vector<std::string> out;
  for (const auto& [key, ring] : rings_) {
    out.push_back(ring.path);
  }
  return out;
}

JobNow RunningJob::look(Time now) {
  find_rings(now);
  JobNow out;
  out.job = job_;
  out.ranks = rings_.size();
  out.up_s = started_ == 0 ? 0 : seconds_to(started_, now);
  for (const auto& [key, ring] : rings_) {
    const fr::Header& h = ring.header();
    out.attempt = h.attempt;
    out.world = std::max(out.world, h.world_size.load());
    out.expected =
        std::max(out.expected, static_cast<std::size_t>(std::max(h.local_world_size, 0)));
    out.alive += ring.alive ? 1 : 0;
  }
  out.expected = std::max(out.expected, out.ranks);
  tell_steps(out, now);
  tell_groups(out, now);
  return out;
}

void RunningJob::tell_steps(JobNow& out, Time now) {
  for (const auto& [key, ring] : rings_) {
    if (const auto step = step_of(ring.header()); step && ring.alive) {
      out.first_step = std::min(out.first_step.value_or(*step), *step);
      out.last_step = std::max(out.last_step.value_or(*step), *step);
    }
  }
  steps_.tell(out, now);
}

void Steps::tell(JobNow& out, Time now) {
  if (!out.first_step) {
    steps_.clear();
    return;
  }
  if (!steps_.empty() && *out.first_step < steps_.back().second) {
    steps_.clear();  // the job counts steps from the start again
  }
  steps_.emplace_back(now, *out.first_step);
  while (now - steps_.front().first > kStepsOver) {
    steps_.pop_front();
  }
  const auto& [then, step] = steps_.front();
  if (now - then >= kSecond / 4) {
    out.steps_per_min = static_cast<double>(*out.first_step - step) / seconds_to(then, now) * 60;
  }
}

void RunningJob::tell_groups(JobNow& out, Time now) {
  std::map<std::string, std::map<GroupKey, std::vector<Member>>> by_label;
  for (const auto& [key, ring] : rings_) {
    const fr::View& view = ring.view();
    for (std::uint32_t g = 1; g < view.n_groups(); ++g) {
      const fr::GroupRow& row = *view.group(g);
      const std::string name(view.string(row.name.load()));
      const std::string desc(view.string(row.desc.load()));
      if (row.destroyed_ticks.load() == 0) {
        by_label[desc.empty() || desc == "undefined" ? name : desc][{name, row.instance.load()}]
            .push_back({&ring, g});
      }
    }
  }
  std::map<const Ring*, RankNow> late;
  for (const auto& [label, groups] : by_label) {
    GroupNow of;
    of.label = label;
    of.groups = groups.size();
    double issued = 0;
    for (const auto& [key, members] : groups) {
      tell_group(of, members, now, late);
      for (const Member& m : members) {
        const fr::GroupRow& row = *m.ring->view().group(m.row);
        issued += static_cast<double>(collectives(row) + fr::get(row.p2p_issued));
      }
    }
    std::sort(of.behind.begin(), of.behind.end());
    finish_group(of, issued_, issued, now);
    out.stuck = out.stuck || is_stuck(of, stuck_);
    out.groups.push_back(std::move(of));
  }
  sort_groups(out.groups);
  tell_ranks(out, late, now);
}

void finish_group(GroupNow& of, std::map<std::string, std::pair<Time, double>>& issued_before,
                  double issued, Time now) {
  const auto [at, first] = issued_before.try_emplace(of.label, now, issued);
  if (!first && now - at->second.first >= kSecond / 10) {
    of.per_s = std::max(issued - at->second.second, 0.0) / seconds_to(at->second.first, now) /
               static_cast<double>(std::max<std::size_t>(of.ranks, 1));
  }
  at->second = {now, issued};
}

bool is_stuck(const GroupNow& of, Time stuck) {
  return of.in_flight != 0 && of.still_s && *of.still_s * 1e9 >= static_cast<double>(stuck);
}

void sort_groups(std::vector<GroupNow>& groups) {
  std::stable_sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    const auto key = [](const GroupNow& g) {
      return std::tuple(g.in_flight != 0 ? -static_cast<std::int64_t>(g.still_s.value_or(0)) : 0,
                        -static_cast<std::int64_t>(g.lag));
    };
    return key(a) < key(b);
  });
}

void sort_ranks(std::vector<RankNow>& ranks) {
  std::stable_sort(ranks.begin(), ranks.end(), [](const RankNow& a, const RankNow& b) {
    return std::tuple(a.alive, b.lag, a.rank) < std::tuple(b.alive, a.lag, b.rank);
  });
}

// Adds one group of the label: its first and last member, and the members behind.
void RunningJob::tell_group(GroupNow& of, const std::vector<Member>& members, Time now,
                            std::map<const Ring*, RankNow>& late) {
  const auto row = [](const Member& m) -> const fr::GroupRow& {
    return *m.ring->view().group(m.row);
  };
  const auto by_front = [&](const Member& a, const Member& b) {
    return collectives(row(a)) < collectives(row(b));
  };
  const auto [last, first] = std::minmax_element(members.begin(), members.end(), by_front);
  const std::uint64_t front = collectives(row(*first)), lag = front - collectives(row(*last));
  of.ranks += members.size();
  if (lag > of.lag) {
    of.behind.clear();
    of.lag = lag;
  }
  Time moved = 0;
  for (const Member& m : members) {
    of.in_flight += m.ring->alive && fr::count_in_flight(row(m)) != 0 ? 1 : 0;
    moved = std::max(moved, last_move(row(m), fr::TickClock(m.ring->header())));
    const std::uint64_t own = front - std::min(front, collectives(row(m)));
    if (own != 0) {
      RankNow& r = late[m.ring];
      if (own > r.lag) {
        r.lag = own;
        r.group = of.label;
      }
      if (own == of.lag) {
        of.behind.push_back(m.ring->header().rank.load());
      }
    }
  }
  if (moved != 0) {
    const double still = seconds_to(moved, now);
    of.still_s = std::min(of.still_s.value_or(still), still);
  }
  if (front > of.front || of.at.empty()) {
    of.front = front;
    fr::RecordCopy r;
    const fr::View& view = first->ring->view();
    const bool there = newest(view, r, [&](const fr::Payload& p) {
      return p.group == first->row && p.kind == FR_COLLECTIVE && p.seq == front;
    });
    of.at = front == 0
                ? ""
                : fmt::format("{} #{}", there ? view.string(r.payload.op) : "collective", front);
  }
}

void RunningJob::tell_ranks(JobNow& out, const std::map<const Ring*, RankNow>& late,
                            Time now) const {
  for (const auto& [key, ring] : rings_) {
    const auto at = late.find(&ring);
    if (ring.alive && (at == late.end() || !out.stuck)) {
      continue;  // in a job that runs some rank is always behind
    }
    RankNow r = at == late.end() ? RankNow{} : at->second;
    const fr::Header& h = ring.header();
    r.rank = h.rank.load();
    r.pid = h.pid;
    r.alive = ring.alive;
    r.step = step_of(h);
    fr::RecordCopy record;
    if (newest(ring.view(), record, [](const fr::Payload&) { return true; })) {
      char text[256];
      fr::describe(ring.view(), record, text, sizeof text);
      r.last = text;
      r.last_s = seconds_to(static_cast<Time>(fr::TickClock(h).unix_ns(record.payload.ticks)), now);
    }
    out.behind.push_back(std::move(r));
  }
  sort_ranks(out.behind);
}

}  // namespace frtrace
