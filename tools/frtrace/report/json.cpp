#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "report/render.hpp"

namespace frtrace {

namespace {

using Json = nlohmann::ordered_json;

Json site_json(const Site& s) {
  if (s.file.empty()) {
    return nullptr;
  }
  Json out{{"file", s.file}, {"line", s.line}, {"function", s.function}};
  if (!s.within.empty()) {
    out["within"] = s.within;
  }
  return out;
}

Json input_json(const Report* r, const LoadResult& input) {
  Json unreadable = Json::array();
  for (const Unreadable& u : input.unreadable) {
    unreadable.push_back({{"file", u.file}, {"why", u.why}});
  }
  for (const std::string& path : input.absent) {
    unreadable.push_back({{"file", path}, {"why", "no such file or directory"}});
  }
  Json silent = Json::array();
  for (const SilentNode& n : r != nullptr ? r->silent_nodes : std::vector<SilentNode>{}) {
    silent.push_back(
        {{"host", n.host}, {"ranks", n.ranks}, {"n_ranks", n.n_ranks}, {"has_files", n.has_files}});
  }
  Json out{{"read", r != nullptr ? r->read : 0},
           {"expected", r != nullptr ? r->expected : 0},
           {"missing_ranks", r != nullptr ? r->missing_ranks : std::vector<Rank>{}},
           {"reduced", r != nullptr ? r->reduced : 0},
           {"in_question", r != nullptr ? r->in_question : std::vector<Rank>{}},
           {"silent_nodes", std::move(silent)},
           {"unreadable", std::move(unreadable)}};
  for (const NodeRow& row : input.nodes) {  // of `frtrace collect` only
    out["nodes"].push_back({{"node", row.node},
                            {"answered", row.answered},
                            {"ranks", row.ranks},
                            {"why", row.why.empty() ? Json() : Json(row.why)}});
  }
  return out;
}

Json branch_json(const Branch& b) {
  return b.op.empty() ? Json()
                      : Json{{"op", b.op}, {"site", site_json(b.site)}, {"count", b.count}};
}

// null: unknown.
Json fork_json(const std::optional<Fork>& f) {
  return !f ? Json()
            : Json{{"reference", f->reference},
                   {"last_common", branch_json(f->common)},
                   {"next", branch_json(f->own)},
                   {"others_next", branch_json(f->others)}};
}

Json devices_json(const Report& r) {
  Json out = Json::array();
  for (const DeviceReport& d : r.devices) {
    Json transfers = Json::array();
    for (const TransferReport& t : d.transfers) {
      transfers.push_back({{"kind", t.kind},
                           {"peer", t.peer < 0 ? Json() : Json(t.peer)},
                           {"waits_for", t.waits_for},
                           {"step", t.step},
                           {"n_steps", t.n_steps},
                           {"channels", t.channels},
                           {"over", t.over}});
    }
    out.push_back({{"rank", d.rank},
                   {"operation", d.operation},
                   {"state", d.state},
                   {"stream", d.stream},
                   {"seconds", d.seconds},
                   {"channels", d.channels},
                   {"behind", d.behind},
                   {"transfers", std::move(transfers)}});
  }
  return out;
}

// A step is null if the program does not report its steps.
Json late_json(const Report& r) {
  const auto step = [](const std::optional<std::int64_t>& n) { return n ? Json(*n) : Json(); };
  Json out = Json::array();
  for (const LateReport& l : r.late) {
    Json steps = Json::array();
    for (const LateReport::Step& s : l.steps) {
      steps.push_back({{"step", step(s.step)},
                       {"seq", s.seq == 0 ? Json() : Json(s.seq)},
                       {"before_s", s.before_s},
                       {"after_s", s.after_s}});
    }
    Json also = Json::array();
    for (const LatePlace& p : l.also) {
      also.push_back({{"group", p.group},
                      {"desc", p.desc},
                      {"op", p.op},
                      {"site", site_json(p.site)},
                      {"late", p.late},
                      {"last", p.last},
                      {"of", p.of},
                      {"median_s", p.median_s},
                      {"worst_s", p.worst_s}});
    }
    out.push_back({{"rank", l.rank},
                   {"host", l.host},
                   {"group", l.group},
                   {"desc", l.desc},
                   {"op", l.op},
                   {"site", site_json(l.site)},
                   {"late", l.late},
                   {"last", l.last},
                   {"of", l.of},
                   {"median_s", l.median_s},
                   {"worst_s", l.worst_s},
                   {"since_step", step(l.since_step)},
                   {"since_seq", l.since_seq},
                   {"since_first", l.since_kept},
                   {"pattern", l.pattern},
                   {"cause", l.cause},
                   {"device_starts", l.starts},
                   {"step_time_changes", std::move(steps)},
                   {"also", std::move(also)},
                   {"followers", l.followers}});
  }
  return out;
}

Json links_json(const Report& r) {
  Json out = Json::array();
  for (const Link& l : r.links) {
    out.push_back({{"from", l.from},
                   {"to", l.to},
                   {"step", l.step},
                   {"n_steps", l.n_steps},
                   {"channels", l.channels},
                   {"over", l.over}});
  }
  return out;
}

// "2026-01-02T03:04:05.678901+00:00"; null: unknown.
Json time_json(Time t) {
  if (t <= 0) {
    return nullptr;
  }
  const std::time_t seconds = static_cast<std::time_t>(t / kSecond);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}+00:00", utc, t % kSecond / 1000);
}

// null: the incident lasts, or its end is unknown.
Json ended_json(const Report& r) {
  if (!r.ended) {
    return nullptr;
  }
  return {{"how", r.ended->how},
          {"by", r.ended->by.empty() ? Json(nullptr) : Json(r.ended->by)},
          {"after_s", r.ended->after_s},
          {"ranks", r.ended->ranks}};
}

Json causes_json(const Report& r) {
  Json out = Json::array();
  for (const CauseReport& c : r.causes) {
    Json sites = Json::array();
    for (const Site& s : c.sites) {
      sites.push_back(site_json(s));
    }
    out.push_back({{"kind", verdict_name(c.kind)},
                   {"ranks", c.ranks},
                   {"sites", std::move(sites)},
                   {"share", c.share},
                   {"summary", c.summary}});
  }
  return out;
}

Json doctor_json(const Report& r) {
  Json out = Json::array();
  for (const DoctorReport& d : r.doctor) {
    out.push_back({{"id", d.id}, {"name", d.name}, {"value", d.value}, {"remedy", d.remedy}});
  }
  return out;
}

Json groups_json(const Report& r) {
  Json groups = Json::array();
  for (const GroupReport& g : r.groups) {
    groups.push_back({{"name", g.name},
                      {"desc", g.desc},
                      {"backend", g.backend},
                      {"instance", g.instance},
                      {"generation", g.generation},
                      {"ranks", fold_ranks(g.ranks)},
                      {"size", g.ranks.size()},
                      {"enqueued", {g.enqueued_min, g.enqueued_max}},
                      {"completed", {g.completed_min, g.completed_max}},
                      {"overwritten", g.overwritten},
                      {"dropped", g.dropped}});
  }
  return groups;
}

Json report_json(const Report& r, const LoadResult& input) {
  Json blamed = Json::array();
  for (const Blamed& b : r.blamed) {
    blamed.push_back({{"rank", b.rank},
                      {"host", b.host},
                      {"pid", b.pid},
                      {"why", b.why},
                      {"group", b.group},
                      {"desc", b.desc},
                      {"op", b.op},
                      {"seq", b.seq},
                      {"site", site_json(b.site)},
                      {"last_site", site_json(b.last_site)},
                      {"evidence", b.evidence},
                      {"stack", b.stack},
                      {"divergence", fork_json(b.divergence)}});
  }
  Json waiting = Json::array();
  for (const Waiting& w : r.waiting) {
    waiting.push_back({{"ranks", w.ranks},
                       {"group", w.group},
                       {"desc", w.desc},
                       {"op", w.op},
                       {"seq", w.seq},
                       {"site", site_json(w.site)},
                       {"seconds", w.seconds},
                       {"stack", w.stack}});
  }
  Json findings = Json::array();
  for (const Finding& f : r.findings) {
    findings.push_back({{"id", f.id}, {"text", f.text}});
  }
  Json ranks = Json::array();
  for (const RankReport& k : r.rank_reports) {
    ranks.push_back({{"rank", k.rank},
                     {"host", k.host},
                     {"pid", k.pid},
                     {"file", k.file},
                     {"source", k.source},
                     {"incident", k.incident},
                     {"reason", k.reason},
                     {"state", k.state},
                     {"last_op", k.last_op},
                     {"site", site_json(k.site)},
                     {"note", k.note}});
  }
  return {{"schema", "frtrace.report/1"},
          {"job", r.job},
          {"attempt", r.attempt},
          {"incident", r.incident},
          {"verdict",
           {{"kind", verdict_name(r.kind)},
            {"ranks", r.ranks},
            {"confidence", confidence_name(r.confidence)},
            {"summary", r.summary},
            {"causes", causes_json(r)},
            {"time", time_json(r.time)},
            {"ended", ended_json(r)},
            {"blamed", std::move(blamed)},
            {"waiting", std::move(waiting)}}},
          {"findings", std::move(findings)},
          {"devices", devices_json(r)},
          {"links", links_json(r)},
          {"stragglers", late_json(r)},
          {"doctor", doctor_json(r)},
          {"groups", groups_json(r)},
          {"ranks", std::move(ranks)},
          {"input", input_json(&r, input)}};
}

}  // namespace

