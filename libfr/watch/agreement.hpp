// agreement.hpp - do the members of a group issue the same? Reads the records of several rings as
// they come, and finds the first operation of a group in which they differ. Nothing is recorded for
// it; what the rings had overwritten before it was read here is not compared.
//
//   ring of rank 0 --+                         window of a group, by seq
//   ring of rank 1 --+--> signature, site -->  | 811: 4 of 4 | 812: 3 of 4, differs | ...
//   ring of rank 2 --+
//
// No lock, no allocation beyond one mapping. One thread at a time.
#pragma once

#include "format/signature.hpp"
#include "format/view.hpp"
#include "watch/post.hpp"

namespace fr {

class Agreement {
 public:
  static constexpr u32 kRings = kPeers;

  // False: no memory.
  bool init() noexcept;
  void release() noexcept;  // no destructor: the watchdog runs while the process's globals end

  // A ring from its record `first` on. The mapping stays until another takes the place `at`.
  void attach(u32 at, const View& view, u64 first) noexcept;
  // Reads the records since the last call, except those begun since then: they may be half written.
  void read_all(u64 now_ns) noexcept;
  // A difference that was not told yet, as one line: ranks, operations and call sites. Once per
  // group. False: there is none.
  bool tell(u64 now_ns, char* text, std::size_t bytes) noexcept;

  // Whether differing operations are told of; samples are in any case.
  void set_operations(bool on) noexcept { operations_ = on; }

  // Between nodes: the job's list and our place in it; posts due to others; a post of another.
  void set_nodes(const NodeRow* rows, u32 n, u32 own) noexcept;
  void talk(u64 now_ns, Posts& out) noexcept;
  void hear(const Post& post, u64 now_ns, Posts& out) noexcept;

  u64 compared() const noexcept { return compared_; }    // records
  u64 passed_by() const noexcept { return passed_by_; }  // tickets that were overwritten before

 private:
  static constexpr u32 kWindow = 1024;  // operations that members may be apart
  static constexpr u32 kGroupsHere = 1024;
  static constexpr u32 kTold = 32;    // lines at most: one per group
  static constexpr u32 kEpoch = 256;  // operations that one hash covers at most
  static constexpr u32 kEnds = 16;
  static constexpr u32 kSamples = 64;
  static constexpr u32 kSites = 64;       // call sites per group with known agreement
  static constexpr u32 kAgreed = 8;       // times that all were at a site before a deviation counts
  static constexpr u32 kStepsApart = 3;   // once may be a step that is counted late
  static constexpr u32 kSwapWithin = 16;  // operations between the two of an exchange

  struct Entry {
    u32 seq, signature, site, other_site, hash;
    u16 count;
    u8 differs;  // in the signature
    u8 sites;    // beyond the first: 0, 1, 2 several
    u32 step;    // of the first that came, modulo 2^32
    bool has_step, steps_differ;
  };
  struct SiteCount {
    u32 site;
    u16 agreed, spoiled;
  };
  struct Deviation {  // all but some were at site, those at other
    u32 seq, site, other;
  };
  struct EpochEnd {
    u32 seq, hash;
  };
  // An operation as another node's ranks issued it.
  struct Issued {
    u32 seq, op;
    u64 in_numel, out_numel;
    i32 peer;
    u8 op_class, in_dtype, out_dtype, reduce_op;
    char text[128];
  };
  // The outputs of one operation, as its members sampled them (FR_FINGERPRINT).
  struct Sample {
    u32 seq;
    u16 count;
    bool differs;
    u64 sum, weighted;
  };
  // Origin of NaN: an operation with NaN in inputs of ranks that had none in outputs before.
  struct Origin {
    u64 key;  // of the group; 0: none yet
    u64 begun_ns;
    u32 seq, site, ring;
    u32 confirmed;  // samples of that call site that had some later
    i64 step;       // INT64_MIN unknown
    u64 nan, inf;
    Payload payload;
    bool by_receive;  // or came by one
    u32 n_rings;
    u32 rings[kRings];
  };
  enum : u8 { kAgree = 1, kDiffer = 2 };
  struct Dispute {
    u64 key;  // of the group; 0: there is none
    u64 begun_ns, due_ns;
    u32 seq;  // of the hash that differed first
    u32 asked, node;
    i32 agree, differ;  // members on other nodes
    Issued issued;
    u8 opinion[kNodes];
  };
  struct Group {
    u64 key;  // 0: free
    u32 ring, row;
    u32 members, counted;  // with a ring here; as of how many attachments
    bool told;
    u32 unnamed;
    u32 due_seq, due_other;  // due_other: of an exchange
    u32 steps_apart;         // operations in a row in which the ranks' steps differ
    u32 steps_seq;           // of the first of those; told when they are kStepsApart
    u64 due_ns;              // 0: no difference
    u32 home;                // node + 1 to which hashes are told; 0: not looked up
    u32 hash_next, ripe, sent;
    u64 hash;
    EpochEnd ends[kEnds];
    u32 output_seq;  // of the sample that differs
    u64 output_due_ns;
    bool output_told;
    Sample samples[kSamples];
    Deviation deviation;  // seq 0: none
    SiteCount sites[kSites];
    Entry window[kWindow];
  };
  struct GroupRef {
    u64 created_ticks;
    u32 index;  // + 1; 0: not known, kNone: not compared
  };
  static constexpr u32 kNone = ~0u;
  struct Name {
    u32 hash;
    u32 op_class;
  };
  struct Ring {
    View view;
    u64 next, seen_head;
    i64 step;       // of its last FR_STEP; INT64_MIN none
    bool tainted;   // an input or an output had NaN or Inf
    bool unsure;    // may be: a sample was missed, and no clean input came since
    bool received;  // something, which is not sampled, since the last clean input
    Name names[kStrings];
    u32 sites[kStacks];
    GroupRef groups[kGroups];
  };
  struct Memory;
  struct Held;
  struct Side;

