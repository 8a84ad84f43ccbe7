// test_html.cpp - the page: its texts are those of the other renderers, and none is markup.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "builder.hpp"
#include "catch.hpp"
#include "facts/facts.hpp"
#include "report/page.hpp"
#include "report/render.hpp"

using namespace frtest;

namespace {

struct Made {
  std::string page, text, json;
};

Made make(const std::vector<std::unique_ptr<RankEvidence>>& evidence,
          const std::vector<DoctorReport>& doctor = {}) {
  const std::vector<Case> cases = make_cases(evidence, {});
  std::vector<Report> reports;
  std::vector<std::string> data;
  for (const Case& c : cases) {
    const Facts facts(c);
    reports.push_back(diagnose(facts));
    reports.back().doctor = doctor;
    data.push_back(page_data(facts, reports.back(), merge_stacks(stack_inputs(c, {}))));
  }
  const LoadResult input;
  TextStyle style;
  style.where = "dumps";
  Made out{"", render_text(reports, input, style), render_json(reports, input)};
  out.page = render_html({reports, input, data, out.text, style.where});
  return out;
}

std::vector<std::unique_ptr<RankEvidence>> hung(int ranks) {
  JobBuilder j(ranks);
  j.all(20, JobBuilder::kWorld, {});
  for (Rank r = 0; r < ranks; ++r) {
    if (r != 2) {
      j.issue(r, JobBuilder::kWorld, {});
    }
  }
  j.advance(70);
  return j.take();
}

// The text between two marks.
std::string part(const std::string& page, const std::string& from, const std::string& to) {
  const std::size_t a = page.find(from);
  REQUIRE(a != std::string::npos);
  const std::size_t b = page.find(to, a + from.size());
  REQUIRE(b != std::string::npos);
  return page.substr(a + from.size(), b - a - from.size());
}

std::string unescaped(std::string s) {
  for (const auto& [from, to] :
       {std::pair{"&lt;", "<"}, std::pair{"&gt;", ">"}, std::pair{"&quot;", "\""},
        std::pair{"&#39;", "'"}, std::pair{"&amp;", "&"}}) {
    s = std::regex_replace(s, std::regex(from), to);
  }
  return s;
}

}  // namespace

TEST_CASE("the page has what the doctor found on this machine, as text") {
  const std::string page = make(hung(4), {{"mtu", "MTU", "<9000>", "set it"}}).page;
  CHECK(part(page, "by frtrace doctor</h3>\n<ul>\n<li>", "</li>") == "MTU: &lt;9000&gt;; set it");
  CHECK(make(hung(4)).page.find("by frtrace doctor</h3>") == std::string::npos);
}

TEST_CASE("the page has the verdict as text and the report as JSON") {
  const Made m = make(hung(4));
  CHECK(unescaped(part(m.page, "<pre id=\"text\">\n", "</pre>")) == m.text);
  CHECK(nlohmann::json::parse(part(m.page, "id=\"report\">", "</script>")) ==
        nlohmann::json::parse(m.json));
  const nlohmann::json data = nlohmann::json::parse(part(m.page, "id=\"data\">", "</script>"));
  REQUIRE(data.size() == 1);
  // 20 of all ranks; the 21st of all but rank 2
  CHECK(data[0]["frontiers"][0][0] == nlohmann::json({21, 2, 20, 1, 21, 1}));
  CHECK(data[0]["waits"]["graph"]["edges"].size() == 2);
}

