// facts.hpp - what can be said of a case without judging: the order each rank issued operations in,
// what met in each slot, how processes ended, who waits for whom. Pure functions on a Case.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/case.hpp"
#include "model/rank_data.hpp"
#include "report/report.hpp"

namespace frtrace {

// ---------------------------------------------------------------- operations

// What all members of a group must agree on in one slot, by operation: legal inequalities (only
// the root has lists, uneven splits) are not part of it.
std::uint64_t signature_hash(const RankEvidence&, const Record&);
// The same as words: {"size", "4096"}, {"dtype", "Float"}...
std::vector<std::pair<std::string, std::string>> signature_fields(const RankEvidence&,
                                                                  const Record&);
// Nothing but a fault makes the signatures of such operations differ, even when they completed.
bool is_strict(std::string_view op);
bool is_all_to_all(std::string_view op);
// No member leaves such an operation before all have come to it.
bool meets_all(std::string_view op);
// Same function under another spelling: "_allgather_base_", "all_gather_into_tensor".
std::string canonical_op(std::string_view op);

// ---------------------------------------------------------------- order

struct Step {
  std::uint64_t key;   // group, operation, signature, call site: equal on all ranks
  int group;           // in Case::groups
  std::size_t record;  // in RankEvidence::records
};

// Position of a record among a rank's steps; past the end if none is as late.
std::size_t step_of(const std::vector<Step>& steps, std::size_t record);

class History {
 public:
  explicit History(const Case& c) : case_(c), steps_(c.ranks.size()), built_(c.ranks.size()) {}
  const std::vector<Step>& of(int evidence);

