// stacks_tree.cpp - merges thread stacks of all ranks and draws the tree.
#include "report/stacks_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>

#include "model/hints.hpp"
#include "report/lines.hpp"

namespace frtrace {

namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

struct Hash {
  std::size_t operator()(const std::vector<u32>& v) const {
    u64 h = v.size();
    for (const u32 x : v) {
      h = (h ^ x) * 0x9e3779b97f4a7c15ull;
      h ^= h >> 32;
    }
    return h;
  }
};

class Builder {
 public:
  explicit Builder(StackTree& to) : out_(to) {}

  static constexpr u32 kHidden = ~0u;

  u32 intern(std::string text) {
    const auto [it, fresh] =
        ids_.try_emplace(std::move(text), static_cast<u32>(out_.frames.size()));
    if (fresh) {
      out_.frames.push_back(it->first);
    }
    return it->second;
  }

  void add(const StackInput& in, const StackStyle& style) {
    // Names are interned once per rank, so that a stack is a list of numbers.
    std::vector<u32> frame(in.threads->frames.size());
    for (std::size_t i = 0; i < frame.size(); ++i) {
      const ThreadFrame& f = in.threads->frames[i];
      frame[i] = !style.plumbing && is_plumbing(f) ? kHidden : intern(frame_text(f, in.cwd));
    }
    for (const ThreadStack& t : in.threads->threads) {
      const bool main = t.tid == in.pid;
      if ((!main && !style.all_threads) || t.name.compare(0, 3, "fr-") == 0) {
        continue;
      }
      std::vector<u32> key;
      key.reserve(t.stack.size() + 4);
      // Unnamed threads of a Python process have the process's name.
      key.push_back(intern(main ? "main" : t.name.empty() ? "thread" : t.name));
      key.push_back(main ? intern(in.frontier) : intern(""));
      for (std::size_t i = t.stack.size(); i-- > 0;) {
        if (t.cut != 0 && i + 1 == t.cut_after) {
          key.push_back(intern(fmt::format("... {} more Python frames", t.cut)));
        }
        const u32 f = frame[t.stack[i]];
        if (f != kHidden) {
          key.push_back(f);
        }
      }
      if (t.stack.empty()) {
        key.push_back(intern(fmt::format("[{}]", doing_text(*in.threads, t))));
      }
      bool fresh = false;
      StackClass& c = class_of(key, in.rank, fresh);
      if (fresh) {
        c.doing = doing_text(*in.threads, t);
        if (main && in.evidence != nullptr) {
          c.where = where_lines(*in.evidence);
          std::ranges::copy(variable_lines(*in.evidence, ShownVariables::kAll),
                            std::back_inserter(c.where));
          c.lock = lock_wait(*in.evidence);
        }
      }
    }
    for (const ChildProcess& c : in.threads->children) {
      if (!c.stack.empty() && style.all_threads) {
        add_child(c, in.rank, frame);
      }
    }
  }

  void add_child(const ChildProcess& c, Rank rank, const std::vector<u32>& frame) {
    std::vector<u32> key = {intern(c.name + ", a child process"), intern("")};
    for (auto f = c.stack.rbegin(); f != c.stack.rend(); ++f) {
      if (frame[*f] != kHidden) {
        key.push_back(frame[*f]);
      }
    }
    bool fresh = false;
    StackClass& k = class_of(key, rank, fresh);
    if (fresh) {
      k.doing = fmt::format("process {}: {}{}", c.pid, fr::word(c.activity),
                            c.syscall.empty() ? "" : " in " + c.syscall);
    }
  }

  // key: role, frontier, frames.
  StackClass& class_of(const std::vector<u32>& key, Rank rank, bool& fresh) {
    const auto [it, is_new] = classes_.try_emplace(key, static_cast<u32>(out_.classes.size()));
    fresh = is_new;
    if (fresh) {
      StackClass& c = out_.classes.emplace_back();
      c.role = out_.frames[key[0]];
      c.frontier = out_.frames[key[1]];
      c.frames.assign(key.begin() + 2, key.end());
    }
    StackClass& c = out_.classes[it->second];
    c.ranks.push_back(rank);
    ++c.threads;
    return c;
  }