TEST_CASE("the page shows the longest waits that any rank learned, longest first") {
  auto evidence = hung(4);
  const auto data = [&] {
    return nlohmann::json::parse(part(make(evidence).page, "id=\"data\">", "</script>"))[0];
  };
  CHECK(data()["deadlines"] == nlohmann::json({{"all", 0}, {"shown", nlohmann::json::array()}}));
  evidence[0]->deadlines = {{"all_reduce at a.py:3", 20, 1500, 0, 200, 1, 0, 0},
                            {"barrier at b.py:7", 2, 90'000, 90'000, 0, 0, 0, 0}};
  evidence[3]->deadlines = {{"all_reduce at a.py:3", 21, 1200, 1100, 400, 0, 1, 1}};
  const nlohmann::json page = data();
  const auto row = [&](int i) {
    nlohmann::json out = page["deadlines"]["shown"][i];
    out[0] = page["s"][out[0].get<std::size_t>()];
    return out;
  };
  CHECK(page["deadlines"]["all"] == 2);
  CHECK(row(0) == nlohmann::json({"barrier at b.py:7", 2, 90'000, 90'000, 0, 0, 0, 0}));
  CHECK(row(1) == nlohmann::json({"all_reduce at a.py:3", 21, 1500, 1100, 400, 1, 1, 1}));
  // the rank's later evidence shows that the wait ended
  auto over = std::make_unique<RankEvidence>(*evidence[3]);
  over->file = "job.a0.r3.1.later.fr";
  over->trigger = Trigger::kWentOn;
  over->written += kSecond;
  over->deadlines[0].absent_ms = 60'000;
  evidence.push_back(std::move(over));
  CHECK(data()["deadlines"]["shown"][1][2] == 60'000);
}

TEST_CASE("text of evidence is no markup of the page") {
  const std::string hostile =
      "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
      "<!--DATA--><!--VERDICT-->]]>\xe2\x80\xae\x1b[0m";
  auto evidence = hung(4);
  for (const auto& e : evidence) {
    e->id.host += hostile;
    e->id.job = hostile;
    e->file += hostile;
    e->options.emplace_back("FR_STACKS" + hostile, hostile);
    e->deadlines.push_back({.site = hostile, .absent_ms = 2000});
    for (std::size_t i = 1; i < e->strings.size(); ++i) {
      e->strings.edit()[i] += hostile;
    }
  }
  const Made m = make(evidence);
  CHECK(m.page.find("<script>alert") == std::string::npos);
  CHECK(m.page.find("<img") == std::string::npos);
  CHECK(m.page.find("\x1b") == std::string::npos);
  CHECK(m.page.find("\xe2\x80\xae") == std::string::npos);
  // the template's own, all of them
  const auto count = [&](const std::string& mark) {
    std::size_t n = 0;
    for (std::size_t at = m.page.find(mark); at != std::string::npos;
         at = m.page.find(mark, at + 1)) {
      ++n;
    }
    return n;
  };
  CHECK(count("<script") == 3);
  CHECK(count("</script") == 3);
  CHECK(count("<!--") == 0);
  CHECK(unescaped(part(m.page, "<pre id=\"text\">\n", "</pre>")) == m.text);
  CHECK_NOTHROW(nlohmann::json::parse(part(m.page, "id=\"data\">", "</script>")));
}

TEST_CASE("the page asks for nothing, and its own code is small") {
  const Made m = make(hung(4));
  const std::string policy = part(m.page, "Content-Security-Policy\" content=\"", "\"");
  CHECK(policy.find("default-src 'none'") == 0);
  CHECK(policy.find("unsafe") == std::string::npos);
  CHECK(policy.find("http") == std::string::npos);
  CHECK_FALSE(std::regex_search(m.page, std::regex("(src|href)=\"[^#]")));
  CHECK(m.page.size() < 300'000);
}

TEST_CASE("a page grows by what ranks differ in") {
  CHECK(make(hung(256)).page.size() - make(hung(16)).page.size() < 240 * 400);
}

TEST_CASE("unfinished, empty and odd evidence makes a page, too") {
  std::vector<std::unique_ptr<RankEvidence>> bare;
  bare.push_back(std::make_unique<RankEvidence>());
  bare.back()->id.rank = 0;
  CHECK_FALSE(make(bare).page.empty());
  constexpr Time kLatest = (Time{1} << 62) - 1;  // that a loader lets through
  auto evidence = hung(4);
  for (Record& r : evidence[1]->records) {
    r.time = kLatest;
    r.ended = 1;
  }
  evidence[2]->id.host = "other";
  evidence[2]->written = kLatest;
  evidence[3].reset();
  std::erase(evidence, nullptr);
  CHECK_FALSE(make(evidence).page.empty());
}
