// rank_data.cpp - one rank's data: shapes, sites in user code, texts.
#include "model/rank_data.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <tuple>

#include "format/call_site.hpp"
#include "fr/fr.h"
#include "recorder/options.hpp"

namespace frtrace {

namespace {

constexpr std::uint32_t kMaxGroupRanks = 1u << 22;

}  // namespace

double RankEvidence::timeout_s() const {
  fr::Options o{};
  fr::read_option(
      "FR_TIMEOUT_S",
      [&](const char* name) -> const char* {
        for (const auto& [key, value] : options) {
          if (key == name) {
            return value.c_str();
          }
        }
        return nullptr;
      },
      o);
  return static_cast<double>(o.timeout_ns) / 1e9;
}

namespace {

Site site_of(const RankEvidence& e, const Frame& f) {
  return {std::string(short_file(e.text(f.file), e.id.cwd)), f.line, std::string(e.text(f.func))};
}

Frame frame_of(const RankEvidence& e, std::uint32_t index) {
  return index < e.frames.size() ? e.frames[index] : Frame{};
}

Site found_site(const RankEvidence& e, std::uint32_t stack) {
  const Stacks::Words frames = e.stacks[stack];
  const auto frame = [&](int i) { return frame_of(e, frames[static_cast<std::size_t>(i)]); };
  const fr::UserFrame at =
      fr::user_frame(static_cast<int>(frames.size()), [&](int i) { return e.text(frame(i).file); });
  if (at.user < 0) {
    return {};
  }
  Site site = site_of(e, frame(at.user));
  if (at.within >= 0) {
    const Frame called = frame(at.within);
    site.within = fmt::format("{} {}", fr::package_of(e.text(called.file)),
                              fr::plain_name(e.text(called.func)));
  }
  return site;
}

// The sites of the last table used: all ranks of a large set share a table, and each asks for it.
struct KnownSites {
  Shared<std::vector<std::string>> strings;
  Shared<std::vector<Frame>> frames;
  Shared<Stacks> stacks;
  std::string cwd;
  std::vector<std::optional<Site>> sites;

