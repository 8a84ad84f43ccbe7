// lanes.cpp - sends and receives of PyTorch dumps: matches a message at both ends.
#include <algorithm>
#include <optional>

#include "input/torch/set.hpp"
#include "model/operation.hpp"

namespace frtrace::torch_set {

namespace {

struct LaneEnd {
  RankEvidence* e = nullptr;
  std::size_t lane = 0;
};

using Records = std::vector<std::size_t>;  // of one lane, in the evidence of one end

Records records_of(const LaneEnd& end) {
  const LaneEvidence& lane = end.e->lanes[end.lane];
  Records out;
  for (std::size_t i = 0; i < end.e->records.size(); ++i) {
    const Record& r = end.e->records[i];
    if (r.group == lane.group && r.peer == lane.peer &&
        r.kind == (lane.send ? Kind::kSend : Kind::kRecv)) {
      out.push_back(i);
    }
  }
  return out;
}

// The lane's completed messages, less those completed after `t`: the oldest may not be in memory.
std::int64_t completed_until(const LaneEnd& end, const Records& records, Time t) {
  auto n = static_cast<std::int64_t>(end.e->lanes[end.lane].completed);
  for (const std::size_t i : records) {
    const Record& r = end.e->records[i];
    n -= r.state == State::kCompleted && r.ended > t ? 1 : 0;
  }
  return n;
}

void shift(const LaneEnd& end, const Records& records, std::int64_t by) {
  const auto add = [by](std::uint64_t& n) {
    n = static_cast<std::uint64_t>(static_cast<std::int64_t>(n) + by);
  };
  for (const std::size_t i : records) {
    add(end.e->records[i].seq);
  }
  LaneEvidence& lane = end.e->lanes[end.lane];
  for (std::uint64_t* n : {&lane.enqueued, &lane.started, &lane.completed, &lane.ended}) {
    add(*n);
  }
}

// How many more sends than receives of one lane the windows hold before a collective that both ends
// have left: by then every message had passed. nullopt: no such collective is kept.
std::optional<std::int64_t> ahead_by_collectives(const LaneEnd& send, const LaneEnd& recv,
                                                 const Records& sends, const Records& recvs,
                                                 const EndedOf& ended) {
  const auto at_send = ended.find(send.e), at_recv = ended.find(recv.e);
  if (at_send == ended.end() || at_recv == ended.end()) {
    return std::nullopt;
  }
  std::vector<std::pair<std::size_t, std::size_t>> met;
  for (const auto& [key, i] : at_send->second) {
    if (const auto it = at_recv->second.find(key); it != at_recv->second.end()) {
      met.emplace_back(i, it->second);
    }
  }
  const auto before = [](const Records& records, std::size_t record) {
    return std::lower_bound(records.begin(), records.end(), record) - records.begin();
  };
  std::map<std::int64_t, std::size_t> votes;
  for (const auto& [s, r] : met) {
    ++votes[before(sends, s) - before(recvs, r)];
  }
  const auto most = std::max_element(
      votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == votes.end() ? std::nullopt : std::optional(most->first);
}

// All messages of this rank in the group are with the other end.
bool has_one_peer(const LaneEnd& end) {
  const LaneEvidence& lane = end.e->lanes[end.lane];
  return std::ranges::all_of(end.e->lanes, [&](const LaneEvidence& other) {
    return other.group != lane.group || other.peer == lane.peer;
  });
}

// PyTorch's numbers of the lane's messages, each with its position in its batch.
using Numbers = std::map<std::pair<std::uint64_t, int>, std::size_t>;  // index in `records`

Numbers numbers_of(const LaneEnd& end, const Records& records) {
  const LaneEvidence& lane = end.e->lanes[end.lane];
  Numbers out;
  std::uint64_t number = lane.newest_number + 1;
  std::uint32_t batch = 0;  // no batch has that number
  std::vector<std::size_t> of_batch;
  const auto keep = [&] {
    int place = 0;
    for (auto i = of_batch.rbegin(); i != of_batch.rend(); ++i) {
      out[{number, place++}] = *i;
    }
    of_batch.clear();
  };
  std::size_t left = records.size();
  for (std::size_t i = records.back() + 1; i-- > records.front();) {
    const Record& r = end.e->records[i];
    if (r.group != lane.group || !is_p2p(r)) {
      continue;
    }
    if (r.batch != batch) {
      keep();
      --number;
      batch = r.batch;
    }
    if (left != 0 && records[left - 1] == i) {
      of_batch.push_back(--left);
    }
  }
  keep();
  return out;
}

// The same, from PyTorch's numbers of messages that both ends have completed: if two ranks exchange
// messages only with each other in the group, they number them alike.
std::optional<std::int64_t> ahead_by_numbers(const LaneEnd& send, const LaneEnd& recv,
                                             const Records& sends, const Records& recvs) {
  if (sends.empty() || recvs.empty() || !has_one_peer(send) || !has_one_peer(recv)) {
    return std::nullopt;
  }
  const Numbers at_recv = numbers_of(recv, recvs);
  std::optional<std::int64_t> ahead;
  for (const auto& [number, s] : numbers_of(send, sends)) {
    const auto it = at_recv.find(number);
    if (it == at_recv.end()) {
      continue;
    }
    const Record& a = send.e->records[sends[s]];
    const Record& b = recv.e->records[recvs[it->second]];
    const auto by = static_cast<std::int64_t>(s) - static_cast<std::int64_t>(it->second);
    if (a.state != State::kCompleted || b.state != State::kCompleted) {
      continue;
    }
    if (a.in_numel != b.out_numel || (ahead && *ahead != by)) {
      return std::nullopt;
    }
    ahead = by;
  }
  return ahead;
}

// The only value near `guess` for which the sizes of all messages completed by both ends match;
// nullopt: none, or several.
std::optional<std::int64_t> ahead_by_sizes(const LaneEnd& send, const LaneEnd& recv,
                                           const Records& sends, const Records& recvs,
                                           std::int64_t guess) {
  const auto fits = [&](std::int64_t ahead) {
    bool all = true;
    for (std::size_t s = 0; s < sends.size() && all; ++s) {
      const std::int64_t other = static_cast<std::int64_t>(s) - ahead;
      if (other >= 0 && other < static_cast<std::int64_t>(recvs.size())) {
        const Record& a = send.e->records[sends[s]];
        const Record& b = recv.e->records[recvs[static_cast<std::size_t>(other)]];
        all = a.state != State::kCompleted || b.state != State::kCompleted ||
              a.in_numel == b.out_numel;
      }
    }
    return all;
  };
  std::optional<std::int64_t> only;
  for (const std::int64_t ahead : {guess - 1, guess, guess + 1}) {
    if (fits(ahead)) {
      if (only) {
        return std::nullopt;
      }
      only = ahead;
    }
  }
  return only;
}

// Aligns two lanes if a window begins in the middle. They are counted from their ends: from a
// collective that both ends left, or else both ends are assumed to have completed the same messages
// by the time of the earlier dump.
void align(const LaneEnd& send, const LaneEnd& recv, const EndedOf& ended) {
  const bool send_relative = send.e->lanes[send.lane].relative;
  const bool recv_relative = recv.e->lanes[recv.lane].relative;
  if (!send_relative && !recv_relative) {
    return;
  }
  const Time until = std::min(send.e->newest, recv.e->newest);
  const Records sends = records_of(send), recvs = records_of(recv);
  auto met = ahead_by_collectives(send, recv, sends, recvs, ended);
  std::int64_t ahead =
      met ? *met : completed_until(send, sends, until) - completed_until(recv, recvs, until);
  met = met ? met : ahead_by_numbers(send, recv, sends, recvs);
  met = met ? met : ahead_by_sizes(send, recv, sends, recvs, ahead);
  ahead = met.value_or(ahead);
  send.e->lanes[send.lane].guessed = recv.e->lanes[recv.lane].guessed = !met;
  const std::int64_t send_by = std::max<std::int64_t>(0, -ahead);
  const std::int64_t recv_by = std::max<std::int64_t>(0, ahead);
  if ((send_by > 0 && !send_relative) || (recv_by > 0 && !recv_relative)) {
    // The end with the whole history keeps its numbers; it has sent the messages that the other has
    // lost.
    return;
  }
  shift(send, sends, send_by);
  shift(recv, recvs, recv_by);
}

}  // namespace

EndedOf ended_collectives(const std::vector<std::vector<Member>>& groups) {
  EndedOf out;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const Member& m : groups[g]) {
      if (m.e->lanes.empty()) {
        continue;
      }
      for (std::size_t i = 0; i < m.e->records.size(); ++i) {
        const Record& r = m.e->records[i];
        if (r.group == m.row && r.kind == Kind::kCollective && r.state == State::kCompleted) {
          out[m.e][{g, r.seq}] = i;
        }
      }
    }
  }
  return out;
}

void pair_lanes(const std::vector<Member>& members, const EndedOf& ended) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::pair<LaneEnd, LaneEnd>> pairs;
  for (const Member& m : members) {
    const std::int32_t own = m.e->groups[m.row].own_rank;
    for (std::size_t i = 0; i < m.e->lanes.size(); ++i) {
      const LaneEvidence& lane = m.e->lanes[i];
      if (lane.group != m.row) {
        continue;
      }
      if (lane.send) {
        pairs[{own, lane.peer}].first = {m.e, i};
      } else {
        pairs[{lane.peer, own}].second = {m.e, i};
      }
    }
  }
  for (const auto& [key, ends] : pairs) {
    if (ends.first.e != nullptr && ends.second.e != nullptr && !ends.first.e->holes.truncated &&
        !ends.second.e->holes.truncated) {
      align(ends.first, ends.second, ended);
    }
  }
}

}  // namespace frtrace::torch_set