 private:
  const Case& case_;
  std::vector<std::vector<Step>> steps_;
  std::vector<bool> built_;
};

// Earlier step that followed the longest context equal to the one before `pos`: what the rank
// usually issues there. `pos` may be one past the end.
std::optional<std::size_t> usual_next(const std::vector<Step>& steps, std::size_t pos);

// Where the rank, after its last operation in `group`, issued another one although an operation of
// `group` was due by its own earlier iterations.
struct Deviation {
  std::size_t issued;  // step
  std::size_t usual;   // earlier step that was due instead
};
std::optional<Deviation> deviation(const std::vector<Step>& steps, int group);

// Where a rank did what it never did before after the same few operations.
struct Anomaly {
  enum Kind {
    kSkipped,   // what usually comes later, `usual` was left out
    kSwapped,   // `usual` came later, what was issued usually follows it
    kInserted,  // `usual` came later, what was issued has no place there
    kOther      // something else, and nothing after it to tell what became of `usual`
  };
  Kind kind = kOther;
  std::size_t issued = 0;  // step
  std::size_t usual = 0;   // earlier step that was due instead
  bool novel = false;      // the rank never issued such an operation at all
};
// The first one at or after step `from`.
std::optional<Anomaly> anomaly(const std::vector<Step>& steps, std::size_t from);

// nullopt when the records no longer tell, or the reference is not further.
std::optional<Fork> fork_of(const Case&, History&, int group, int evidence, int reference);

// ---------------------------------------------------------------- slots

// Records of one group's collectives, per member by ascending seq.
struct Slots {
  std::vector<std::vector<std::size_t>> records;  // [member] -> records of its evidence
  // Record of that seq, nullptr when not kept or never issued.
  const Record* at(const Case&, const Group&, std::size_t member, std::uint64_t seq) const;
};
std::vector<Slots> make_slots(const Case&);  // one per group

struct Divergence {
  int group = -1;
  std::uint64_t seq = 0;
  Time time = 0;
  std::vector<std::vector<int>> classes;  // members (positions in the group), largest class first
  bool tie = false;
  bool past = false;  // all completed it, and more of the group since
  bool strict = false;
  bool incomplete_vote = false;    // members without that record
  std::vector<std::string> words;  // which fields differ
};
// Earliest slot of the whole case in which members differ; `past` ones only if there is no other.
std::optional<Divergence> first_divergence(const Case&, const std::vector<Slots>&);

// ---------------------------------------------------------------- arrival

// A rank that comes later than the other members by its own doing: not because what it waited for
// before ended late.
struct Straggler {
  int evidence = -1;
  int group = -1;          // of the call site where it loses most
  std::size_t record = 0;  // its last operation there
  int late = 0, of = 0;    // there
  double typical_s = 0;    // median lateness there
  double lost_s = 0;       // at all such call sites
  double span_s = 0;       // of the records
};
// `by_clocks`: ends are not recorded, the ranks' clocks had to be compared.
std::vector<Straggler> stragglers(const Case&, const std::vector<Slots>&, bool& by_clocks);

// ---------------------------------------------------------------- devices

// An unfinished operation of a rank's device: its place in RankEvidence::device.operations.
struct OnDevice {
  int evidence = -1;
  std::size_t operation = 0;
  auto operator<=>(const OnDevice&) const = default;
};

// What the device library says of a record; nullopt: nothing, or that it ended.
std::optional<std::size_t> device_operation(const RankEvidence&, std::size_t record);
// SIZE_MAX: it has none, or none that is kept.
std::size_t record_of(const RankEvidence&, const DeviceOperation&);
// The first unfinished operation on the stream of a launched one, if it is another.
std::optional<std::size_t> stream_busy_with(const RankEvidence&, std::size_t operation);

// A rank that others wait for, and whose device waits for nobody else that the evidence knows of.
struct Standing {
  enum Why {
    kUnlaunched,      // issued, and its launch never began
    kInLaunch,        // the host is inside the launch
    kNotStarted,      // on the stream, with nothing before it that fr knows
    kChannelsAbsent,  // channels of its kernel do not run that its transfers wait for
    kKernel,          // its kernel runs, and neither takes nor gives though it could
    kNetworkThread    // launched, and the library's network thread has not begun with it
  };
  OnDevice at;
  Why why = kNotStarted;
};

// Where the waits of device operations end, followed over streams, transfers and ranks.
struct DeviceChain {
  std::vector<OnDevice> visited;  // in the order they were come to
  std::vector<Link> links;
  std::vector<Standing> standing;
  // Its kernel runs and neither takes nor gives though it could: it, or one on its node that it
  // reaches without the network, which is not seen.
  std::vector<OnDevice> busy;
  bool open = false;  // a path ends where the evidence does not tell
};

class Devices {
 public:
  explicit Devices(const Case&);
  std::optional<OnDevice> of(int evidence, std::size_t record) const;
  DeviceChain follow(const std::vector<OnDevice>& from) const;
  const DeviceOperation& operator[](const OnDevice&) const;
  // Of its kernel channels and transfers, whichever process runs these.
  std::vector<DevicePhase> phases(const OnDevice&) const;
  // Rank of the job of a rank of the operation's communicator; -1 unknown.
  Rank peer(const OnDevice&, std::int32_t comm_rank) const;
  // Another member's device got to it.
  bool started_elsewhere(const OnDevice&) const;
  // Launched, and nothing would tell if its kernel ran: its transfers are all that there is.
  bool may_run(const OnDevice&) const;
  // Not all channels of its kernel run, though all of another member's do.
  bool lacks_channels(const OnDevice&) const;
  bool lost_any(int evidence) const;  // of what is followed

 private:
  struct Member {
    int evidence = -1;
    std::uint32_t comm = 0;
  };
  class Walk;
  const CommEvidence* comm(const OnDevice&) const;
  const Group* group(int evidence, std::uint32_t row) const;
  const Group* group(const OnDevice&) const;
  std::optional<OnDevice> counterpart(const OnDevice&, int evidence) const;
  bool is_done(const OnDevice&, int evidence) const;
  std::optional<DevicePhase> facing(const OnDevice& own, const DevicePhase&,
                                    const OnDevice& other) const;
  void find_carried();