  bool are_of(const RankEvidence& e) const {
    return &*stacks == &*e.stacks && &*frames == &*e.frames && &*strings == &*e.strings &&
           cwd == e.id.cwd;
  }
};

}  // namespace

Site user_site(const RankEvidence& e, std::uint32_t stack) {
  if (stack >= e.stacks.size()) {
    return {};
  }
  constexpr std::size_t kMany = 64;  // ranks; with fewer a cache does not pay
  if (e.stacks.users() < kMany) {
    return found_site(e, stack);
  }
  thread_local KnownSites known;
  if (!known.are_of(e)) {
    known = {e.strings, e.frames, e.stacks, e.id.cwd, {}};
    known.sites.resize(e.stacks.size());
  }
  std::optional<Site>& site = known.sites[stack];
  if (!site) {
    site = found_site(e, stack);
  }
  return *site;
}

bool is_of_thread(const RankEvidence& e, std::uint32_t stack) {
  const Stacks::Words frames = stack < e.stacks.size() ? e.stacks[stack] : Stacks::Words();
  return !frames.empty() && e.text(frame_of(e, frames.back()).file).ends_with("threading.py");
}

Site parting_site(const RankEvidence& a, std::uint32_t stack, const RankEvidence& b,
                  std::uint32_t other) {
  if (stack >= a.stacks.size() || other >= b.stacks.size()) {
    return {};
  }
  const Stacks::Words own = a.stacks[stack], its = b.stacks[other];
  for (std::size_t n = 1; n <= std::min(own.size(), its.size()); ++n) {
    Site site = site_of(a, frame_of(a, own[own.size() - n]));
    if (site != site_of(b, frame_of(b, its[its.size() - n]))) {
      return site;
    }
  }
  return {};
}

std::string site_text(const Site& s) {
  if (s.file.empty()) {
    return {};
  }
  std::string out = fmt::format("{}:{}", s.file, s.line);
  if (!s.function.empty()) {
    out += ' ' + s.function;
  }
  if (!s.within.empty()) {
    out += fmt::format(" (in {})", s.within);
  }
  return out;
}

Shape parse_shape(const RankEvidence& e, const Record& r) {
  Shape shape;
  if (r.shape_count == 0 || r.shape_first > e.shape_words.size() ||
      r.shape_count > e.shape_words.size() - r.shape_first) {
    return shape;
  }
  const std::uint32_t* w = e.shape_words->data() + r.shape_first;
  const std::uint32_t* const end = w + r.shape_count;
  const std::uint32_t head = *w++;
  const std::uint32_t n_in = head & 0xfff, n_out = (head >> 12) & 0xfff;
  const auto read_tensors = [&](std::uint32_t n, std::vector<TensorShape>& to) {
    for (std::uint32_t i = 0; i < n; ++i) {
      if (w == end) {
        return false;
      }
      const std::uint32_t ndim = *w & 0xff;
      TensorShape t;
      t.dtype = (*w >> 8) & 0xff;
      ++w;
      if (ndim > static_cast<std::size_t>(end - w)) {
        return false;
      }
      t.dims.assign(w, w + ndim);
      w += ndim;
      to.push_back(std::move(t));
    }
    return true;
  };
  if (!read_tensors(n_in, shape.in)) {
    return shape;
  }
  if ((head & FR_SHAPE_SAME_OUT) != 0) {
    shape.out = shape.in;
  } else if (!read_tensors(n_out, shape.out)) {
    return shape;
  }
  if ((head & FR_SHAPE_SPLITS) != 0) {
    for (auto* splits : {&shape.in_splits, &shape.out_splits}) {
      if (w == end) {
        return shape;
      }
      const std::uint32_t n = *w++;
      if (n > static_cast<std::size_t>(end - w)) {
        return shape;
      }
      splits->assign(w, w + n);
      w += n;
    }
    shape.has_splits = true;
  }
  shape.known = true;
  return shape;
}

std::string shape_text(const std::vector<TensorShape>& tensors) {
  constexpr std::size_t kShown = 3;
  std::string out;
  for (std::size_t i = 0; i < tensors.size() && i < kShown; ++i) {
    out += fmt::format("{}[{}]", i ? " " : "", fmt::join(tensors[i].dims, ","));
  }
  if (tensors.size() > kShown) {
    out += fmt::format(" and {} more", tensors.size() - kShown);
  }
  return out;
}

std::vector<Rank> group_call_ranks(const RankEvidence& e, const Record& r) {
  const Shape shape = parse_shape(e, r);
  if (r.kind != Kind::kLifecycle || !shape.known || shape.in.size() != 1 ||
      shape.in[0].dims.size() % 3 != 0) {
    return {};
  }
  std::vector<RankRange> ranges;
  const std::vector<std::uint64_t>& words = shape.in[0].dims;
  for (std::size_t i = 0; i < words.size(); i += 3) {
    ranges.push_back({static_cast<Rank>(words[i]), static_cast<std::uint32_t>(words[i + 1]),
                      static_cast<std::int32_t>(words[i + 2])});
  }
  return expand(ranges);
}

namespace {

// "[2,2,4]"; "even" if the call gave none
std::string splits_text(const std::vector<std::uint64_t>& splits) {
  constexpr std::size_t kShown = 8;
  if (splits.empty()) {
    return "even";
  }
  const std::vector<std::uint64_t> first(
      splits.begin(),
      splits.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, splits.size())));
  return fmt::format("[{}{}]", fmt::join(first, ","), splits.size() > kShown ? ",..." : "");
}

}  // namespace

std::string operation_text(const RankEvidence& e, const Record& r) {
  std::string out(e.text(r.op));
  if (r.kind == Kind::kLifecycle) {
    const std::vector<Rank> ranks = group_call_ranks(e, r);
    return ranks.empty() ? out : out + " of " + ranks_words(ranks);
  }
  const Shape shape = parse_shape(e, r);
  if (shape.known && !(shape.in.empty() && shape.out.empty())) {
    out += ' ' + shape_text(shape.in.empty() ? shape.out : shape.in);
  } else if (r.in_numel != 0 || r.out_numel != 0) {
    out += fmt::format(" of {} elements", r.in_numel != 0 ? r.in_numel : r.out_numel);
  }
  const std::string_view dtype = e.text(r.in_dtype != 0 ? r.in_dtype : r.out_dtype);
  if (!dtype.empty()) {
    out += fmt::format(" {}", dtype);
  }
  if (const std::string_view op = e.text(r.reduce_op); !op.empty()) {
    out += fmt::format(" {}", op);
  }
  if (r.kind == Kind::kCollective && r.peer >= 0) {
    out += fmt::format(" root {}", r.peer);
  }
  if (!shape.in_splits.empty() || !shape.out_splits.empty()) {
    out += fmt::format(" splits {} to {}", splits_text(shape.in_splits),
                       splits_text(shape.out_splits));
  }
  return out;
}

