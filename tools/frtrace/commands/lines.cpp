#include "commands/lines.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

namespace frtrace::reduce {

namespace {

using Json = nlohmann::ordered_json;

// Rounded: times in nanoseconds would change with every look.
double seconds(const fr::TickClock& clock, std::uint64_t ticks) {
  return ticks == 0 ? 0 : static_cast<double>(clock.unix_ns(ticks) / 1'000'000) / 1000;
}

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Collects what changed into lines that are not too long.
class Lines {
 public:
  explicit Lines(Json head) : head_(std::move(head)), line_(head_) {}
  // `path`: the keys below which it stands.
  void add(const std::vector<std::string>& path, const Json& value) {
    Json longer = line_;
    put(longer, path, value);
    if (text_of(longer).size() + 1 > NodeLines::kLineBytes) {
      end_line();
      longer = head_;
      put(longer, path, value);
    }
    line_ = std::move(longer);
    is_empty_ = false;
  }
  std::string take() {
    end_line();
    return std::move(out_);
  }

 private:
  static void put(Json& to, const std::vector<std::string>& path, const Json& value) {
    Json* at = &to;
    for (const std::string& key : path) {
      at = &(*at)[key];
    }
    *at = value;
  }
  void end_line() {
    const std::string text = text_of(line_);
    if (!is_empty_ && text.size() < NodeLines::kLineBytes) {
      out_ += text + "\n";
    }
    line_ = head_;
    is_empty_ = true;
  }

  Json head_, line_;
  bool is_empty_ = true;
  std::string out_;
};

}  // namespace

NodeLines::NodeLines(std::string shm_dir, std::string node, std::string job)
    : dir_(ring_directory(shm_dir)), node_(std::move(node)), only_(std::move(job)) {}

void NodeLines::find() {
  std::set<std::string> found;
  const auto is_new = [&](const std::string& name) {
    if (over_.contains(name)) {
      return false;
    }
    found.insert(name);
    return std::none_of(jobs_.begin(), jobs_.end(),
                        [&](const auto& job) { return job.second.ranks.contains(name); });
  };
  const auto take = [&](const std::string& name, std::unique_ptr<MappedRing> ring) {
    const fr::Header& h = ring->view().header();
    const std::string job = fixed(h.job, sizeof h.job);
    if (only_.empty() || job == only_) {
      Job& to = jobs_[{job, h.attempt}];
      to.name = job;
      to.attempt = h.attempt;
      to.ranks[name].ring = std::move(ring);
    }
  };
  for_each_ring(dir_, take, is_new);
  for (auto& [key, job] : jobs_) {
    std::erase_if(job.ranks, [&](const auto& r) { return !found.contains(r.first); });
  }
}

std::string NodeLines::group_number(Job& job, const fr::View& view, const fr::GroupRow& row) {
  const std::string name = fmt::format("{}#{}", view.string(row.name.load()), row.instance.load());
  return job.groups.try_emplace(name, std::to_string(job.groups.size())).first->second;
}

std::string NodeLines::lines_of(Job& job, Time now) {
  Json head = {{"frtrace", "lines/1"}, {"node", node_}, {"job", job.name}};
  head["attempt"] = job.attempt;
  head["at"] = static_cast<double>(now / 1'000'000) / 1000;
  const std::string sign = text_of(head) + "\n";
  Lines lines(std::move(head));
  const auto say = [&](std::map<std::string, std::string>& said, const std::string& key,
                       const std::vector<std::string>& path, const Json& value) {
    std::string text = text_of(value);
    if (said[key] != text) {
      lines.add(path, value);
      said[key] = std::move(text);
    }
  };
  bool is_running = false;
  for (auto& [file, rank] : job.ranks) {
    const fr::View& view = rank.ring->view();
    const fr::Header& h = view.header();
    const fr::TickClock clock(h);
    const bool alive = lives(h, now);
    is_running = is_running || alive;
    const std::string number = std::to_string(h.rank.load());
    say(rank.said, "pid", {"ranks", number, "pid"}, h.pid);
    say(rank.said, "alive", {"ranks", number, "alive"}, alive);
    if (const std::int64_t step = h.step.load(); step != INT64_MIN) {
      say(rank.said, "step", {"ranks", number, "step"}, step);
    }
    for (std::uint32_t g = 1; g < view.n_groups(); ++g) {
      const fr::GroupRow* row = view.group(g);
      if (row == nullptr || row->destroyed_ticks.load() != 0) {
        continue;
      }
      const std::string group = group_number(job, view, *row);
      say(job.said, group, {"groups", group},
          {{"name", view.string(row->name.load())},
           {"desc", view.string(row->desc.load())},
           {"instance", row->instance.load()},
           {"n_ranks", row->n_ranks.load()}});
      say(rank.said, group, {"ranks", number, "groups", group},
          {fr::get(row->issued) & fr::kSeqMask, fr::get(row->started_seq),
           fr::get(row->completed_seq), seconds(clock, fr::get(row->enqueued_ticks)),
           seconds(clock, fr::get(row->completed_ticks)), fr::get(row->p2p_issued),
           fr::get(row->p2p_ended)});
    }
  }
  if (!is_running) {
    lines.add({"end"}, true);
    for (const auto& [file, rank] : job.ranks) {
      over_.insert(file);
    }
    job.ranks.clear();
  }
  std::string text = lines.take();
  if (text.empty() && now - job.said_at >= kSign) {
    text = sign;
  }
  job.said_at = text.empty() ? job.said_at : now;
  return text;
}

std::string NodeLines::look(Time now) {
  find();
  std::string out;
  for (auto& [key, job] : jobs_) {
    out += lines_of(job, now);
  }
  std::erase_if(jobs_, [](const auto& job) { return job.second.ranks.empty(); });
  return out;
}

}  // namespace frtrace::reduce
