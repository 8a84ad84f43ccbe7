// text.cpp - a report as text: the ranks and the operation; the place in the user's code; why the
// others wait; how sure that is; when it began. It fits a screen at any scale; TextStyle::full:
// all.
#include <fmt/chrono.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <map>
#include <set>
#include <tuple>

#include "model/contains.hpp"
#include "model/phrases.hpp"
#include "report/lines.hpp"
#include "report/render.hpp"

namespace frtrace {

namespace {

constexpr std::size_t kIndent = 11, kLines = 24;
constexpr std::size_t kAll = SIZE_MAX;

struct Line {
  std::string text;
  std::vector<std::string> stack;
};

// Lines of one kind. A screen shows up to `most` of them, and down to `least` if other parts need
// the room.
struct Part {
  std::vector<Line> lines;
  std::size_t most, least;
  const char* noun;        // "and 5 more <noun>" in place of those that are cut
  bool vital = false;      // at least one line of it is always shown
  std::size_t folded = 0;  // further things that never were lines
  std::size_t shown = 0;

  void add(std::string text, std::vector<std::string> stack = {}) {
    lines.push_back({std::move(text), std::move(stack)});
  }
};

std::string headline(const Report& r) {
  std::string kind = verdict_name(r.kind);
  for (char& ch : kind) {
    ch = static_cast<char>(std::toupper(static_cast<unsigned char>(ch)));
  }
  return kind;
}

bool shows(const TextStyle& style, const std::vector<Rank>& ranks) {
  return style.ranks.empty() ||
         std::ranges::any_of(ranks, [&](Rank r) { return contains(style.ranks, r); });
}

// Long paths are cut at the front: the end names the file.
std::string site_words(const Site& s, bool full) {
  constexpr std::size_t kFile = 40;
  Site out = s;
  if (!full && columns(out.file) > kFile) {
    const std::size_t slash = out.file.find('/', out.file.size() - kFile);
    out.file = "..." + out.file.substr(slash == std::string::npos ? out.file.rfind('/') : slash);
  }
  return site_text(out);
}

std::string named(const std::vector<Rank>& ranks, bool full) {
  return full ? one_or(ranks.size(), "rank ", "ranks ") + fold_ranks(ranks) : ranks_words(ranks);
}

std::string without_numbers(std::string text) {
  std::erase_if(text, [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
  return text;
}

// Blamed ranks with the same findings share an entry.
struct Accused {
  const Blamed* first = nullptr;
  std::vector<Rank> others;
};

std::vector<Accused> accused(const Report& r, bool full) {
  // A mismatch is about sizes and splits: keep the numbers.
  const auto said = [&r](const Blamed& b) {
    const std::string& text = b.evidence.front();
    return r.kind == Verdict::kMismatch ? text : without_numbers(text);
  };
  std::vector<Accused> out;
  std::map<std::tuple<std::string, std::string, std::string, std::string>, std::size_t> by;
  for (const Blamed& b : r.blamed) {
    const auto [at, fresh] = by.try_emplace(
        {b.why, b.op, site_text(b.site), b.evidence.empty() ? "" : said(b)}, out.size());
    if (fresh || full) {
      out.push_back({&b, {}});
    } else {
      out[at->second].others.push_back(b.rank);
    }
  }
  return out;
}

// The user's code first, then other findings; a screen shows a few lines of a few ranks.
Part blamed_part(const Report& r, const TextStyle& style) {
  Part part{{}, style.full ? kAll : 10, 3, "lines about the blamed ranks", true};
  const std::vector<Accused> all = accused(r, style.full);
  std::vector<const CauseReport*> further;  // causes that the first line does not name
  for (const CauseReport& c : r.causes) {
    if (c.summary != r.summary) {
      further.push_back(&c);
    }
  }
  const auto also = [&](auto is) {
    std::erase_if(further, [&](const CauseReport* c) {
      return is(*c) && (part.add("also: " + c->summary), true);
    });
  };
  constexpr std::size_t kShown = 4, kEvidence = 8;
  const std::size_t shown = style.full ? all.size() : std::min(all.size(), kShown);
  const std::size_t each = style.full ? kAll : kEvidence / std::max<std::size_t>(shown, 1);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Blamed& b = *all[i].first;
    also([&](const CauseReport& c) {
      return contains(c.ranks, b.rank) && !contains(r.causes.front().ranks, b.rank);
    });
    std::vector<std::string> evidence;
    for (const std::string& text : b.evidence) {
      // Text that the first line contains is not repeated.
      if (style.full || b.evidence.size() == 1 || r.summary.find(text) == std::string::npos) {
        evidence.push_back(text);
      }
    }
    const std::size_t n = std::min(evidence.size(), each);
    evidence.resize(n);
    std::string head = fmt::format("rank {}", b.rank);
    if (b.pid != 0) {
      head += fmt::format(" ({}pid {})", given(!b.host.empty(), "host " + b.host + ", "), b.pid);
    }
    const std::string place = fmt::format("{}:{}", b.site.file, b.site.line);
    const bool placed = b.site.file.empty() || std::ranges::any_of(evidence, [&](auto& text) {
                          return text.find(place) != std::string::npos;
                        });
    head += placed ? " " : " did that at " + site_words(b.site, style.full) + (n == 0 ? "" : "; ");
    head += n == 0 ? "" : evidence.front();
    if (i >= shown) {
      part.folded += 1 + all[i].others.size();
      continue;
    }
    std::vector<Rank> who = all[i].others;
    who.push_back(b.rank);
    part.add(std::move(head),
             style.stacks && shows(style, who) ? b.stack : std::vector<std::string>());
    for (std::size_t e = 1; e < n; ++e) {
      part.add("  " + evidence[e]);
    }
    if (!all[i].others.empty()) {
      part.add("the same holds for " + named(all[i].others, false));
    }
  }
  if (part.folded != 0) {
    part.add(fmt::format("and {} more blamed ranks", part.folded));
  }
  also([](const CauseReport&) { return true; });
  return part;
}

// A line has room for a few ranges only.
std::string few(const std::vector<Rank>& ranks, bool full) {
  constexpr std::size_t kMost = 32, kShown = 16;
  std::string out = named(ranks, full);
  if (!full && out.size() > kMost && out.find("...") == std::string::npos) {
    out = fmt::format("{},... ({} ranks)", out.substr(0, out.rfind(',', kShown)), ranks.size());
  }
  return out;
}

// Waits in one operation from one call site, over all its numbers and groups.
struct Folded {
  const Waiting* first = nullptr;
  std::vector<Rank> ranks;
  std::map<std::string, bool> groups;
  std::string peer;  // of a message; "" if they differ
  std::uint64_t low = 0, high = 0;
  double seconds = 0;
  std::map<Rank, std::size_t> behind;  // per rank, further operations queued behind it
};

// "; and up to 12 more queued behind it"
std::string queued_text(const std::map<Rank, std::size_t>& behind, std::size_t ranks) {
  std::size_t least = behind.size() < ranks ? 0 : SIZE_MAX, most = 0;
  for (const auto& [rank, n] : behind) {
    least = std::min(least, n);
    most = std::max(most, n);
  }
  return given(most != 0, fmt::format("; and {}{} more queued behind it",
                                      given(least != most, "up to "), most));
}

std::string waiting_text(const Folded& w, bool full) {
  const Waiting& first = *w.first;
  std::string out = fmt::format("{} {} in {}", few(w.ranks, full),
                                one_or(w.ranks.size(), "waits", "wait"), first.op);
  if (w.high != 0) {
    out += w.low == w.high ? fmt::format(" #{}", w.low) : fmt::format(" #{}-{}", w.low, w.high);
    const std::string& name = first.desc.empty() ? first.group : first.desc;
    out += w.groups.size() == 1 ? " of " + (first.title.empty() ? name : first.title)
           : first.title.starts_with("group ")  // without a name of their own
               ? fmt::format(" of {} groups", w.groups.size())
               : fmt::format(" of {} ({} groups)", name, w.groups.size());
  }
  return out + w.peer + led(" at ", site_words(first.site, full)) +
         given(w.seconds > 0, ", for " + duration_text(w.seconds)) +
         queued_text(w.behind, w.ranks.size());
}

// The ranks that wait in the operation itself; ranks that only have it queued are left out.
std::vector<Rank> at_head(const Waiting& w) {
  std::vector<Rank> out = w.ranks;
  std::erase_if(out, [&](Rank r) { return contains(w.queued, r); });
  return out;
}

// Folds waits of one operation and call site over all numbers and groups; full: no folding. Waits
// with an unknown call site join the others if those have a single one.
std::vector<Folded> folded_waits(const Report& r, bool full) {
  const auto key = [](const Waiting& w) {
    return std::pair(w.op, w.desc.empty() ? w.group : w.desc);
  };
  std::map<std::pair<std::string, std::string>, std::set<std::string>> places;
  for (const Waiting& w : r.waiting) {
    if (!w.site.file.empty() && !at_head(w).empty()) {
      places[key(w)].insert(site_text(w.site));
    }
  }
  std::vector<Folded> all;
  std::map<std::tuple<std::string, std::string, std::string>, std::size_t> by;
  for (const Waiting& w : r.waiting) {
    const std::vector<Rank> who = at_head(w);
    if (who.empty()) {
      continue;
    }
    const std::string place = places[key(w)].size() > 1 ? site_text(w.site) : "";
    const auto [at, fresh] = by.try_emplace({w.op, key(w).second, place}, all.size());
    if (fresh || full) {
      all.emplace_back();
      all.back().first = &w;
      all.back().low = w.seq;
      all.back().peer = w.peer;
    }
    Folded& f = full ? all.back() : all[at->second];
    f.first = f.first->site.file.empty() ? &w : f.first;
    f.ranks.insert(f.ranks.end(), who.begin(), who.end());
    for (const auto& [rank, n] : w.behind) {
      f.behind[rank] += n;
    }
    f.groups[w.title.empty() ? w.group : w.title] = true;
    f.low = std::min(f.low, w.seq);
    f.high = std::max(f.high, w.seq);
    f.peer = f.peer == w.peer ? w.peer : "";
    f.seconds = std::max(f.seconds, w.seconds);
  }
  for (Folded& f : all) {
    const std::set<Rank> ranks(f.ranks.begin(), f.ranks.end());
    f.ranks.assign(ranks.begin(), ranks.end());
  }
  if (all.size() > 1 && !full) {  // the verdict's first, then the largest
    std::ranges::stable_sort(all.begin() + 1, all.end(), std::greater(),
                             [](const Folded& f) { return f.ranks.size(); });
  }
  return all;
}

Part waiting_part(const Report& r, const TextStyle& style) {
  Part part{{}, style.full ? kAll : 5, 2, "operations that ranks wait in"};
  for (const Folded& f : folded_waits(r, style.full)) {
    part.add(waiting_text(f, style.full),
             style.stacks && shows(style, f.ranks) ? f.first->stack : std::vector<std::string>());
  }
  return part;
}

// Findings of the given kinds, in their order.
Part findings_part(const Report& r, const TextStyle& style, std::vector<std::string_view> ids,
                   std::size_t most, std::size_t least, const char* noun) {
  Part part{{}, style.full ? kAll : most, least, noun};
  // A message told while the job ran about the operation that the first line names.
  const auto repeats = [&](const Finding& f) {
    return !style.full && f.id == "told" && !r.blamed.empty() &&
           f.text.find(fmt::format(" #{} of {} ", r.blamed[0].seq, r.blamed[0].desc)) !=
               std::string::npos;
  };
  for (const Finding& f : r.findings) {
    if (contains(ids, f.id) && !repeats(f)) {
      part.add((f.id == "why"                           ? "why: "
                : f.id == "excluded" || f.id == "chain" ? "not to blame: "
                                                        : "") +
               f.text);
    }
  }
  return part;
}

// Conditions of this machine that may explain the fault.
Part doctor_part(const Report& r, const TextStyle& style) {
  Part part{{}, style.full ? kAll : 1, 1, ""};
  for (const DoctorReport& d : r.doctor) {
    const std::string more =
        r.doctor.size() == 1 || style.full
            ? ""
            : fmt::format(" (and {} more: frtrace doctor)", r.doctor.size() - 1);
    part.add(fmt::format("doctor: {}: {}{}; {}", d.name, d.value, more, d.remedy));
  }
  return part;
}

// Rings outlive their processes: whether the job still runs on this machine; "" without rings.
std::string lives_text(const Report& r) {
  const auto rings = std::ranges::count(r.rank_reports, true, &RankReport::from_ring);
  const auto running = std::ranges::count(r.rank_reports, true, &RankReport::runs_now);
  return rings == 0         ? ""
         : running == 0     ? ", which no longer runs here"
         : running == rings ? ", which runs now"
                            : fmt::format(", of which {} of {} processes run now", running, rings);
}

std::string when_text(const Report& r, const TextStyle& style) {
  std::string out;
  if (r.time > 0) {
    const std::time_t t = static_cast<std::time_t>(r.time / kSecond);
    std::tm local{};
    ::localtime_r(&t, &local);
    const bool stuck = r.kind != Verdict::kOk && r.kind != Verdict::kSlow;
    out = fmt::format("{} {:%Y-%m-%d %H:%M:%S %Z}", stuck ? "since" : "as of", local);
    if (style.now > r.time) {
      out += fmt::format(" ({} ago)", duration_text(static_cast<double>(style.now - r.time) / 1e9));
    }
  } else {
    out = "time not known";
  }
  out += "; job " + r.job;
  if (r.attempt != 0 || r.incident != 0) {
    out += fmt::format(", attempt {}, incident {}", r.attempt, r.incident);
  }
  return out + lives_text(r);
}

Part ranks_part(const Report& r) {
  Part part{{}, kAll, 0, ""};
  for (const RankReport& k : r.rank_reports) {
    std::string text = fmt::format("rank {}: {} {}", k.rank, k.source, k.file);
    text += k.host.empty() ? "" : fmt::format(", host {}, pid {}", k.host, k.pid);
    text += ", " + k.state + led(", last issued ", k.last_op);
    part.add(text + led(" at ", site_text(k.site)));
  }
  return part;
}

std::vector<Part> parts_of(const Report& r, const TextStyle& style) {
  std::vector<Part> out;
  const auto findings = [&](std::vector<std::string_view> ids, std::size_t most, std::size_t least,
                            const char* noun) {
    out.push_back(findings_part(r, style, std::move(ids), most, least, noun));
  };
  out.push_back({{{r.summary, {}}}, style.full ? kAll : 3, 1, "", true});
  out.push_back(blamed_part(r, style));
  findings({"link"}, 3, 1, "links");
  findings({"why", "hint"}, 3, 1, "reasons");
  findings({"told"}, 3, 1, "lines of the running job");
  findings({"attempt"}, 2, 1, "attempts before");
  out.push_back(doctor_part(r, style));
  findings({"parted", "counts"}, 3, 1, "differences in what the ranks issued");
  out.push_back(waiting_part(r, style));
  findings({"device"}, 4, 1, "operations on devices");
  findings({"late"}, 6, 2, "places where ranks come late");
  findings({"need"}, 1, 1, "");
  findings({"silent"}, 3, 1, "nodes that did not answer");
  findings({"elsewhere"}, 4, 1, "places of ranks that do not wait");
  findings({"excluded"}, 3, 0, "that wait for others themselves");
  if (style.full) {
    findings({"chain"}, kAll, 0, "");
  }
  findings({"restart"}, 3, 1, "restarts within the processes");
  findings({"was_late", "ended", "end", "consequence", "error"}, 4, 0, "errors and exits");
  findings({"node"}, 1, 1, "");
  findings({"earlier"}, 1, 1, "");
  findings({"ras", "witness", "context", "input"}, 3, 0, "remarks");
  if (style.full) {
    findings({"lost", "hole", "reduced"}, kAll, 0, "");
  }
  Part sure{{}, style.full ? kAll : 4, 2, "", true};
  for (const Finding& f : r.findings) {
    if (f.id == "confidence") {
      sure.add(
          (r.kind != Verdict::kUndecided ? std::string(confidence_name(r.confidence)) + ": " : "") +
          f.text);
    }
  }
  out.push_back(std::move(sure));
  if (style.full) {
    out.push_back(ranks_part(r));
  }
  Part when{{}, 1, 1, "", true};
  when.add(when_text(r, style));
  out.push_back(std::move(when));
  return out;
}

// Distributes `room` lines among the parts.
void share_out(std::vector<Part>& parts, std::size_t room) {
  std::size_t sum = 0;
  for (Part& p : parts) {
    p.shown = std::min(p.lines.size(), p.most);
    sum += p.shown;
  }
  for (const bool last_resort : {false, true}) {
    for (auto p = parts.rbegin(); p != parts.rend(); ++p) {
      const std::size_t least = last_resort ? (p->vital ? 1 : 0) : p->least;
      for (; sum > room && p->shown > least; --p->shown) {
        --sum;
      }
    }
  }
}

// At most `room` lines, plus the stacks that the user asked for.
std::string render_one(const Report& r, const TextStyle& style, std::size_t room) {
  const std::size_t width = style.width;
  const char* colour = r.kind == Verdict::kOk          ? "\033[32;1m"
                       : r.kind == Verdict::kUndecided ? "\033[33;1m"
                                                       : "\033[31;1m";
  std::vector<Part> parts = parts_of(r, style);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (Line& line : parts[i].lines) {
      line.text = printable(line.text);
    }
    // The first line and the line on confidence are wrapped, not cut, while their parts have room.
    if (!style.full && (i == 0 || i + 2 == parts.size())) {
      std::vector<Line> pieces;
      for (const Line& line : parts[i].lines) {
        for (std::string& piece : wrapped(line.text, width - kIndent, parts[i].most)) {
          pieces.push_back({std::move(piece), {}});
        }
      }
      parts[i].lines = std::move(pieces);
    }
  }
  share_out(parts, style.full ? kAll : room);
  std::size_t used = 0;
  for (Part& p : parts) {
    used += p.shown;
    if (p.vital && *p.noun == '\0' && p.shown < p.lines.size()) {
      std::string& last = p.lines[p.shown - 1].text;
      last = shortened(last + " ...", width - kIndent);
    }
  }
  std::string out = fmt::format("{}{:<10}{} ", style.colour ? colour : "", headline(r),
                                style.colour ? "\033[0m" : "");
  const std::string indent(kIndent, ' ');
  bool first = true;
  const auto add = [&](std::string_view text) {
    out += first ? "" : indent;
    out += text;
    out += '\n';
    first = false;
  };
  for (const Part& p : parts) {
    const bool cut = p.shown < p.lines.size() && *p.noun != '\0' && p.shown > 1;
    const std::size_t n = p.shown - (cut ? 1 : 0);
    for (std::size_t k = 0; k < n; ++k) {
      const Line& line = p.lines[k];
      // A long line is continued on a second one while there is room.
      std::vector<std::string> pieces{line.text};
      if (!style.full) {
        pieces = wrapped(line.text, width - kIndent - 4, used < room ? 2 : 1);
        used += pieces.size() - 1;
        if (columns(line.text) <= width - kIndent) {
          used -= pieces.size() - 1;
          pieces = {line.text};
        } else if (pieces.size() == 1) {
          pieces = {shortened(line.text, width - kIndent)};
        }
      }
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        add((i == 0 ? "" : "    ") + pieces[i]);
      }
      for (const std::string& frame : line.stack) {
        add("    " + printable(frame));
      }
    }
    if (cut) {
      add(fmt::format("and {} more {}", p.lines.size() - n, p.noun));
    }
  }
  return out;
}

std::size_t count_lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

std::vector<std::string> not_read(const LoadResult& input, const TextStyle& style) {
  std::vector<std::string> out;
  for (const Unreadable& u : input.unreadable) {
    out.push_back(printable(fmt::format("not read: {}: {}", u.file, u.why)));
  }
  for (const std::string& path : input.absent) {
    out.push_back(printable(fmt::format("not read: {}: no such file or directory", path)));
  }
  constexpr std::size_t kShown = 2;
  if (!style.full) {
    const std::size_t more = out.size() > kShown ? out.size() - kShown : 0;
    out.resize(out.size() - more);
    for (std::string& line : out) {
      line = shortened(std::move(line), style.width);
    }
    if (more != 0) {
      out.push_back("not read: " + counted(more, "more file"));
    }
  }
  return out;
}

std::string all_of(const std::vector<Report>& reports, TextStyle style) {
  style.full = true;
  style.stacks = false;
  std::string out;
  for (const Report& r : reports) {
    out += render_one(r, style, kAll);
  }
  return out;
}

}  // namespace