  void add(Ring& ring, const Payload& p, u64 now_ns) noexcept;
  Group* group_of(Ring& ring, const Payload& p) noexcept;
  u32 find_group(u64 key, u32 ring, u32 row) noexcept;
  u32 count_members(const Group& g) noexcept;
  OpName name_of(Ring& ring, u32 op) noexcept;
  u32 site_of(Ring& ring, u32 stack) noexcept;
  void complete(Group& g, Entry& e, u64 now_ns) noexcept;
  void look_for_exchange(Group& g, const Entry& e, u64 now_ns) noexcept;
  SiteCount* count_of(Group& g, u32 site) noexcept;
  void spoil(Group& g, u32 site) noexcept;
  void compare_steps(Group& g, const Entry& e) noexcept;
  bool tell_steps(Group& g, char* text, std::size_t bytes) noexcept;
  void forget_all() noexcept;

  void add_sample(Ring& ring, const RecordCopy& r, u64 now_ns) noexcept;
  void add_input(Ring& ring, const Group& g, const Payload& p, u64 nan, u64 inf,
                 u64 now_ns) noexcept;
  i64 step_of(const Ring& ring, u32 group, u32 seq) noexcept;
  bool tell_output(Group& g, char* text, std::size_t bytes) noexcept;
  bool is_origin_due(u64 now_ns) const noexcept;
  bool tell_origin(u64 now_ns, char* text, std::size_t bytes) noexcept;

  void hash_on(Group& g, u32 seq) noexcept;
  u32 hash_at(const Group& g, u32 seq) const noexcept;
  u32 home_of(Group& g) noexcept;
  Group* group_by(u64 key) noexcept;
  void hear_hashes(Group& g, const Post& post, u64 now_ns, Posts& out) noexcept;
  void hear_signatures(Group& g, const Post& post, Posts& out) noexcept;
  void hear_difference(Group& g, const Post& post, u64 now_ns) noexcept;
  void tell_signatures(const Group& g, u32 until, u32 node, Posts& out) noexcept;
  bool describe_own(Group& g, u32 seq, Issued& to) noexcept;
  bool tell_dispute(Group& g, char* text, std::size_t bytes) noexcept;

  i32 rank_of(const Held& held) const noexcept;
  // kind: FR_COLLECTIVE; FR_SAMPLE: signatures are those of the outputs.
  u32 find_held(const Group& g, u32 seq, Held* held, u16 kind) noexcept;
  bool tell_difference(Group& g, char* text, std::size_t bytes) noexcept;
  bool tell_exchange(Group& g, char* text, std::size_t bytes) noexcept;

  Memory* memory_ = nullptr;
  u32 n_rings_ = 0;  // places up to the last one that was attached
  u32 attached_ = 0;
  u32 n_groups_ = 0;
  u64 compared_ = 0;
  u64 passed_by_ = 0;
  const NodeRow* nodes_ = nullptr;
  u32 n_nodes_ = 0;
  u32 own_node_ = 0;
  bool operations_ = true;
  bool steps_due_ = false, steps_told_ = false;  // once per job
  bool any_due_ = false;                         // of a group: most ticks have nothing to look for
  u64 talked_ns_ = 0;
};

}  // namespace fr