  void finish() {
    for (StackClass& c : out_.classes) {
      std::sort(c.ranks.begin(), c.ranks.end());
      c.ranks.erase(std::unique(c.ranks.begin(), c.ranks.end()), c.ranks.end());
    }
    std::stable_sort(out_.classes.begin(), out_.classes.end(),
                     [](const StackClass& a, const StackClass& b) {
                       const bool am = a.role == "main", bm = b.role == "main";
                       if (am != bm) {
                         return am;
                       }
                       if (a.role != b.role) {
                         return a.role < b.role;
                       }
                       return a.ranks.size() < b.ranks.size();
                     });
    out_.nodes.emplace_back();
    std::map<std::pair<u32, u32>, u32> child;
    for (u32 i = 0; i < out_.classes.size(); ++i) {
      const StackClass& c = out_.classes[i];
      if (out_.roles.empty() || out_.roles.back().name != c.role) {
        out_.roles.push_back({c.role, static_cast<u32>(out_.nodes.size()), 0});
        out_.nodes[0].children.push_back(out_.roles.back().root);
        out_.nodes.emplace_back();
      }
      u32 at = out_.roles.back().root;
      append(at, c.ranks);
      for (const u32 f : c.frames) {
        const auto [it, fresh] = child.try_emplace({at, f}, static_cast<u32>(out_.nodes.size()));
        if (fresh) {
          out_.nodes.emplace_back();
          out_.nodes.back().frame = f;
          out_.nodes[at].children.push_back(it->second);
        }
        at = it->second;
        append(at, c.ranks);
      }
      out_.nodes[at].classes.push_back(i);
    }
    for (StackNode& n : out_.nodes) {
      std::sort(n.ranks.begin(), n.ranks.end());
      n.ranks.erase(std::unique(n.ranks.begin(), n.ranks.end()), n.ranks.end());
    }
    for (StackNode& n : out_.nodes) {
      std::stable_sort(n.children.begin(), n.children.end(), [this](u32 a, u32 b) {
        return out_.nodes[a].ranks.size() < out_.nodes[b].ranks.size();
      });
    }
    for (StackTree::Role& r : out_.roles) {
      r.ranks = out_.nodes[r.root].ranks.size();
    }
  }

 private:
  void append(u32 node, const std::vector<Rank>& ranks) {
    auto& to = out_.nodes[node].ranks;
    to.insert(to.end(), ranks.begin(), ranks.end());
  }

