// entry.cpp - reads one entry of PyTorch's list.
#include "input/torch/entry.hpp"

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <utility>

namespace frtrace::torch_dump {
namespace {

using pickle::pairs;
using pickle::Type;
using pickle::Value;

Field field_of(std::string_view key) {
  static const std::unordered_map<std::string_view, Field> kKeys = {
      {"record_id", kRecordId},
      {"pg_id", kPgId},
      {"process_group", kProcessGroup},
      {"seq_id", kSeqId},
      {"collective_seq_id", kCollectiveSeq},
      {"p2p_seq_id", kP2pSeq},
      {"op_id", kOpId},
      {"profiling_name", kName},
      {"time_created_ns", kCreatedNs},
      {"time_created_us", kCreatedUs},
      {"input_sizes", kInSizes},
      {"input_dtypes", kInDtypes},
      {"output_sizes", kOutSizes},
      {"output_dtypes", kOutDtypes},
      {"state", kState},
      {"time_discovered_started_ns", kStarted},
      {"time_discovered_completed_ns", kCompleted},
      {"retired", kRetired},
      {"timeout_ms", kTimeout},
      {"is_p2p", kIsP2p},
      {"frames", kFrames},
      {"thread_id", kThread},
      // The names of the split sizes were not final when this was written.
      {"input_split_sizes", kInSplits},
      {"output_split_sizes", kOutSplits},
      {"in_split_sizes", kInSplits},
      {"out_split_sizes", kOutSplits}};
  const auto it = kKeys.find(key);
  return it == kKeys.end() ? kIgnored : it->second;
}

}  // namespace

std::optional<std::int64_t> to_int(const Value& v) {
  switch (v.type) {
    case Type::kInt:
    case Type::kBool:
      return v.i;
    case Type::kFloat:
      return v.f > -9e18 && v.f < 9e18 ? std::optional(static_cast<std::int64_t>(v.f))
                                       : std::nullopt;
    case Type::kString: {
      const std::string_view text = v.text();
      std::int64_t out = 0;
      const auto parsed = std::from_chars(text.data(), text.data() + text.size(), out);
      return !text.empty() && parsed.ec == std::errc() ? std::optional(out) : std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

std::int64_t number(const Value& v, std::int64_t fallback) {
  return to_int(v).value_or(fallback);
}

std::uint64_t count_of(const Value& v) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, number(v)));
}

Time nanoseconds(const Value& v, std::int64_t unit) {
  const std::int64_t t = number(v);
  return t > 0 && t < (Time{1} << 62) / unit ? plausible(t * unit) : 0;
}

bool truth(const Value& v) {
  return (v.type == Type::kBool || v.type == Type::kInt) ? v.i != 0 : v.text() == "true";
}

bool EntryReader::read(const Value& dict, Entry& out) {
  out = Entry{};
  const auto all = pairs(dict);
  if (all.size() > 2 * kMaxKeys) {
    return false;
  }
  std::size_t position = 0;
  for (std::size_t i = 0; i + 1 < all.size(); i += 2, ++position) {
    if (all[i].type != Type::kString) {
      continue;
    }
    Known& known = known_[position];
    if (known.key != all[i].s || known.size != all[i].size) {
      known = {all[i].s, all[i].size, field_of(all[i].text())};
    }
    out.at[known.field] = all[i + 1];
  }
  return true;
}

Name parse_name(std::string_view text) {
  Name n;
  if (const std::size_t colon = text.find(':'); colon != std::string_view::npos) {
    n.backend = text.substr(0, colon);
    text = text.substr(text.rfind(':') + 1);
  }
  n.op = text.substr(0, text.find(' '));
  const bool send = n.op == "send" || n.op == "isend";
  const bool recv =
      n.op == "recv" || n.op == "irecv" || n.op == "recvAnysource" || n.op == "recv_anysource";
  if (send || recv) {
    n.kind = send ? Kind::kSend : Kind::kRecv;
    n.op = send ? "send" : "recv";
    const char* p = text.data() + std::min(text.find(' '), text.size());
    const char* const end = text.data() + text.size();
    const auto integer = [&](std::int32_t& to) {
      while (p < end && (*p < '0' || *p > '9')) {
        ++p;
      }
      std::int32_t v = 0;
      if (const auto parsed = std::from_chars(p, end, v); parsed.ec == std::errc() && p < end) {
        to = v;
        p = parsed.ptr;
      }
    };
    integer(n.own);
    integer(n.peer);
    return n;
  }
  n.combined = n.op == "coalesced" || n.op.ends_with("_coalesced");
  // Spellings of one function.
  static constexpr std::pair<std::string_view, std::string_view> kSame[] = {
      {"all_reduce_barrier", "barrier"},
      {"_broadcast_oop", "broadcast"},
      {"_reduce_oop", "reduce"},
      {"all_gather_single", "all_gather_into_tensor"},
      {"all_gather_v", "all_gather"},
      {"reduce_scatter_single", "reduce_scatter_tensor"},
      {"reduce_scatter_v", "reduce_scatter"},
      {"all_to_all_v_single", "all_to_all_single"}};
  for (const auto& [spelling, op] : kSame) {
    if (n.op == spelling) {
      n.op = op;
    }
  }
  return n;
}

State state_of(const Entry& entry) {
  const std::string_view text = entry[kState].text();
  if (truth(entry[kRetired]) || text == "completed" || nanoseconds(entry[kCompleted]) != 0) {
    return State::kCompleted;
  }
  if (text == "started" || nanoseconds(entry[kStarted]) != 0) {
    return State::kStarted;
  }
  return text == "scheduled" ? State::kEnqueued : State::kUnknown;
}

void put_scattered_list_first(Entry& entry) {
  if (parse_name(entry[kName].text()).op != "scatter") {
    return;
  }
  const auto out = pickle::items(entry[kOutSizes]);
  const auto is_empty = [](const Value& sizes) {
    const auto dims = pickle::items(sizes);
    return dims.size() == 1 && count_of(dims[0]) == 0;
  };
  if (out.size() > 1 || (out.size() == 1 && is_empty(out[0]))) {
    std::swap(entry.at[kInSizes], entry.at[kOutSizes]);
    std::swap(entry.at[kInDtypes], entry.at[kOutDtypes]);
  }
}

}  // namespace frtrace::torch_dump
