// entry.hpp - one entry of a PyTorch Flight Recorder dump, of any version: its keys, and the parts
// of its name.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "input/pickle.hpp"
#include "model/rank_data.hpp"

namespace frtrace::torch_dump {

// The number in a value; nullopt for null, text and other types.
std::optional<std::int64_t> to_int(const pickle::Value& v);
std::int64_t number(const pickle::Value& v, std::int64_t fallback = 0);
std::uint64_t count_of(const pickle::Value& v);                   // negative: 0
Time nanoseconds(const pickle::Value& v, std::int64_t unit = 1);  // 0: none, or out of range
bool truth(const pickle::Value& v);

// The keys of an entry that are used, of all versions.
enum Field : std::uint8_t {
  kRecordId,
  kPgId,
  kProcessGroup,
  kSeqId,
  kCollectiveSeq,
  kP2pSeq,
  kOpId,
  kName,
  kCreatedNs,
  kCreatedUs,
  kInSizes,
  kInDtypes,
  kOutSizes,
  kOutDtypes,
  kState,
  kStarted,
  kCompleted,
  kRetired,
  kTimeout,
  kIsP2p,
  kFrames,
  kThread,
  kInSplits,
  kOutSplits,
  kIgnored,
  kFields
};

struct Entry {
  std::array<pickle::Value, kFields> at;
  const pickle::Value& operator[](Field f) const { return at[f]; }
};

State state_of(const Entry&);

// The dictionaries of one dump have equal keys, mostly the same strings in the same order.
class EntryReader {
 public:
  bool read(const pickle::Value& dict, Entry& out);

 private:
  static constexpr std::size_t kMaxKeys = 128;
  struct Known {
    const char* key = nullptr;
    std::uint32_t size = 0;
    Field field = kIgnored;
  };
  std::array<Known, kMaxKeys> known_;
};

// "nccl:send 0->1": backend, operation, and for P2P the ranks within the group.
struct Name {
  std::string_view backend, op;
  Kind kind = Kind::kCollective;
  std::int32_t own = -1, peer = -1;
  bool combined = false;  // the entry of a coalesced batch as a whole
};
Name parse_name(std::string_view text);

// For a scatter, PyTorch's NCCL backend records the received tensor as input, and the root's list
// as output (one empty tensor on other ranks); gloo records the opposite. Converts both to gloo's
// form.
void put_scattered_list_first(Entry& entry);

}  // namespace frtrace::torch_dump