  StackTree& out_;
  std::unordered_map<std::string, u32> ids_;
  std::unordered_map<std::vector<u32>, u32, Hash> classes_;
};

constexpr std::size_t kRankWidth = 14;

std::string short_ranks(const std::vector<Rank>& ranks) {
  std::string text = fold_ranks(ranks);
  if (text.size() > kRankWidth) {
    text = fmt::format("{} ranks", ranks.size());
  }
  return text;
}

// Indents at forks only: the path of a single rank keeps its indentation. A frame that calls itself
// is drawn once.
void draw(const StackTree& tree, u32 index, std::size_t indent, std::string& out) {
  for (;;) {
    const StackNode& n = tree.nodes[index];
    for (const u32 c : n.classes) {
      const StackClass& k = tree.classes[c];
      out += fmt::format("{:<{}} {:{}}= {}", short_ranks(k.ranks), kRankWidth, "", indent,
                         printable(k.doing));
      out += k.threads > k.ranks.size() ? fmt::format(" [{} threads]", k.threads) : "";
      out += k.frontier.empty() ? "\n" : fmt::format(" | {}\n", printable(k.frontier));
      for (std::size_t i = 1; i < k.where.size(); ++i) {
        if (k.where[i] != k.doing) {
          out +=
              fmt::format("{:{}} {:{}}  {}\n", "", kRankWidth, "", indent, printable(k.where[i]));
        }
      }
    }
    if (n.children.empty()) {
      return;
    }
    const bool fork = n.children.size() + n.classes.size() > 1;
    u32 last = 0;
    for (u32 child : n.children) {
      const std::size_t deeper = indent + (fork ? 2 : 0);
      const u32 frame = tree.nodes[child].frame;
      std::size_t times = 1;
      for (const StackNode* c = &tree.nodes[child]; c->children.size() == 1 && c->classes.empty() &&
                                                    tree.nodes[c->children[0]].frame == frame;
           c = &tree.nodes[child]) {
        child = c->children[0];
        ++times;
      }
      out += fmt::format("{:<{}} {:{}}{}{}\n", short_ranks(tree.nodes[child].ranks), kRankWidth, "",
                         deeper, printable(short_frame(tree.frames[frame])),
                         times > 1 ? fmt::format(" [{} times]", times) : "");
      if (fork) {
        draw(tree, child, deeper, out);
      }
      last = child;
    }
    if (fork) {
      return;
    }
    index = last;
  }
}

nlohmann::json node_json(const StackTree& tree, u32 index) {
  const StackNode& n = tree.nodes[index];
  nlohmann::json out = {{"ranks", fold_ranks(n.ranks)}, {"n_ranks", n.ranks.size()}};
  // One object per run of frames without a fork: nested objects would exhaust a reader's stack.
  nlohmann::json run = nlohmann::json::array();
  u32 at = index;
  for (;;) {
    if (at != index || tree.nodes[at].frame != 0) {
      run.push_back(tree.frames[tree.nodes[at].frame]);
    }
    const StackNode& x = tree.nodes[at];
    if (x.children.size() != 1 || !x.classes.empty()) {
      break;
    }
    at = x.children[0];
  }
  out["frames"] = std::move(run);
  if (!tree.nodes[at].classes.empty()) {
    out["classes"] = tree.nodes[at].classes;
  }
  for (const u32 child : tree.nodes[at].children) {
    out["children"].push_back(node_json(tree, child));
  }
  return out;
}

}  // namespace

std::vector<StackInput> stack_inputs(const Case& c, const std::vector<Rank>& only) {
  std::vector<StackInput> out;
  for (const RankEvidence* e : c.ranks) {
    if (!only.empty() && std::find(only.begin(), only.end(), e->id.rank) == only.end()) {
      continue;
    }
    StackInput& in = out.emplace_back();
    in.rank = e->id.rank;
    in.pid = e->id.pid;
    in.cwd = e->id.cwd;
    in.threads = &e->threads;
    in.evidence = e;
    for (auto r = e->records.rbegin(); r != e->records.rend(); ++r) {
      if (r->kind != Kind::kCollective && r->kind != Kind::kSend && r->kind != Kind::kRecv) {
        continue;
      }
      const GroupEvidence* g = r->group < e->groups.size() ? &e->groups[r->group] : nullptr;
      const std::string_view desc = g != nullptr ? e->text(g->desc) : std::string_view();
      const std::string_view name = g != nullptr ? e->text(g->name) : std::string_view();
      const bool ended = r->state == State::kCompleted || r->state == State::kFailed ||
                         r->state == State::kReleased;
      in.frontier = fmt::format("{} #{} of {}, {}", e->text(r->op), r->seq,
                                desc.empty() ? name : desc, ended ? "ended" : "in flight");
      break;
    }
  }
  return out;
}

namespace {

StackTree::Look look_of(const StackInput& in) {
  const ThreadsEvidence& t = *in.threads;
  StackTree::Look look;
  look.rank = in.rank;
  look.took_ms = static_cast<double>(t.took_ns) / 1e6;
  look.asking_ms = static_cast<double>(t.asking_ns) / 1e6;
  look.threads = t.threads.size();
  look.lost = t.threads_lost + t.frames_lost + t.modules_lost;
  look.not_asked = t.not_asked;
  look.holes = in.evidence != nullptr ? thread_holes(*in.evidence) : std::string();
#ifndef FR_HAVE_LIBDW
  for (std::size_t i = 0; i < t.frames.size(); ++i) {
    if (!t.frames[i].python && t.frames[i].function.empty()) {
      look.holes += fmt::format("{}file+0x...: this frtrace has no libdw, which would name these",
                                look.holes.empty() ? "" : "; ");
      break;
    }
  }
#endif
  std::vector<std::uint32_t> answers;
  for (const ThreadStack& s : t.threads) {
    if (s.answer == fr::Answer::kAnswered) {
      answers.push_back(s.answer_us);
    }
  }
  std::sort(answers.begin(), answers.end());
  look.answered = answers.size();
  look.median_us = answers.empty() ? 0 : answers[answers.size() / 2];
  look.slowest_us = answers.empty() ? 0 : answers.back();
  return look;
}

}  // namespace

