// diagnosis.hpp - one diagnosis in the making: facts gathered once, deciders tried in the order of
// `run`, each in a file of its own (decide_*.cpp); each says whether it found the cause.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "old/diagnose.hpp"
#include "old/facts.hpp"

namespace frtrace {

inline constexpr double kStuckSeconds = 1.0;  // younger operations are work in progress

inline std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

inline std::string slot_text(std::string_view op, std::uint64_t seq, const Group& g) {
  return fmt::format("{} #{} of {}", op, seq, g.title());
}

class Diagnosis {
 public:
  explicit Diagnosis(const Case& c)
      : c_(c),
        slots_(make_slots(c)),
        history_(c),
        devices_(c),
        ends_(ends_of(c)),
        missing_ends_(ends_of_missing(c)) {}
  Report run();

 private:
  // ------------------------------------------------------------ words
  const RankEvidence& ev(int i) const { return c_.evidence_of(i); }
  Rank rank(int i) const { return ev(i).id.rank; }
  std::vector<Rank> ranks(const std::vector<int>& evidence) const;
  const Group& group(int g) const { return c_.groups[at(g)]; }
  void say(const char* id, std::string text) { r_.findings.push_back({id, std::move(text)}); }
  void lower(Confidence to, std::string reason);
  const Record* last_operation(int i) const;
  const Group* group_of(int i, const Record& r) const;
  std::string record_text(int i, const Record& r) const;
  std::string at_site(int i, std::uint32_t stack) const;
  std::vector<std::string> stack_lines(int i, std::uint32_t stack) const;
  // Lifecycle call in which the rank is right now ("destroy_process_group"), nullptr if in none.
  const Record* lifecycle_in_flight(int i) const;

  // ------------------------------------------------------------ what was read
  void inventory();

  // ------------------------------------------------------------ blame
  Blamed& blame(int i, std::string why);
  std::vector<std::string> raised_lines(int i) const;
  void add_breadcrumbs(int i, Blamed& b) const;
  Blamed& blame_missing(Rank who, std::string why, std::string text);
  std::string meeting_op(const Meeting& m) const;
  std::string meeting_text(const Meeting& m) const;
  std::vector<Rank> waiting_ranks(const Meeting& m) const;
  // Who waits where, by call site.
  void add_waiting(const Meeting& m, const std::set<int>& but);
  void add_all_waiting(int first_meeting, const std::set<int>& but);
  // The meeting that says most about the blamed: most waiting, then earliest.
  int main_meeting(const std::set<int>& blamed, bool must_be_absent = true) const;
  std::string wait_words(const std::vector<Rank>& who) const;
  // What the rank usually does next, after its last operation in `g` or at its very end.
  std::optional<std::string> usual_words(int i, int g, Site* site = nullptr);

  // ------------------------------------------------------------ mismatch
  // Which class did what was due, judged by earlier iterations and sister groups; -1: nothing
  // tells.
  int class_by_precedent(const Divergence& d);
  // Did the member leave one operation out? Its record at the slot is what comes one (or a few)
  // slots later, or usually came one after what the others have there.
  bool skipped(const Divergence& d, int member, int reference);
  bool mismatch(Divergence d);

  // ------------------------------------------------------------ ended processes
  // Evidence the waits of a settled hang end in.
  std::vector<int> sinks_alive(const WaitGraph& graph) const;
  bool exited(const WaitGraph& settled);
  // A rank that others have waited for as long as for the dead one, and that waits for nobody:
  // the meeting that says so, nullptr if its absence may follow from the death.
  const Meeting* stays_away(const WaitGraph& settled, int i) const;
  // Where a rank that was killed waited for one of `alive` that never came; nullptr: nowhere.
  std::pair<const Meeting*, int> in_vain(const WaitGraph& settled, const std::vector<int>& alive,
                                         int i) const;
  void fill_slot(Blamed& b, const Meeting& m) const;

