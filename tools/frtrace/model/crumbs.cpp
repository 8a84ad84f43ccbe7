#include "model/crumbs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>

#include "format/call_site.hpp"
#include "model/generations.hpp"

namespace frtrace {

namespace {

// Prefixes of notes that the Python package writes: for fr.trace_calls "-> function file:line" and
// "<- ...", for exceptions that user code handled, for threads that died, for the recorder's own.
constexpr std::string_view kIn = "-> ", kOut = "<- ", kCaught = "caught ",
                           kDied = "exception in thread ", kOwn = "fr: ";

// The traced calls that are open in the thread that wrote the last such note, and the last call it
// entered; "" without such notes.
std::string traced_calls(const RankEvidence& e) {
  const auto call = [&](const Record& r) {
    const std::string_view text = r.kind == Kind::kNote ? e.text(r.op) : std::string_view();
    return text.starts_with(kIn) || text.starts_with(kOut) ? text : std::string_view();
  };
  const auto last = std::find_if(e.records.rbegin(), e.records.rend(),
                                 [&](const Record& r) { return !call(r).empty(); });
  if (last == e.records.rend()) {
    return {};
  }
  std::vector<std::string_view> inside;
  std::string_view entered;
  for (const Record& r : e.records) {
    const std::string_view text = r.tid == last->tid ? call(r) : std::string_view();
    if (text.starts_with(kIn)) {
      entered = text.substr(kIn.size());
      inside.push_back(entered);
    } else if (!text.empty() && !inside.empty() && inside.back() == text.substr(kOut.size())) {
      inside.pop_back();
    }
  }
  const auto shown = [&](std::string_view what) {  // "collate /home/u/train.py:206"
    const std::size_t file = std::min(what.rfind(" /"), what.size() - 1) + 1;
    return fmt::format("{}{}", what.substr(0, file), short_file(what.substr(file), e.id.cwd));
  };
  std::string out = "traced calls: last entered " + shown(entered);
  out += inside.empty() || inside.back() != entered ? ", left again" : "";
  constexpr std::size_t kShown = 4;
  for (std::size_t k = 0; k < inside.size() && k < kShown; ++k) {
    out += (k == 0 ? "; inside " : " < ") + shown(inside[inside.size() - 1 - k]);
  }
  return out;
}

// "caught OSError at load.py:23 in fetch: no such shard, 2.0 s before its last operation": the last
// exception handled since the process made its groups; "" if there is none.
std::string last_caught(const RankEvidence& e) {
  const std::vector<Restart> restarts = restarts_of(e);
  const Time since = restarts.empty() ? 0 : restarts.back().destroyed;
  Time last_operation = 0;
  const Record* caught = nullptr;
  for (const Record& r : e.records) {
    if (r.kind != Kind::kNote) {
      last_operation = std::max(last_operation, r.time);
    } else if (r.time > since && e.text(r.op).starts_with(kCaught) &&
               (caught == nullptr || r.time > caught->time)) {
      caught = &r;
    }
  }
  if (caught == nullptr || last_operation == 0) {
    return caught == nullptr ? "" : std::string(e.text(caught->op));
  }
  const auto [from, to] = std::minmax(caught->time, last_operation);
  return fmt::format("{}; that was {} {} its last operation", e.text(caught->op),
                     duration_text(seconds_between(from, to)),
                     caught->time < last_operation ? "before" : "after");
}

// "step 20 (the others at step 21)"; "" if the program does not report its steps
std::string step_text(const Case& c, const RankEvidence& e) {
  if (!e.has_step) {
    return {};
  }
  std::int64_t low = INT64_MAX, high = INT64_MIN;
  for (const RankEvidence* other : c.ranks) {
    if (other != &e && other->has_step && other->incident >= e.incident) {  // none of before
      low = std::min<std::int64_t>(low, other->step);
      high = std::max<std::int64_t>(high, other->step);
    }
  }
  return fmt::format("step {}", e.step) +
         (low == high && low != e.step ? fmt::format(" (the others at step {})", low)
          : low < high                 ? fmt::format(" (the others at steps {} to {})", low, high)
                                       : "");
}

// An exception ended the thread, by the note that it left.
bool has_died(const RankEvidence& e, const ThreadNotes& n) {
  return n.tid != static_cast<std::uint32_t>(e.id.pid) && n.note.starts_with(kDied);
}

// Example: last note "building extension", step 20, span "startup" open for 15.0 s
std::string note_text(const RankEvidence& e, const ThreadNotes& n, bool main,
                      const std::string& step) {
  std::string text;
  const auto add = [&text](const std::string& part) {
    text += (text.empty() || part.empty() ? "" : ", ") + part;
  };
  const bool told = n.note.starts_with(kCaught) || n.note.starts_with(kOwn) || has_died(e, n);
  if (!n.note.empty() && !told) {
    add(fmt::format("last note \"{}\"", n.note));
  }
  add(main ? step : "");
  std::string spans;
  for (const auto& [name, since] : n.spans) {
    spans += fmt::format("{}\"{}\"", spans.empty() ? "span " : " > ", name);
  }
  if (!spans.empty()) {
    const Time since = n.spans.back().second;
    add(spans + " open" +
        (since != 0 && e.written > since
             ? fmt::format(" for {}", duration_text(seconds_between(since, e.written)))
             : ""));
  }
  return text;
}

}  // namespace

bool has_died(const RankEvidence& e, std::uint32_t tid) {
  return std::ranges::any_of(e.notes,
                             [&](const ThreadNotes& n) { return n.tid == tid && has_died(e, n); });
}

std::vector<std::string> died_lines(const RankEvidence& e) {
  std::vector<const ThreadNotes*> died;
  for (const ThreadNotes& n : e.notes) {
    if (has_died(e, n)) {
      died.push_back(&n);
    }
  }
  std::ranges::stable_sort(died, {}, &ThreadNotes::note_time);
  constexpr std::size_t kShown = 3;
  std::vector<std::string> out;
  for (const ThreadNotes* n : died) {
    const std::string_view what = std::string_view(n->note).substr(kDied.size());
    const std::size_t colon = std::min(what.find(": "), what.size());
    const std::string error(what.substr(std::min(colon + 2, what.size())));
    std::string line = fmt::format("its thread {} died{}{}", what.substr(0, colon),
                                   error.empty() ? "" : " of ", error);
    if (out.size() < kShown && std::ranges::find(out, line) == out.end()) {
      out.push_back(std::move(line));
    }
  }
  return out;
}

std::vector<std::string> crumb_lines(const Case& c, const RankEvidence& e) {
  std::vector<std::string> out;
  const auto is_main = [&](const ThreadNotes* n) {
    return n->tid == static_cast<std::uint32_t>(e.id.pid);
  };
  // The main thread, then threads inside a span, then the thread with the latest note.
  const auto order = [&](const ThreadNotes* n) {
    return std::tuple(!is_main(n), n->spans.empty(), -n->note_time);
  };
  std::vector<const ThreadNotes*> notes;
  for (const ThreadNotes& n : e.notes) {
    notes.push_back(&n);
  }
  std::stable_sort(notes.begin(), notes.end(),
                   [&](const ThreadNotes* x, const ThreadNotes* y) { return order(x) < order(y); });
  const std::string step = step_text(c, e);
  if (!step.empty() && (notes.empty() || !is_main(notes.front()))) {
    out.push_back("at " + step);
  }
  std::set<std::string> told;
  constexpr std::size_t kShown = 4;
  for (const ThreadNotes* n : notes) {
    const std::string text = note_text(e, *n, is_main(n), step);
    if (!text.empty() && told.insert(text).second && told.size() <= kShown) {
      out.push_back(text == step ? "at " + text
                    : is_main(n) ? text
                                 : fmt::format("thread {}: {}", n->tid, text));
    }
  }
  if (told.size() > kShown) {
    out.push_back(fmt::format("and last notes of {} more threads", told.size() - kShown));
  }
  for (const std::string& text : {last_caught(e), traced_calls(e)}) {
    if (!text.empty()) {
      out.push_back(text);
    }
  }
  return out;
}

// "raised RuntimeError: no batch", the place, and the cause.
std::vector<std::string> raised_lines(const RankEvidence& e, const std::string& exit) {
  std::vector<std::string> out{"raised " + exit};
  // the innermost frame, then frames of user code
  std::string where;
  constexpr std::size_t kShown = 4;
  std::size_t shown = 0;
  for (const std::uint32_t k :
       e.exit.stack < e.stacks.size() ? e.stacks[e.exit.stack] : Stacks::Words()) {
    if (k >= e.frames.size() || shown == kShown ||
        (shown != 0 && fr::is_library_file(e.text(e.frames[k].file)))) {
      continue;
    }
    const Frame& frame = e.frames[k];
    where += (shown++ == 0 ? "raised at " : " < ") +
             site_text({std::string(short_file(e.text(frame.file), e.id.cwd)), frame.line,
                        std::string(e.text(frame.func))});
  }
  if (!where.empty()) {
    out.push_back(std::move(where));
  }
  // fr's Python package appends the place and the first cause below the message. Other lines belong
  // to the message and continue its first line, unless that had to be cut.
  const bool cut = out.front().ends_with("...");
  const std::string& message = e.exit.message;
  std::vector<std::string> own;
  for (std::size_t at = message.find('\n'); at != std::string::npos;) {
    const std::size_t next = message.find('\n', at + 1);
    const std::size_t from = message.find_first_not_of(" \t\n", at);
    const bool place = message.compare(at, 6, "\n  at ") == 0;
    const bool cause = message.compare(at, 16, "\n  first cause: ") == 0;
    if (from < next && (cause || (place && out.size() == 1))) {
      out.push_back((cause ? "" : "raised ") + message.substr(from, next - from));
    } else if (from < next && !place && !cut && own.size() < kShown) {
      own.push_back(message.substr(from, next - from));
    }
    at = next;
  }
  std::ranges::move(own, std::back_inserter(out));
  return out;
}

}  // namespace frtrace
