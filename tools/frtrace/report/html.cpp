// html.cpp - the page: the verdict as plain HTML, everything else as JSON for the page's script.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <initializer_list>

#include "model/contains.hpp"
#include "report/lines.hpp"
#include "report/page.hpp"
#include "report/render.hpp"

namespace frtrace {

extern const char* const kPageTemplate;  // html/embed.cmake

std::string html_escaped(std::string_view text) {
  std::string out;
  for (const char ch : text) {
    switch (ch) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += ch;
    }
  }
  return out;
}

std::string script_json(std::string json) {
  std::string out;
  out.reserve(json.size());
  for (const char ch : json) {
    if (ch == '<') {
      out += "\\u003c";
    } else {
      out += ch;
    }
  }
  return out;
}

namespace {

// Escapes text that comes from evidence.
std::string shown(std::string_view text) {
  return html_escaped(printable(text));
}

std::string time_words(Time t) {
  if (t <= 0) {
    return "time not known";
  }
  const std::time_t seconds = static_cast<std::time_t>(t / kSecond);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  return fmt::format("{:%Y-%m-%d %H:%M:%S %Z}", local);
}

void list(std::string& out, const std::vector<std::string>& lines) {
  if (lines.empty()) {
    return;
  }
  out += "<ul>\n";
  for (const std::string& line : lines) {
    out += "<li>" + shown(line) + "</li>\n";
  }
  out += "</ul>\n";
}

void findings(std::string& out, const Report& r, const char* title,
              std::initializer_list<std::string_view> ids) {
  constexpr std::size_t kMost = 12;
  std::vector<std::string> lines;
  std::size_t more = 0;
  for (const Finding& f : r.findings) {
    if (std::find(ids.begin(), ids.end(), f.id) != ids.end()) {
      lines.size() < kMost ? lines.push_back(f.text) : void(++more);
    }
  }
  if (lines.empty()) {
    return;
  }
  if (more != 0) {
    lines.push_back(fmt::format("and {} more", more));
  }
  out += fmt::format("<h3>{}</h3>\n", title);
  list(out, lines);
}

void blamed_list(std::string& out, const Report& r) {
  constexpr std::size_t kMost = 8, kEvidence = 12;
  for (std::size_t k = 0; k < r.blamed.size() && k < kMost; ++k) {
    const Blamed& b = r.blamed[k];
    out += fmt::format("<div class=\"blamed\"><h3>rank {}", b.rank);
    if (!b.host.empty() || b.pid != 0) {
      out += fmt::format(" <span>host {}, pid {}</span>", shown(b.host), b.pid);
    }
    out += "</h3>\n";
    if (const std::string site = site_text(b.site); !site.empty()) {
      out += "<p class=\"site\">" + shown(site) + "</p>\n";
    }
    list(out, {b.evidence.begin(), b.evidence.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                            b.evidence.size(), kEvidence))});
    if (b.evidence.size() > kEvidence) {
      out += fmt::format("<p>and {} more lines: frtrace -v</p>\n", b.evidence.size() - kEvidence);
    }
    out += "</div>\n";
  }
  if (r.blamed.size() > kMost) {
    out += fmt::format("<p>and {} more blamed ranks</p>\n", r.blamed.size() - kMost);
  }
}

void waiting_list(std::string& out, const Report& r) {
  constexpr std::size_t kMost = 6;
  std::vector<std::string> lines = waiting_lines(r);
  if (lines.empty()) {
    return;
  }
  if (const std::size_t all = lines.size(); all > kMost) {
    lines.resize(kMost);
    lines.push_back(fmt::format("and {} more operations that ranks wait in", all - kMost));
  }
  out += "<h3>Who waits</h3>\n";
  list(out, lines);
}

void doctor_list(std::string& out, const Report& r) {
  if (r.doctor.empty()) {
    return;
  }
  std::vector<std::string> lines;
  for (const DoctorReport& d : r.doctor) {
    lines.push_back(fmt::format("{}: {}; {}", d.name, d.value, d.remedy));
  }
  out += "<h3>This machine, by frtrace doctor</h3>\n";
  list(out, lines);
}