StackTree merge_stacks(const std::vector<StackInput>& inputs, const StackStyle& style) {
  StackTree out;
  Builder builder(out);
  builder.intern("");  // 0
  for (const StackInput& in : inputs) {
    ++out.n_ranks;
    if (in.threads == nullptr || in.threads->threads.empty()) {
      ++out.without;
      continue;
    }
    builder.add(in, style);
    out.looks.push_back(look_of(in));
  }
  builder.finish();
  return out;
}

std::string render_stacks_text(const StackTree& tree) {
  std::string out;
  for (const StackTree::Role& role : tree.roles) {
    const std::size_t classes = static_cast<std::size_t>(
        std::count_if(tree.classes.begin(), tree.classes.end(),
                      [&](const StackClass& c) { return c.role == role.name; }));
    out += fmt::format(
        "{}{} of {} rank{}, {}\n",
        role.name == "main" ? "main thread" : "thread " + printable(role.name),
        role.name == "main" ? "s" : "", role.ranks, role.ranks == 1 ? "" : "s",
        classes == 1 ? "all with the same stack" : fmt::format("{} different stacks", classes));
    draw(tree, role.root, 0, out);
    out += '\n';
  }
  std::map<std::string, std::vector<Rank>> holes;
  for (const StackTree::Look& l : tree.looks) {
    if (!l.not_asked.empty()) {
      holes["threads were not sampled: " + l.not_asked].push_back(l.rank);
    }
    if (l.lost != 0) {
      holes[fmt::format("{} threads, frames or files found no room", l.lost)].push_back(l.rank);
    }
    if (!l.holes.empty()) {
      holes[l.holes].push_back(l.rank);
    }
  }
  for (const auto& [text, ranks] : holes) {
    out += fmt::format("{}: {}\n", ranks_words(ranks), printable(text));
  }
  if (tree.without != 0) {
    out += fmt::format("{} of {} ranks: no stacks in their evidence\n", tree.without, tree.n_ranks);
  }
  return out;
}

std::string render_stacks_json(const StackTree& tree) {
  nlohmann::json out = {{"schema", "frtrace.stacks/1"},
                        {"n_ranks", tree.n_ranks},
                        {"without", tree.without},
                        {"looks", nlohmann::json::array()},
                        {"classes", nlohmann::json::array()},
                        {"roles", nlohmann::json::array()}};
  for (const StackClass& c : tree.classes) {
    nlohmann::json frames = nlohmann::json::array();
    for (const u32 f : c.frames) {
      frames.push_back(tree.frames[f]);
    }
    out["classes"].push_back({{"role", c.role},
                              {"ranks", fold_ranks(c.ranks)},
                              {"n_ranks", c.ranks.size()},
                              {"threads", c.threads},
                              {"doing", c.doing},
                              {"where", c.where},
                              {"frontier", c.frontier},
                              {"stack", std::move(frames)}});
  }
  for (const StackTree::Look& l : tree.looks) {
    out["looks"].push_back({{"rank", l.rank},
                            {"took_ms", l.took_ms},
                            {"asking_ms", l.asking_ms},
                            {"threads", l.threads},
                            {"answered", l.answered},
                            {"median_us", l.median_us},
                            {"slowest_us", l.slowest_us},
                            {"lost", l.lost},
                            {"holes", l.holes},
                            {"not_asked", l.not_asked}});
  }
  for (const StackTree::Role& role : tree.roles) {
    out["roles"].push_back({{"name", role.name}, {"tree", node_json(tree, role.root)}});
  }
  // ASCII: a terminal would obey C1 controls, which JSON allows.
  return out.dump(1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace frtrace
