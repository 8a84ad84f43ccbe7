// fanout.hpp - asks the nodes of a job through a launcher, and hands on what they answer.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "collect/launch.hpp"
#include "collect/package.hpp"
#include "collect/processes.hpp"
#include "model/nodes.hpp"

namespace frtrace::collect {

// One line on a terminal that changes, else plain lines now and then.
class Progress {
 public:
  Progress(std::string what, std::size_t nodes);
  void tick(std::size_t answered, std::size_t failed);
  void note(const std::string& line);
  double seconds() const;

 private:
  void erase();

  std::string what_;
  std::size_t nodes_;
  bool terminal_, drawn_ = false;
  std::chrono::steady_clock::time_point begun_, shown_;
};

class Fanout {
 public:
  // `answered` is called once per node, with its finished row; package is set if row.answered.
  using Answered = std::function<void(const NodeRow& row, Package package)>;

  Fanout(Launch launch, Answered answered)
      : launch_(std::move(launch)), tell_(std::move(answered)) {}
  // what: caption of the progress line; "": no progress is shown. False: interrupted.
  bool run(const std::string& what);

 private:
  void ended(const Command& command, Ended end);
  void judge_node(std::size_t node, const std::string& bytes, const std::string& err,
                  const Ended& end);
  void read_files(const Command& command, const Ended& end);
  void read_lines(const Command& command, const Ended& end);
  std::string why(const Ended& end, const std::string& err, bool empty) const;

  Launch launch_;
  Answered tell_;
  std::size_t answered_ = 0, failed_ = 0;
  Progress* progress_ = nullptr;
};

}  // namespace frtrace::collect
