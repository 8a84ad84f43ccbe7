// page.hpp - the report as one self-contained HTML file, which can be opened from a mail.
#pragma once

#include <string>
#include <vector>

#include "facts/facts.hpp"
#include "input/files.hpp"
#include "report/stacks_tree.hpp"
#include "words/report.hpp"

namespace frtrace {

// The data of one job that the page draws beside the report: JSON, described in html/README.md.
std::string page_data(const Facts&, const Report&, const StackTree&);

struct Page {
  const std::vector<Report>& reports;
  const LoadResult& input;
  const std::vector<std::string>& data;  // page_data() of each report
  std::string text;                      // the verdict as of render_text(), without colour
  std::string where;                     // the paths that were read
};
std::string render_html(const Page&);

// Escapes text for elements and quoted attributes.
std::string html_escaped(std::string_view);
// Makes JSON safe for a script element: nothing in it ends the element.
std::string script_json(std::string json);

}  // namespace frtrace
