// live_source.hpp - where `frtrace live` has its job from: the rings of this node, or lines of
// many.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "commands/arguments.hpp"
#include "commands/fan.hpp"
#include "live/running_job.hpp"

namespace frtrace {

struct Said {
  std::string text;
  int status = kNoFault;
};
// since: older evidence belongs to an earlier run of a job of that name. job "": any job.
Said verdict_of(const std::vector<std::string>& paths, const std::string& job, Time since,
                std::size_t width);

class JobSource {
 public:
  JobSource() = default;
  virtual ~JobSource() = default;
  JobSource(const JobSource&) = delete;
  JobSource& operator=(const JobSource&) = delete;

  virtual JobNow look() = 0;
  // For `-1`: looks until all data is there and rates are known.
  virtual JobNow look_once() = 0;
  virtual bool is_over(const JobNow&) const = 0;
  virtual std::string where() const = 0;                  // "n1", "2 nodes"
  virtual std::vector<std::string> troubles() const = 0;  // of nodes, a line each
  virtual Said verdict(std::size_t width) = 0;            // by a thread beside `look`
  virtual Said last_words(std::size_t width) = 0;         // of a job that has ended
  virtual void stop() {}                                  // a `verdict` that is under way ends soon
};

// nullptr: failed; the reason is on stderr.
std::unique_ptr<JobSource> source_of_nodes(const FanOptions&, const std::string& job,
                                           double every_s, Time stuck);

}  // namespace frtrace
