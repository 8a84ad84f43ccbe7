#include <fmt/format.h>

#include <algorithm>

#include "report/render.hpp"

namespace frtrace {

namespace {

constexpr const char* kIndent = "           ";

std::string headline(const Report& r) {
  std::string kind = verdict_name(r.kind);
  for (char& ch : kind) {
    ch = static_cast<char>(std::toupper(static_cast<unsigned char>(ch)));
  }
  return kind;
}

bool shows(const TextStyle& style, const std::vector<Rank>& ranks) {
  return style.ranks.empty() || std::any_of(ranks.begin(), ranks.end(), [&](Rank r) {
           return std::find(style.ranks.begin(), style.ranks.end(), r) != style.ranks.end();
         });
}

void add_stack(std::string& out, const std::vector<std::string>& stack) {
  for (const std::string& frame : stack) {
    out += fmt::format("{}    {}\n", kIndent, frame);
  }
}

void render_one(std::string& out, const Report& r, const TextStyle& style, bool name_job) {
  const char* colour = r.kind == Verdict::kOk          ? "\033[32;1m"
                       : r.kind == Verdict::kUndecided ? "\033[33;1m"
                                                       : "\033[31;1m";
  if (name_job) {
    out += fmt::format("job {}\n", r.job);
  }
  const std::string kind = headline(r);
  double longest = 0;
  for (const Waiting& w : r.waiting) {
    longest = std::max(longest, w.seconds);
  }
  out += fmt::format("{}{:<10}{} {}", style.colour ? colour : "", kind,
                     style.colour ? "\033[0m" : "", r.summary);
  if (longest > 0 && (r.kind == Verdict::kMissing || r.kind == Verdict::kExited)) {
    out += fmt::format(", for {}", duration_text(longest));
  }
  out += '\n';
  constexpr std::size_t kBlamedShown = 8;
  for (std::size_t i = 0; i < r.blamed.size() && i < kBlamedShown; ++i) {
    const Blamed& b = r.blamed[i];
    out += fmt::format("{}rank {}", kIndent, b.rank);
    if (!b.host.empty() || b.pid != 0) {
      out += fmt::format(" (host {}, pid {})", b.host, b.pid);
    }
    for (std::size_t e = 0; e < b.evidence.size(); ++e) {
      out += (e == 0 ? " " : fmt::format("\n{}  ", kIndent)) + b.evidence[e];
    }
    out += '\n';
    if (style.stacks && shows(style, {b.rank})) {
      add_stack(out, b.stack);
    }
  }
  if (r.blamed.size() > kBlamedShown) {
    out += fmt::format("{}and {} more\n", kIndent, r.blamed.size() - kBlamedShown);
  }
  constexpr std::size_t kWaitingShown = 8;
  for (std::size_t i = 0; i < r.waiting.size() && i < kWaitingShown; ++i) {
    const Waiting& w = r.waiting[i];
    out += fmt::format("{}{} {} in {}", kIndent, ranks_words(w.ranks),
                       w.ranks.size() == 1 ? "waits" : "wait", w.op);
    if (w.seq != 0) {
      out += fmt::format(" #{} of {}", w.seq, w.desc.empty() ? w.group : w.desc);
    }
    if (const std::string site = site_text(w.site); !site.empty()) {
      out += " at " + site;
    }
    out += fmt::format(", for {}\n", duration_text(w.seconds));
    if (style.stacks && shows(style, w.ranks)) {
      add_stack(out, w.stack);
    }
  }
  if (r.waiting.size() > kWaitingShown) {
    out += fmt::format("{}and {} more places\n", kIndent, r.waiting.size() - kWaitingShown);
  }
  for (const Finding& f : r.findings) {
    if (f.id == "why") {
      out += fmt::format("{}why: {}\n", kIndent, f.text);
    } else if (f.id == "excluded") {
      out += fmt::format("{}not the others: {}\n", kIndent, f.text);
    } else if (f.id != "confidence") {
      out += fmt::format("{}{}\n", kIndent, f.text);
    }
  }
  for (const Finding& f : r.findings) {
    if (f.id == "confidence") {
      const bool decided = r.kind != Verdict::kUndecided;
      out += fmt::format("{}{}{}\n", kIndent,
                         decided ? std::string(confidence_name(r.confidence)) + ": " : "", f.text);
    }
  }
  out += fmt::format("{}job {}, attempt {}, incident {}\n", kIndent, r.job, r.attempt, r.incident);
}

}  // namespace

std::string render_text(const std::vector<Report>& reports, const LoadResult& input,
                        const TextStyle& style) {
  std::string out;
  for (const Report& r : reports) {
    if (!out.empty()) {
      out += '\n';
    }
    render_one(out, r, style, reports.size() > 1);
  }
  for (const Unreadable& u : input.unreadable) {
    out += fmt::format("not read: {}: {}\n", u.file, u.why);
  }
  for (const std::string& path : input.absent) {
    out += fmt::format("not read: {}: no such file or directory\n", path);
  }
  return out;
}

}  // namespace frtrace