std::string article(const Report& r, bool named) {
  std::string kind = verdict_name(r.kind);
  std::string out = fmt::format("<article class=\"verdict k-{}\">\n", kind);
  std::transform(kind.begin(), kind.end(), kind.begin(),
                 [](unsigned char ch) { return static_cast<char>(std::toupper(ch)); });
  out += "<p class=\"kind\">" + kind + "</p>\n";
  out +=
      fmt::format("<h1>{}{}</h1>\n", named ? "job " + shown(r.job) + ": " : "", shown(r.summary));
  std::string sure;
  for (const Finding& f : r.findings) {
    sure += f.id == "confidence" ? (sure.empty() ? "" : "; ") + f.text : "";
  }
  out += fmt::format(
      "<p class=\"meta\"><b>{}</b>{}<br>{} {}; job {}, attempt {}, incident {}; "
      "evidence of {} of {} ranks</p>\n",
      confidence_name(r.confidence), sure.empty() ? "" : ": " + shown(sure),
      r.kind == Verdict::kOk || r.kind == Verdict::kSlow ? "as of" : "since", time_words(r.time),
      shown(r.job), r.attempt, r.incident, r.read, r.expected);
  blamed_list(out, r);
  findings(out, r, "Other causes", {"cause"});
  findings(out, r, "Why", {"why", "hint", "parted", "counts"});
  findings(out, r, "Said while the job ran", {"told"});
  waiting_list(out, r);
  findings(out, r, "Devices and links", {"link", "device"});
  findings(out, r, "What would decide it", {"need"});
  findings(out, r, "Elsewhere", {"elsewhere"});
  doctor_list(out, r);
  findings(out, r, "Not to blame", {"excluded", "chain"});
  findings(out, r, "Restarts within the processes", {"restart"});
  findings(out, r, "Errors and ends", {"was_late", "ended", "end", "consequence", "error"});
  findings(out, r, "Remarks", {"attempt", "earlier", "ras", "context", "input"});
  findings(out, r, "What was lost or not recorded", {"lost", "hole"});
  return out + "</article>\n";
}

std::vector<const Report*> worst_first(const std::vector<Report>& reports) {
  std::vector<const Report*> out;
  for (const Report& r : reports) {
    out.push_back(&r);
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Report* a, const Report* b) { return severity(*a) > severity(*b); });
  return out;
}

std::string verdict_section(const Page& page) {
  std::string out = "<section id=\"verdict\" aria-label=\"Verdict\">\n";
  constexpr std::size_t kMost = 16;
  const std::vector<const Report*> order = worst_first(page.reports);
  for (std::size_t k = 0; k < order.size() && k < kMost; ++k) {
    out += article(*order[k], order.size() > 1);
  }
  if (order.size() > kMost) {
    out += fmt::format("<p>and {} more jobs</p>\n", order.size() - kMost);
  }
  out += "<details id=\"as-text\"><summary>The verdict as text</summary>\n<pre id=\"text\">";
  // An HTML parser drops the first newline of <pre>.
  out += "\n" + html_escaped(page.text) + "</pre></details>\n";
  const std::string where = shown(page.where);
  out += fmt::format(
      "<details id=\"commands\"><summary>Commands to go on with</summary>\n<pre>"
      "frtrace -v {0}\nfrtrace --stacks {0}\nfrtrace -j {0}\nfrtrace --json {0}</pre></details>\n",
      where);
  return out + "</section>\n";
}

// Marks of the template do not occur in inserted text: '<' is escaped there.
void fill(std::string& page, std::string_view mark, const std::string& with) {
  if (const std::size_t at = page.find(mark); at != std::string::npos) {
    page.replace(at, mark.size(), with);
  }
}

}  // namespace

std::string render_html(const Page& page) {
  std::string out = kPageTemplate;
  const Report& worst = *worst_first(page.reports).front();
  std::string data = "[";
  for (const std::string& one : page.data) {
    data += (data.size() == 1 ? "" : ",") + one;
  }
  // From the end, so that an insertion does not move the marks that are still to be found.
  fill(out, "<!--DATA-->", script_json(data + "]"));
  fill(out, "<!--REPORT-->", script_json(render_json(page.reports, page.input, {}, -1)));
  fill(out, "<!--VERDICT-->", verdict_section(page));
  fill(out, "<!--TITLE-->", shown(fmt::format("{}: {} - fr", worst.job, verdict_name(worst.kind))));
  return out;
}

}  // namespace frtrace