std::vector<std::string> waiting_lines(const Report& r) {
  return each(folded_waits(r, false), [](const Folded& f) { return waiting_text(f, false); });
}

std::string render_text(const std::vector<Report>& reports, const LoadResult& input,
                        const TextStyle& style) {
  constexpr std::size_t kReports = 3;  // on a screen
  auto order = each(reports, [](const Report& r) { return &r; });
  const std::vector<std::string> unread = not_read(input, style);
  std::size_t room = kAll, left = 0;
  if (!style.full) {
    std::ranges::stable_sort(order, std::greater(), [](auto* r) { return severity(*r); });
    if (order.size() > kReports) {
      left = order.size() - kReports;
      order.resize(kReports);
    }
    const std::size_t besides = unread.size() + 1 + (left != 0 ? 1 : 0);
    // One line for the job's name, one between two jobs.
    const std::size_t each = reports.size() > 1 ? 2 : 0;
    room = (kLines - besides) / std::max<std::size_t>(order.size(), 1) - each;
  }
  std::string out;
  for (const Report* r : order) {
    out += out.empty() ? "" : "\n";
    if (reports.size() > 1) {
      const std::string job = "job " + printable(r->job);
      out += (style.full ? job : shortened(job, style.width)) + '\n';
    }
    out += render_one(*r, style, room);
  }
  if (left != 0) {
    out += fmt::format("and {}: see each with --job NAME\n", counted(left, "more job"));
  }
  const bool fault = std::ranges::any_of(reports, [](auto& r) { return r.kind != Verdict::kOk; });
  if (!style.full && fault && !style.where.empty()) {
    const std::size_t all = count_lines(all_of(reports, style)), shown = count_lines(out);
    std::string more = fmt::format("{:{}}more: frtrace -v {}", "", kIndent, printable(style.where));
    const std::string rest = (all > shown ? fmt::format(" ({} lines)", all) : "") +
                             (style.stacks ? "" : "; with call stacks: --stacks");
    if (columns(more + rest) <= style.width) {
      more += rest;
    } else if (style.typed) {
      more = fmt::format("{:{}}more: the same command with -v{}", "", kIndent, rest);
    }
    out += more + '\n';
  }
  for (const std::string& line : unread) {
    out += line + '\n';
  }
  return out;
}

}  // namespace frtrace
