// node.hpp - metrics from the rings of this node; counters continue from one look to the next.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "live/mapped_ring.hpp"
#include "metrics/text.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

class NodeMetrics {
 public:
  // The verdict on the rings of one job: its kind.
  using Judge = std::function<std::string(const std::vector<std::string>& rings)>;

  // `stuck`: operations in flight for longer than this are judged.
  NodeMetrics(std::string shm_dir, std::string node, Time stuck, Judge judge);
  std::string look(Time now);

 private:
  static constexpr std::array<double, 8> kBuckets{0.001, 0.01, 0.1, 0.5, 1, 10, 30, 100};
  struct Histogram {
    std::array<std::uint64_t, kBuckets.size() + 1> counts{};
    double sum = 0;
  };
  struct Count {
    double operations = 0, bytes = 0;
  };
  // Totals of a job on this node; they outlive its ranks, so that a restart continues them.
  struct Job {
    std::map<std::pair<std::string, std::string>, Count> counts;  // group, op
    std::map<std::string, Histogram> waits;                       // by group
    std::map<std::string, double> lost;                           // by kind
    std::map<int, double> late;                                   // by local rank
    double incidents = 0;
    double false_warnings = 0, false_dumps = 0;
    Time last_life = 0;
  };
  // Reading state of one ring.
  struct Ring {
    std::string path, job;
    std::unique_ptr<MappedRing> mapped;
    bool alive = false;
    std::uint64_t next = 0;        // ticket
    std::set<std::uint64_t> open;  // tickets of operations that have not ended
    std::map<std::string, std::uint64_t> lost;
    std::uint64_t incidents = 0;
    Time oldest = 0;  // call of the oldest of `open`; 0 none
    Time progress = 0;
    std::map<std::pair<std::string, std::uint32_t>, std::uint64_t> fronts;  // by name and instance
    const fr::Header& header() const { return mapped->view().header(); }
  };
  // A collective that not all ranks of the node have issued yet.
  struct Arrivals {
    std::size_t n = 0;
    Time last = 0, before = 0;
    int gpu = 0;
  };

  void find_rings();
  void read(Ring&, Time now);
  void read_records(Ring&, Job&, const fr::TickClock&);
  bool take(Ring&, Job&, const fr::TickClock&, const fr::RecordCopy&);
  void arrived(Ring&, Job&, const fr::RecordCopy&, Time);
  void read_losses(Ring&, Job&);
  void read_fronts(Ring&, const fr::TickClock&);
  void tell(MetricsText&, const std::string& job, const std::vector<Ring*>&, Time now);
  void tell_ranks(MetricsText&, const Labels&, const std::vector<Ring*>&, Time now);
  void tell_totals(MetricsText&, const Labels&, const Job&);
  void tell_verdict(MetricsText&, const Labels&, const std::vector<Ring*>&, Time now);
  std::string group_label(const fr::View&, std::uint32_t group);
  std::string op_label(std::string_view op);

  std::string shm_dir_, node_;
  Time stuck_;
  Judge judge_;
  std::map<std::pair<int, std::uint64_t>, Ring> rings_;  // by pid and start of the process
  std::map<std::string, Job> jobs_;
  std::set<std::string> groups_, ops_;  // labels given out
  std::map<std::tuple<std::string, std::string, std::uint32_t, std::uint64_t>, Arrivals> arrivals_;
};

}  // namespace frtrace
