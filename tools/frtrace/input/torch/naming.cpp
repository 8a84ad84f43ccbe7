#include "input/torch/naming.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>

namespace frtrace {

namespace {

// ---------------------------------------------------------------- numbers in file names

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string_view without_ending(std::string_view name) {
  static constexpr std::string_view kEndings[] = {".pkl",  ".pickle", ".json", ".bin", ".pt",
                                                  ".dump", ".trace",  ".txt",  ".fr"};
  for (const std::string_view e : kEndings) {
    if (name.size() > e.size() && name.substr(name.size() - e.size()) == e) {
      return name.substr(0, name.size() - e.size());
    }
  }
  return name;
}

struct Number {
  std::size_t at = std::string_view::npos, end = 0;
  int value = -1;
};

Number number_at(std::string_view s, std::size_t at) {
  Number n;
  const auto parsed = std::from_chars(s.data() + at, s.data() + s.size(), n.value);
  if (parsed.ec == std::errc()) {
    n.at = at;
    n.end = static_cast<std::size_t>(parsed.ptr - s.data());
  }
  return n;
}

// "rank3", "rank_3", "rank-3", "rank=3"; not "local_rank_3".
Number after_rank(std::string_view s) {
  Number found;
  std::string lower(s);
  for (char& c : lower) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (std::size_t at = lower.find("rank"); at != std::string::npos;
       at = lower.find("rank", at + 1)) {
    if (at >= 6 && lower.compare(at - 6, 5, "local") == 0) {
      continue;
    }
    std::size_t digits = at + 4;
    if (digits < s.size() && (s[digits] == '_' || s[digits] == '-' || s[digits] == '=')) {
      ++digits;
    }
    if (digits < s.size() && is_digit(s[digits])) {
      found = number_at(s, digits);
    }
  }
  return found;
}

bool is_separator(char c) {
  return c == '_' || c == '-' || c == '.' || c == '=';
}

// "_dump_3", "trace_r3_20260821": the digits after a separate word.
Number after_word(std::string_view s, std::string_view word) {
  for (std::size_t at = s.find(word); at != std::string_view::npos; at = s.find(word, at + 1)) {
    std::size_t digits = at + word.size();
    if (at != 0 && !is_separator(s[at - 1])) {
      continue;
    }
    if (word.size() > 1 && digits < s.size() && is_separator(s[digits])) {
      ++digits;
    }
    if (digits < s.size() && is_digit(s[digits])) {
      const Number n = number_at(s, digits);
      if (n.value >= 0 && (n.end == s.size() || is_separator(s[n.end]))) {
        return n;
      }
    }
  }
  return {};
}

// The last number that may be a rank; a time has more digits.
Number last_number(std::string_view s) {
  constexpr std::size_t kMaxDigits = 7;
  for (std::size_t end = s.size(); end > 0;) {
    while (end > 0 && !is_digit(s[end - 1])) {
      --end;
    }
    std::size_t begin = end;
    while (begin > 0 && is_digit(s[begin - 1])) {
      --begin;
    }
    if (end != begin && end - begin <= kMaxDigits) {
      return number_at(s, begin);
    }
    end = begin;
  }
  return {};
}

// "rank_10-0-0-5_7": the host of that address, rank 7.
bool is_host(std::string_view s, const Number& n) {
  const Number last = last_number(s);
  return n.end < s.size() && s[n.end] != '_' && last.end == s.size() && last.at > n.end &&
         s[last.at - 1] == '_';
}

std::string directory_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? "." : path.substr(0, slash));
}

std::string base_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

// ---------------------------------------------------------------- ranks by a file's content

// Looks up the ranges: groups are large and regular, and a list of ranks would be costly.
Rank at(const std::vector<RankRange>& ranges, std::int32_t position) {
  for (const RankRange& r : ranges) {
    if (static_cast<std::uint32_t>(position) < r.count) {
      return r.first + position * r.stride;
    }
    position -= static_cast<std::int32_t>(r.count);
  }
  return -1;
}

// The rank by its sends and receives, which name the sender's position in the group.
Rank rank_by_p2p(const RankEvidence& e) {
  Rank found = -1;
  for (const GroupEvidence& g : e.groups) {
    const Rank r = g.own_rank >= 0 ? at(g.ranks, g.own_rank) : -1;
    if (r >= 0 && found >= 0 && r != found) {
      return -1;  // the file contradicts itself
    }
    found = r >= 0 ? r : found;
  }
  return found;
}

// The only rank that all its groups share.
Rank rank_by_groups(const RankEvidence& e) {
  std::vector<Rank> shared;
  bool first = true;
  for (const GroupEvidence& g : e.groups) {
    if (g.ranks.empty()) {
      continue;
    }
    if (first) {
      shared = expand(g.ranks);
      first = false;
    } else {
      std::erase_if(shared, [&](Rank r) { return position(g.ranks, r) < 0; });
    }
  }
  return shared.size() == 1 ? shared.front() : -1;
}

}  // namespace

