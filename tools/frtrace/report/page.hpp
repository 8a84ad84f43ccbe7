// page.hpp - the report as one HTML file: it asks for nothing else, and works from a mail.
#pragma once

#include <string>
#include <vector>

#include "facts/facts.hpp"
#include "input/files.hpp"
#include "report/stacks_tree.hpp"
#include "words/report.hpp"

namespace frtrace {

// What the page draws of one job, beside what its report says: JSON, described in html/README.md.
std::string page_data(const Facts&, const Report&, const StackTree&);

struct Page {
  const std::vector<Report>& reports;
  const LoadResult& input;
  const std::vector<std::string>& data;  // page_data() of each
  std::string text;                      // the verdict as render_text() has it, without colour
  std::string where;                     // the paths that were read
};
std::string render_html(const Page&);

// For text of an element and for quoted attributes.
std::string html_escaped(std::string_view);
// JSON for a script element: nothing in it ends the element.
std::string script_json(std::string json);

}  // namespace frtrace
