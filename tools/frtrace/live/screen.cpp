#include "live/screen.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "report/lines.hpp"

namespace frtrace {

namespace {

constexpr std::size_t kMostBehind = 8;        // that are behind
constexpr std::size_t kMostVerdictLines = 8;  // where there is no more room

std::string left(std::string text, std::size_t width) {
  text = shortened(printable(text), width);
  return text + std::string(width - std::min(width, columns(text)), ' ');
}

std::string rate_text(double per) {
  return per >= 100 || per == 0 ? fmt::format("{:.0f}", per) : fmt::format("{:.1f}", per);
}

std::string bold(const std::string& text, const ScreenStyle& style) {
  return style.colour ? "\x1b[1m" + text + "\x1b[0m" : text;
}
std::string red(const std::string& text, const ScreenStyle& style) {
  return style.colour ? "\x1b[31m" + text + "\x1b[0m" : text;
}

std::string head_line(const JobNow& j, const ScreenStyle& style) {
  std::string out = fmt::format("{} on {}: {} of {} ranks", printable(j.job), printable(style.node),
                                j.alive, j.expected);
  if (j.world > static_cast<int>(j.expected)) {
    out += fmt::format(", {} in all", j.world);
  }
  if (j.attempt != 0) {
    out += fmt::format(", attempt {}", j.attempt);
  }
  out += j.up_s != 0 ? ", up " + duration_text(j.up_s) : "";  // lines of nodes do not tell
  return left(out, style.width - std::min(style.width, style.time.size() + 1)) + " " + style.time;
}

std::string step_line(const JobNow& j) {
  if (!j.first_step) {
    return "steps: the program does not tell (fr.step)";
  }
  std::string out = *j.first_step == *j.last_step
                        ? fmt::format("step {}", *j.first_step)
                        : fmt::format("steps {} to {}", *j.first_step, *j.last_step);
  return j.steps_per_min ? out + fmt::format(", {} a minute", rate_text(*j.steps_per_min)) : out;
}

// Widths of the first columns; the last column takes the rest of the line.
struct Widths {
  std::size_t group, at;
  explicit Widths(std::size_t width)
      : group(std::clamp<std::size_t>(width / 5, 12, 26)), at(width < 100 ? 16 : 30) {}
};

std::string group_line(const GroupNow& g, const Widths& w, std::size_t width) {
  const std::string label = g.groups > 1 ? fmt::format("{} ({})", g.label, g.groups) : g.label;
  const std::string behind =
      g.lag == 0 ? "" : fmt::format("{} by {}", ranks_words(g.behind), g.lag);
  std::string out = fmt::format("{} {:>6} {} {:>8} {:>6} {:>8}  ", left(label, w.group), g.ranks,
                                left(g.at, w.at), g.per_s ? rate_text(*g.per_s) : "", g.in_flight,
                                g.still_s ? duration_text(*g.still_s) : "");
  return shortened(out + printable(behind), width);
}

std::string rank_line(const RankNow& r, std::size_t width) {
  std::string out = fmt::format("{} (pid {}){}", r.rank < 0 ? "a rank" : ranks_words({r.rank}),
                                r.pid, r.alive ? "" : " is dead");
  if (r.lag != 0) {
    out += fmt::format(", {} behind in {}", r.lag, r.group);
  }
  if (r.step) {
    out += fmt::format(", at step {}", *r.step);
  }
  out += r.last.empty() ? ", issued nothing"
                        : fmt::format(", issued {} {} ago", r.last, duration_text(r.last_s));
  return shortened(printable(out), width);
}

std::vector<std::string> lines_of(const std::string& text, std::size_t width) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    out.push_back(shortened(line, width));
  }
  return out;
}

}  // namespace

std::vector<std::string> screen_lines(const JobNow& j, const std::string& verdict,
                                      const ScreenStyle& style) {
  std::vector<std::string> said = lines_of(verdict, style.width);
  const std::size_t ranks = std::min(kMostBehind, j.behind.size());
  const Widths w(style.width);
  std::size_t room = j.groups.size();
  if (style.height != 0) {
    said.resize(std::min(said.size(), std::max(kMostVerdictLines, style.height / 3)));
    // title, steps, a blank, header, two blanks, what is left out
    const std::size_t taken = 7 + said.size() + ranks + (j.behind.size() > ranks ? 1 : 0);
    room = style.height > taken ? style.height - taken : 1;
  }
  const std::size_t first =
      std::min(style.scrolled, j.groups.size() - std::min(room, j.groups.size()));
  std::vector<std::string> out{bold(head_line(j, style), style), step_line(j), ""};
  const std::string header =
      fmt::format("{} {:>6} {} {:>8} {:>6} {:>8}  {}", left("GROUP", w.group), "RANKS",
                  left("FURTHEST", w.at), "A SECOND", "BUSY", "STILL", "LAST");
  out.push_back(bold(shortened(header, style.width), style));
  for (std::size_t k = first; k < std::min(first + room, j.groups.size()); ++k) {
    out.push_back(group_line(j.groups[k], w, style.width));
  }
  if (room < j.groups.size()) {
    out.push_back(fmt::format("{} more groups above, {} below", first,
                              j.groups.size() - std::min(first + room, j.groups.size())));
  }
  if (ranks != 0) {
    out.emplace_back();
    for (std::size_t k = 0; k < ranks; ++k) {
      const std::string line = rank_line(j.behind[k], style.width);
      out.push_back(j.behind[k].alive ? line : red(line, style));
    }
    if (j.behind.size() > ranks) {
      out.push_back(fmt::format("and {} more ranks", j.behind.size() - ranks));
    }
  }
  out.emplace_back();
  out.insert(out.end(), said.begin(), said.end());
  if (style.height != 0 && out.size() > style.height) {
    out.resize(style.height);
  }
  return out;
}

}  // namespace frtrace