std::int32_t position(const std::vector<RankRange>& ranges, Rank rank) {
  std::int32_t before = 0;
  for (const RankRange& r : ranges) {
    const std::int64_t offset = std::int64_t{rank} - r.first;
    const std::int64_t steps = r.stride == 0 ? 0 : offset / r.stride;
    if (r.count != 0 && steps >= 0 && steps < r.count && steps * r.stride == offset) {
      return before + static_cast<std::int32_t>(steps);
    }
    before += static_cast<std::int32_t>(r.count);
  }
  return -1;
}

std::vector<RankRange> ranges(const std::vector<Rank>& list) {
  std::vector<RankRange> out;
  for (std::size_t i = 0; i < list.size();) {
    RankRange r{list[i], 1, 1};
    if (i + 1 < list.size()) {
      r.stride = list[i + 1] - list[i];
      while (i + r.count < list.size() && list[i + r.count] - list[i + r.count - 1] == r.stride) {
        ++r.count;
      }
    }
    out.push_back(r);
    i += r.count;
  }
  return out;
}

void name_ranks(const TorchSet& all, const std::vector<TorchName>& names) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    RankEvidence& e = *all[i];
    e.id.host = names[i].host;
    e.id.rank = rank_by_p2p(e);
    if (e.id.rank < 0) {
      e.id.rank = names[i].rank;
      e.holes.rank_from_name = names[i].rank >= 0;
    }
    if (e.id.rank < 0) {
      e.id.rank = rank_by_groups(e);
    }
  }
}

// The files of one job have different ranks. If two directories, or two kinds of names in one
// directory, both have a rank, they belong to different jobs.
std::map<std::string, TorchSet> name_jobs(const TorchSet& all,
                                          const std::vector<TorchName>& names) {
  using Key = std::pair<std::string, std::string>;
  std::map<std::string, std::map<std::string, TorchSet>> by_place;
  std::map<Key, std::set<Rank>> ranks;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Key key{directory_of(all[i]->file), names[i].prefix};
    by_place[key.first][key.second].push_back(all[i]);
    ranks[key].insert(all[i]->id.rank);
  }
  const auto clash = [&](auto first, auto last, auto&& ranks_of) {
    std::set<Rank> seen;
    for (; first != last; ++first) {
      for (const Rank r : ranks_of(*first)) {
        if (!seen.insert(r).second) {
          return true;
        }
      }
    }
    return false;
  };
  std::map<std::string, std::set<Rank>> of_directory;
  bool inside = false;
  for (const auto& place : by_place) {
    const std::string& dir = place.first;  // clang before 16 cannot capture bindings
    const auto& prefixes = place.second;
    inside = inside || clash(prefixes.begin(), prefixes.end(),
                             [&](const auto& p) { return ranks[{dir, p.first}]; });
    for (const auto& [prefix, set] : prefixes) {
      of_directory[dir].insert(ranks[{dir, prefix}].begin(), ranks[{dir, prefix}].end());
    }
  }
  const bool across =
      clash(of_directory.begin(), of_directory.end(), [](const auto& d) { return d.second; });
  std::map<std::string, int> base_names;
  for (const auto& [dir, prefixes] : by_place) {
    ++base_names[base_name(dir)];
  }
  std::map<std::string, TorchSet> jobs;
  for (const auto& by_prefix : by_place) {
    const std::string& dir = by_prefix.first;
    const auto& prefixes = by_prefix.second;
    const bool apart = inside && clash(prefixes.begin(), prefixes.end(),
                                       [&](const auto& p) { return ranks[{dir, p.first}]; });
    const std::string place = !across                          ? "torch"
                              : base_names[base_name(dir)] > 1 ? dir
                                                               : base_name(dir);
    for (const auto& [prefix, set] : prefixes) {
      const std::string job = apart ? (across ? place + "/" : "") + prefix : place;
      for (RankEvidence* e : set) {
        e->id.job = job;
        jobs[job].push_back(e);
      }
    }
  }
  return jobs;
}

TorchName torch_name(std::string_view path) {
  TorchName out;
  const std::string name = base_name(path);
  const std::string_view stem = without_ending(name);
  Number n = after_rank(stem);
  if (n.value >= 0 && is_host(stem, n)) {
    n = last_number(stem);
  }
  for (const std::string_view word : {"dump", "r"}) {
    n = n.value < 0 ? after_word(stem, word) : n;
  }
  if (n.value < 0) {
    n = last_number(stem);
  }
  if (n.value < 0) {
    // "rank_3/trace.pkl"
    const std::string dir = base_name(directory_of(path));
    n = after_rank(dir);
    out.rank = n.value;
    out.prefix = stem;
    return out;
  }
  out.rank = n.value;
  out.prefix = stem.substr(0, n.at);
  // "nccl_trace_rank_container-node02_5": the part in between is the host.
  const std::size_t rank = out.prefix.rfind("rank_");
  if (rank != std::string::npos) {
    std::string host = out.prefix.substr(rank + 5);
    while (!host.empty() && (host.back() == '_' || host.back() == '.')) {
      host.pop_back();
    }
    if (!host.empty()) {
      out.host = host;
      out.prefix.resize(rank + 5);
    }
  }
  return out;
}

}  // namespace frtrace