bool is_unfinished(const DeviceOperation& o) {
  return o.state != DeviceState::kEnded && o.state != DeviceState::kUnknown &&
         (o.flags & kDeviceUnseen) == 0;
}

std::string over_text(const DevicePhase& p) {
  if (p.socket >= 0) {
    return fmt::format("socket {}", p.socket);
  }
  return p.qp >= 0 ? fmt::format("NIC {}, queue pair {}", p.nic, p.qp) : std::string();
}

void keep_unfinished(DeviceEvidence& d) {
  std::erase_if(d.operations, [](const DeviceOperation& o) { return !is_unfinished(o); });
  // Operations without a record yet were issued last.
  std::sort(d.operations.begin(), d.operations.end(),
            [](const DeviceOperation& a, const DeviceOperation& b) {
              return std::tuple(!a.has_record, a.ticket, a.row) <
                     std::tuple(!b.has_record, b.ticket, b.row);
            });
  std::stable_sort(d.phases.begin(), d.phases.end(),
                   [](const DevicePhase& a, const DevicePhase& b) {
                     return std::tie(a.row, a.kind, a.channel) < std::tie(b.row, b.kind, b.channel);
                   });
  // Rows are reused: a phase belongs to the operation with the same record.
  std::vector<DevicePhase> kept;
  for (DeviceOperation& o : d.operations) {
    o.phase_first = static_cast<std::uint32_t>(kept.size());
    const auto of_row =
        std::equal_range(d.phases.begin(), d.phases.end(), DevicePhase{.row = o.row},
                         [](const DevicePhase& a, const DevicePhase& b) { return a.row < b.row; });
    std::copy_if(of_row.first, of_row.second, std::back_inserter(kept), [&](const DevicePhase& p) {
      return p.has_record == o.has_record && p.ticket == o.ticket;
    });
    o.phase_count = static_cast<std::uint32_t>(kept.size()) - o.phase_first;
  }
  kept.shrink_to_fit();
  d.phases = std::move(kept);
  d.operations.shrink_to_fit();
}

std::vector<Rank> expand(const std::vector<RankRange>& ranges) {
  std::vector<Rank> out;
  for (const RankRange& range : ranges) {
    if (range.count > kMaxGroupRanks - out.size()) {
      return {};
    }
    for (std::uint32_t i = 0; i < range.count; ++i) {
      const std::int64_t rank = range.first + static_cast<std::int64_t>(i) * range.stride;
      if (rank < 0 || rank > INT32_MAX) {
        return {};
      }
      out.push_back(static_cast<Rank>(rank));
    }
  }
  return out;
}

std::string fold_ranks(std::vector<Rank> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string out;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t j = i;
    while (j + 1 < ranks.size() && ranks[i] >= 0 && ranks[j + 1] == ranks[j] + 1) {
      ++j;
    }
    if (!out.empty()) {
      out += ',';
    }
    if (ranks[i] < 0) {
      out += '?';  // a process that never knew its rank
    } else if (j == i) {
      out += fmt::format("{}", ranks[i]);
    } else {
      out += fmt::format("{}{}{}", ranks[i], j == i + 1 ? ',' : '-', ranks[j]);
    }
    i = j + 1;
  }
  return out;
}

std::string ranks_words(const std::vector<Rank>& ranks) {
  std::string folded = fold_ranks(ranks);
  // Every second of a thousand ranks does not fold: show the first ones and the count.
  constexpr std::size_t kShown = 8, kMost = 16;
  const auto commas = static_cast<std::size_t>(std::count(folded.begin(), folded.end(), ','));
  if (commas >= kMost) {
    std::size_t end = 0;
    for (std::size_t n = 0; n < kShown; ++n) {
      end = folded.find(',', end) + 1;
    }
    folded = fmt::format("{}... ({} ranks)", folded.substr(0, end), ranks.size());
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + folded;
}

std::string duration_text(double seconds) {
  const double s = seconds < 0 ? 0 : seconds;
  if (s < 0.001) {
    return fmt::format("{:.0f} us", s * 1e6);
  }
  if (s < 1) {
    return fmt::format("{:.0f} ms", s * 1e3);
  }
  if (s < 600) {
    return fmt::format("{:.1f} s", s);
  }
  if (s < 2 * 3600) {
    return fmt::format("{:.0f} min", s / 60);
  }
  return s < 48 * 3600 ? fmt::format("{:.1f} h", s / 3600) : fmt::format("{:.0f} days", s / 86400);
}

}  // namespace frtrace