  // ------------------------------------------------------------ never came
  bool leaving(int i) const;
  // A minority waits in an operation that is none of the job's: all others have gone, or nobody
  // ever issued it before.
  bool extra_operation(const Meeting& m, const std::vector<int>& absent, bool ended_too);
  bool left_early_or_missing();
  bool blame_extra(const Meeting& m, int k, const std::vector<int>& absent);
  // "skipped all_reduce #41 at f:1": its call sites run ahead of the others' from that slot on.
  std::optional<std::string> shifted(int i, int group_index);
  // What the blamed did where a rank that waits for it went on.
  void add_fork(Blamed& b, int i, int g, const Meeting& m);
  // Why the others are not to blame: each waits, and for whom.
  void explain_waits(const std::set<int>& blamed);

  // ------------------------------------------------------------ cycles
  std::uint64_t role(int i, const Step& step) const;
  bool shared(int i, const Anomaly& a);
  std::optional<Anomaly> own_anomaly(int i);
  std::optional<Anomaly> peer_anomaly(int i);
  bool blame_anomalies(const std::set<int>& suspects, bool ask_peers);
  bool cycle();
  bool deadlock(const std::set<int>& on_cycle, const std::set<int>& meetings);

  // ------------------------------------------------------------ the rest
  // An operation that failed on its own account, without anybody dying of it.
  bool own_errors();
  bool is_node(const std::vector<Rank>& who) const;
  void say_followers(const std::vector<int>& chosen, const std::set<int>& blamed);
  bool no_evidence();
  // Somebody's device did not get to what its host and all others issued.
  bool device_behind();
  // How far an operation got on its device, and what it waits for there.
  std::string device_title(const OnDevice&) const;
  DeviceReport device_report(const OnDevice&) const;
  std::string device_words(const OnDevice&) const;
  void tell_devices(const DeviceChain&);
  void tell_links(const DeviceChain&);
  // Waits of devices, followed to their end from those who wait in a meeting.
  DeviceChain chain_from(const Meeting&, const std::set<int>& only) const;
  DeviceChain chain_of(const std::set<int>& who) const;  // from the first that each waits in
  bool chain_ends(const Meeting&, int k, const DeviceChain&);
  bool may_run(const Wait&) const;
  // The rank, of which there is no evidence, gave or took something in it.
  bool moved(const Meeting&, Rank) const;
  void blame_standing(const Meeting&, const std::vector<Standing>&);
  // A rank's device, or the library on it, reported an error before all others.
  bool device_failed();
  void tell_device_errors();
  // All members issued it, and it does not end.
  bool everybody_came();
  // Ranks inside init_process_group, new_group or destroy_process_group for long.
  bool lifecycle();
  std::map<std::string, std::vector<int>> in_lifecycle(double* longest = nullptr) const;
  void add_lifecycle_waiting(const std::string& op, const std::vector<int>& members);
  // new_group was called in another order, or for other members, than on the other ranks.
  bool group_order();
  // One rank alone was told to end by somebody, and what the others wait for began with that.
  bool ended_alone();
  // Told to end from outside, with nothing stuck and nobody dead.
  bool terminated();
  // Nobody is stuck, and somebody keeps the others waiting.
  // Some files do not record the sends and receives there were.
  bool p2p_unseen() const;
  // Erases those blamed so far.
  void drop_blamed(std::vector<Rank>& who) const;
  bool alarmed() const;
  double usual_wait_s() const;
  bool slow();
  bool stale();
  bool nothing_stuck();

  // ------------------------------------------------------------ closing words
  void consequences();
  void other_witnesses();
  std::vector<Wait> waits_of(int i) const;
  void tell_holes(bool fault);
  void finish();
  const Case& c_;
  Report r_;
  std::vector<Slots> slots_;
  History history_;
  Devices devices_;
  std::vector<DeviceError> device_errors_;
  std::vector<End> ends_, missing_ends_;
  std::vector<int> primary_, missing_primary_;
  std::vector<HiddenFailure> hidden_;
  WaitGraph graph_;
  std::optional<Divergence> divergence_;
  std::vector<std::string> doubts_;
};

}  // namespace frtrace