std::string render_json(const std::vector<Report>& reports, const LoadResult& input,
                        const std::string& stacks, int indent) {
  Json out;
  if (reports.empty()) {
    out = {{"schema", "frtrace.report/1"},
           {"verdict",
            {{"kind", "undecided"},
             {"ranks", Json::array()},
             {"confidence", "possible"},
             {"summary", "no evidence could be read"},
             {"causes", Json::array()},
             {"time", nullptr},
             {"ended", nullptr},
             {"blamed", Json::array()},
             {"waiting", Json::array()}}},
           {"findings", Json::array()},
           {"groups", Json::array()},
           {"ranks", Json::array()},
           {"input", input_json(nullptr, input)}};
  } else {
    // Several jobs: the worst one is on top, so that a script written for one job sees the fault.
    const auto worst = std::max_element(
        reports.begin(), reports.end(),
        [](const Report& a, const Report& b) { return severity(a) < severity(b); });
    out = report_json(*worst, input);
    if (reports.size() > 1) {
      Json jobs = Json::array();
      for (const Report& r : reports) {
        jobs.push_back(report_json(r, input));
      }
      out["jobs"] = std::move(jobs);
    }
  }
  if (!stacks.empty()) {
    out["stacks"] = Json::parse(stacks, nullptr, false);
  }
  // ASCII: a terminal would obey C1 controls, which JSON allows.
  return out.dump(indent, ' ', true, Json::error_handler_t::replace) + "\n";
}

}  // namespace frtrace