  const Case& c_;
  std::map<std::pair<std::uint64_t, std::int32_t>, Member> members_;  // hash, rank of it
  std::map<OnDevice, std::vector<DevicePhase>> carried_;  // by other processes than the operation's
};

// First asynchronous error that a rank's device library, or its CUDA, told of.
struct DeviceError {
  int evidence = -1;
  Time time = 0;
  std::string text;
  bool cuda = false;
  bool consequence = false;  // says that somebody else is gone
  std::size_t record = SIZE_MAX;
};
std::vector<DeviceError> device_errors(const Case&);
// Those of the errors that may have been the first, by what the ranks' clocks allow.
struct FirstErrors {
  std::vector<DeviceError> errors;
  bool unmeasured = false;  // nothing tells how far the clocks of some are apart
};
FirstErrors first_errors(const Case&, const std::vector<Slots>&, const std::vector<DeviceError>&);

// ---------------------------------------------------------------- ends

struct End {
  bool ended = false;
  bool clean = false;        // status 0 by itself
  bool terminated = false;   // by SIGTERM, SIGINT, SIGHUP, SIGQUIT: somebody told it to
  bool consequence = false;  // its error says that somebody else was gone or late
  std::string why;           // killed, exception, exit, gone
  std::string text;          // "killed by SIGSEGV", "ValueError: ..."
  Time time = 0;
  int sender_pid = 0;
  bool primary() const { return ended && !clean && !terminated && !consequence; }
};
std::vector<End> ends_of(const Case&);          // per evidence
std::vector<End> ends_of_missing(const Case&);  // per Case::missing, from the others' peer tables
// Others saw the missing rank alive.
bool seen_alive(const Case&, Rank);
// The error says that a peer is gone, or late.
bool is_consequence(std::string_view error);

// ---------------------------------------------------------------- waits

// In flight, and the rank goes on only when it ends.
bool blocks(const Record&);

struct Wait {
  int evidence = -1;
  std::size_t record = SIZE_MAX;  // SIZE_MAX: overwritten
  Time since = 0, until = 0;
  bool failed = false;     // it ended in an error that says nothing of its own
  bool own_error = false;  // it ended in an error that is no consequence
};

// An operation in which somebody waits.
struct Meeting {
  int group = -1;
  Kind kind = Kind::kCollective;
  std::uint64_t seq = 0;
  Rank from = -1, to = -1;  // P2P: sender, receiver
  std::vector<Wait> waits;
  std::vector<int> absent;    // evidence that shows it never came
  std::vector<Rank> unknown;  // no evidence whether it came
  std::vector<int> too_old;   // evidence older than the wait: says nothing
  // Everybody came, and these do not wait in it yet: an earlier operation of theirs is unfinished.
  std::vector<int> behind;
  // Those of them whose devices did not get to it though others' did, or did not finish it though
  // others did.
  std::vector<int> device;
  bool devices_seen = false;  // the evidence tells who started
  Time since = 0;
  bool complete = false;  // everybody came
  double seconds() const;
};

// An operation that is recorded as done and perhaps failed, as a member that left no evidence was
// needed for it. doubtful: as likely the rank stopped by itself after it.
struct HiddenFailure {
  int evidence = -1;
  std::size_t record = 0;
  bool doubtful = false;
};
std::vector<HiddenFailure> hidden_failures(const Case&, History&);
// The rank has been at rest, and not where its iterations begin.
bool stopped_amid(const Case&, History&, int evidence);

struct WaitGraph {
  std::vector<Meeting> meetings;           // those that count as stuck
  std::vector<std::vector<int>> waits_in;  // [evidence] -> meetings
  std::vector<int> sinks;                  // evidence: waited for, waits for nobody
  std::vector<bool> device;                // [evidence] behind in a meeting that waits end in
  std::vector<Rank> unknown_sinks;         // ranks without evidence at which waits end
  std::vector<std::vector<int>> cycles;    // evidence of each closed cycle that waits end in
  std::vector<int> complete;               // meetings at which waits end though everybody came
  std::vector<int> too_old;                // evidence too old to tell
  double too_old_s = 0;                    // how long others have waited for them
  int fresh = 0;                           // operations in flight for less than the threshold
};
// Waits shorter than `threshold_s` are operations in flight of a healthy job.
WaitGraph wait_graph(const Case&, const std::vector<End>&, double threshold_s,
                     const std::vector<HiddenFailure>& hidden = {});

}  // namespace frtrace
