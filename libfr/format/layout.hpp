// layout.hpp - every structure that lies in the mapped region of a rank, and in the control page.
//
// The region is one file per rank process below FR_SHM_DIR. It outlives its process, so every
// reader (frtrace, a peer that salvages, the dump path, tests) reads it as found: any thread may
// have died between any two stores. Hence:
//   * magic, version and sizes come first; sections are found through the table, never by sizeof;
//   * each cache line has one writer, named in its comment;
//   * what is written once is published by a release store of its id, count or sequence word.
//
//   +--------+---------+--------+-------+-------+---------+-----+--------+--------+--------+
//   | Header | options | groups | ranks | lanes | strings | ... | crumbs | status | record |
//   +--------+---------+--------+-------+-------+---------+-----+--------+--------+--------+
//
// Changing anything here: add at the end or in reserved space, raise kLayoutVersion otherwise.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace fr {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;
using i64 = std::int64_t;

static_assert(std::atomic<u64>::is_always_lock_free && std::atomic<u32>::is_always_lock_free);
static_assert(sizeof(std::atomic<u64>) == 8 && sizeof(std::atomic<u32>) == 4);

inline constexpr u64 kRegionMagic = 0x31474e4952524600ull;   // "\0FRRING1"
inline constexpr u64 kControlMagic = 0x314c544352524600ull;  // "\0FRCTL1"
inline constexpr u32 kLayoutVersion = 1;
inline constexpr u64 kDumpRequest = 0x6b736172665f00ffull;    // value of the signal
inline constexpr u64 kStacksRequest = 0x6b736172665f01ffull;  // the same, see Header::ask_signal

// ---------------------------------------------------------------- bounds

inline constexpr u32 kMinRecords = 64;
inline constexpr u32 kMaxRecords = 1u << 20;
inline constexpr u32 kGroups = 512;          // row 0: the process itself
inline constexpr u32 kRankWords = 8192;      // ranks of groups, as ranges
inline constexpr u32 kLanes = 512;           // row 0: overflow
inline constexpr u32 kStringBuckets = 8192;  // power of two
inline constexpr u32 kStrings = 6144;        // ids 1..kStrings-1
inline constexpr u32 kStringBytes = 320 * 1024;
inline constexpr u32 kFrames = 12288;  // ids 1..kFrames-1
inline constexpr u32 kStacks = 4096;   // ids 1..kStacks-1
inline constexpr u32 kStackWords = 60 * 1024;
inline constexpr u32 kBlobWords = 32 * 1024;  // power of two: shape words too long for a record
inline constexpr u32 kCrumbs = 32;            // threads with notes or spans
inline constexpr u32 kQuietQuota = 64;        // records of a quiet group that others cannot evict
inline constexpr u32 kSpanDepth = 8;
inline constexpr u32 kNoteBytes = 200;
inline constexpr u32 kComms = 256;       // communicators of a device library; row 0: none
inline constexpr u32 kDeviceOps = 1024;  // operations as that library sees them, in flight and last
inline constexpr u32 kPhases = 2048;     // their kernel channels and network transfers
inline constexpr u32 kSites = 256;       // call sites with deadlines of their own; the last: others

// Do these members of a struct, in the order of their places, each begin a later cache line?
consteval bool are_lines_apart(std::initializer_list<std::size_t> offsets) {
  std::size_t next = 0;  // line
  for (const std::size_t offset : offsets) {
    if (offset / 64 < next) {
      return false;
    }
    next = offset / 64 + 1;
  }
  return true;
}

// ---------------------------------------------------------------- sections

enum Section : u32 {
  kSecOptions,      // char: "NAME=value\tsource\n"..., NUL-terminated
  kSecGroups,       // GroupRow[kGroups]
  kSecRanks,        // u32 triples {first, count, stride}
  kSecLanes,        // LaneRow[kLanes]
  kSecStringIndex,  // StringRow[kStrings]
  kSecStringBytes,  // char
  kSecFrames,       // FrameRow[kFrames]
  kSecStacks,       // StackRow[kStacks]
  kSecStackWords,   // u32 frame ids, innermost first
  kSecBlob,         // atomic u32
  kSecCrumbs,       // Crumb[kCrumbs]
  kSecStatus,       // Status[records]
  kSecRecords,      // Record[records]
  kSecDevice,       // Device, one
  kSecComms,        // CommRow[kComms]
  kSecDeviceOps,    // DeviceOp[kDeviceOps]
  kSecPhases,       // Phase[kPhases]
  kSecCuda,         // Cuda, one
  kSecGroupTexts,   // GroupText[2 * kGroups]: name and desc of groups in rows used again
  kSecSites,        // SiteRow[kSites]
  kSections
};
inline constexpr u32 kFirstSections = kSecRecords + 1;  // those that every ring has

struct SectionRow {
  u64 offset_bytes;  // from the start of the region
  u32 count;         // elements
  u32 stride_bytes;  // per element
};
static_assert(sizeof(SectionRow) == 16);

// ---------------------------------------------------------------- header

enum class ClockKind : u32 { kMonotonic = 0, kTsc = 1, kCntvct = 2 };

// (ticks, unix time, monotonic time) taken together. Written by the watchdog, read through `seq`
// (odd while being written).
struct Anchor {
  std::atomic<u64> seq;
  std::atomic<u64> ticks;
  std::atomic<u64> unix_ns;
  std::atomic<u64> monotonic_ns;
};
static_assert(sizeof(Anchor) == 32);

enum ExitState : u32 {
  kRunning = 0,
  kExitNoted = 1,  // the exit record is filled, the process still runs
  kSignalled = 2,  // a fatal or terminating signal was caught
  kExiting = 3     // exit() was called, exit_status is valid
};

// First cause why the process ends. Written once by the thread that wins `claimed`.
struct ExitRecord {
  std::atomic<u32> claimed;
  std::atomic<u32> ready;   // the texts are whole
  std::atomic<u32> state;   // ExitState
  std::atomic<i32> status;  // exit status once kExiting
  std::atomic<i32> signal;  // first terminating signal, 0 none
  std::atomic<i32> sender_pid;
  std::atomic<u64> time_unix_ns;
  std::atomic<u32> stack;
  u32 reserved;
  char kind[24];
  char type[128];
  char message[832];
};
static_assert(sizeof(ExitRecord) == 1024);

struct Header {
  // --- written once at start, before magic is stored
  std::atomic<u64> magic;
  u32 version;
  u32 header_bytes;
  u64 region_bytes;
  u32 section_count;
  u32 anonymous;  // 1: not backed by a file; a SIGKILL loses it
  u32 n_records;  // power of two
  ClockKind clock_kind;
  i32 pid;
  i32 attempt;  // restart count of the launcher
  u64 start_unix_ns;
  u64 proc_start;  // field 22 of /proc/self/stat, clock ticks since boot: pid + this names a
                   // process
  u32 generation;
  i32 local_world_size;
  u64 pid_namespace;  // inode of /proc/self/ns/pid: pid and proc_start mean something only within
                      // it
  u64 reserved0[5];
  // --- identity that the process group may fill in later; written by the holder of the tables'
  // lock
  std::atomic<i32> rank;        // -1 unknown
  std::atomic<i32> local_rank;  // -1 unknown
  std::atomic<i32> world_size;  // 0 unknown
  u32 reserved1a;
  // The same on all ranks of one run of the job, another in the next; 0 unknown.
  std::atomic<u64> run;
  std::atomic<u32> shares_rank;  // 1: another process that lives has this rank; names have the pid
  u32 reserved1b[9];
  // --- recorders
  alignas(64) std::atomic<u64> head;       // next ticket
  alignas(64) std::atomic<u64> blob_head;  // next blob word
  alignas(64) std::atomic<u64> dropped;    // operations that found no slot
  std::atomic<u64> skipped;                // tickets passed over: slot busy or protected
  std::atomic<u64> no_group;               // operations of groups that found no row
  // --- observers
  alignas(64) std::atomic<u64> status_lost;  // state changes of records that were already gone
  std::atomic<u64> failed;  // operations that ended in an error, but for refused arguments
  // --- table writers (under the tables' lock)
  alignas(64) std::atomic<u32> n_groups;  // rows in use, row 0 included
  std::atomic<u32> n_rank_words;
  std::atomic<u32> n_strings;  // ids below are readable
  std::atomic<u32> n_string_bytes;
  std::atomic<u32> n_frames;
  std::atomic<u32> n_stacks;
  std::atomic<u32> n_stack_words;
  std::atomic<u32> n_layers;
  std::atomic<u64> strings_lost;  // not stored, the table was full
  std::atomic<u64> stacks_lost;
  std::atomic<u64> groups_lost;
  std::atomic<u64> groups_forgotten;  // destroyed groups that gave their row to another one
  // --- lane claims, crumbs
  alignas(64) std::atomic<u64> lanes_lost;
  std::atomic<u64> crumbs_lost;
  std::atomic<i64> step;  // fr_step; INT64_MIN none
  std::atomic<u64> step_ticks;
  // --- the watchdog
  alignas(64) std::atomic<u64> heartbeat_unix_ns;
  std::atomic<u64> incident;  // last incident dumped or joined
  std::atomic<u64> dumps_failed;
  std::atomic<u64> crash_dumped;  // the dump of its crash is safe: nothing left to salvage
  std::atomic<u32> ask_signal;    // with kDumpRequest it requests a dump, with kStacksRequest a
                                  // file beside the ring and no incident; 0 none
  u32 reserved3;
  std::atomic<u64> warned_unix_ns;  // when a stall was last worth a warning; 0 never
  std::atomic<u64> false_warnings;  // stalls that were warned of and went on
  std::atomic<u64> false_dumps;     // that were dumped and went on
  Anchor first;                     // at start
  Anchor last;                      // refreshed about every second
  // --- texts, NUL-terminated, written once at start
  char job[128];
  char host[64];
  char boot_id[40];
  char recorder[24];  // version of libfr
  char command[1024];
  char cwd[512];
  char dump_dir[512];  // first choice
  struct Layer {
    char name[24];               // written once, before n_layers
    char text[164];              // may be replaced: read by layer_text()
    std::atomic<u32> revisions;  // odd while the text is being replaced
  } layers[6];                   // under the tables' lock
  ExitRecord exit;
  SectionRow sections[kSections];
};
static_assert(sizeof(Header) <= 8192, "the header keeps within two pages");
// One writer for each cache line, in the order above: recorders, blob, drops, observers, tables, lanes,
// watchdog. Two writers on one line would send it back and forth between their processors.
static_assert(are_lines_apart({offsetof(Header, head), offsetof(Header, blob_head),
                               offsetof(Header, dropped), offsetof(Header, status_lost),
                               offsetof(Header, n_groups), offsetof(Header, lanes_lost),
                               offsetof(Header, heartbeat_unix_ns)}));
inline constexpr u32 kHeaderBytes = 8192;

// ---------------------------------------------------------------- groups

// Ops counted in `issued`: low 40 bits collectives (= last enqueued seq), high 24 bits all records
// of the group, modulo 2^24: one atomic add gives both the sequence number and the index that
// protects a quiet group's records.
inline constexpr u64 kSeqMask = (1ull << 40) - 1;
inline constexpr u32 kIndexShift = 40;
inline constexpr u32 kIndexMask = (1u << 24) - 1;

// A job may make a million groups. The row of a group that was destroyed and has nothing in flight
// is used again when no other is left; until the new group is complete, the row stays "destroyed".
// A record older than its row's group is of an earlier one (View::read).
struct alignas(64) GroupRow {
  // --- table writers, published by Header::n_groups, then by destroyed_ticks = 0
  std::atomic<u32> name;  // string ids
  std::atomic<u32> desc;
  std::atomic<u32> backend;
  std::atomic<u32> instance;  // 1 for the first group of that name in this process, 2 the next...
  std::atomic<i32> n_ranks;   // 0 unknown
  std::atomic<i32> own_rank;  // -1 unknown
  std::atomic<u32> ranks_first;  // first word in kSecRanks
  std::atomic<u32> ranks_words;  // 0 = ranks not captured
  std::atomic<u64> created_ticks;
  std::atomic<u64> destroyed_ticks;  // 0 living
  u64 reserved0[2];
  // --- recorders
  alignas(64) std::atomic<u64> issued;  // see above
  std::atomic<u64> enqueued_ticks;      // of the last collective
  std::atomic<u64> p2p_issued;          // sends and receives, all lanes
  std::atomic<u64> p2p_ticks;
  std::atomic<u64> lifecycle_issued;
  std::atomic<u64> dropped;    // records of this group that found no slot
  std::atomic<u64> untracked;  // collectives and P2P without an observed end
  u64 reserved1;
  // --- observers
  alignas(64) std::atomic<u64> started_seq;  // highest collective seq seen started
  std::atomic<u64> started_ticks;
  std::atomic<u64> completed_seq;  // highest collective seq seen completed
  std::atomic<u64> completed_ticks;
  std::atomic<u64> ended;   // collectives ended, however
  std::atomic<u64> failed;  // of all kinds
  std::atomic<u64> p2p_ended;
  std::atomic<u64> lifecycle_ended;
  // --- observers of waits
  alignas(64) std::atomic<u64> waited;  // fr_wait_begin
  std::atomic<u64> wait_ended;
  std::atomic<u64> wait_only;  // FR_WAIT_ONLY operations issued
  std::atomic<u64> wait_only_ended;
  std::atomic<u64> released;  // ended unseen
  u64 reserved2[3];
};
static_assert(sizeof(GroupRow) == 256);
static_assert(are_lines_apart({offsetof(GroupRow, issued), offsetof(GroupRow, started_seq),
                               offsetof(GroupRow, waited)}));

// One (group, peer, direction) of point-to-point traffic.
struct alignas(64) LaneRow {
  // --- recorders; key by CAS from 0
  std::atomic<u64> key;       // 1<<63 | group << 33 | direction(1 send, 0 recv) << 32 | peer + 1
  std::atomic<u64> enqueued;  // = last enqueued seq
  std::atomic<u64> enqueued_ticks;
  u64 reserved0[5];
  // --- observers
  alignas(64) std::atomic<u64> started_seq;
  std::atomic<u64> completed_seq;
  std::atomic<u64> completed_ticks;
  std::atomic<u64> ended;
  std::atomic<u64> failed;
  u64 reserved1[3];
};
static_assert(sizeof(LaneRow) == 128);
static_assert(are_lines_apart({offsetof(LaneRow, enqueued), offsetof(LaneRow, started_seq)}));

// ---------------------------------------------------------------- tables

// Texts of rows used again: their strings cannot be given back, so each row has room of its own.
// String ids from the number of rows in kSecStringIndex on name them.
inline constexpr u32 kGroupTextBytes = 64;
struct GroupText {
  std::atomic<char> text[kGroupTextBytes];  // NUL-terminated
};
static_assert(sizeof(GroupText) == kGroupTextBytes);

struct StringRow {
  u32 offset;  // into kSecStringBytes
  u32 bytes;
};
struct FrameRow {
  u32 file;
  u32 func;
  u32 line;
};
struct StackRow {
  u32 first;  // into kSecStackWords
  u32 count;
};
static_assert(sizeof(StringRow) == 8 && sizeof(FrameRow) == 12 && sizeof(StackRow) == 8);

// ---------------------------------------------------------------- records

inline constexpr u32 kInlineWords = 10;

// A record as the thread that issued it wrote it. `seq` = 2t+1 while ticket t writes the slot, 2t+2
// once whole, 0 never used.
struct Payload {
  u64 ticks;
  u64 seq;  // see fr_kind; step number for FR_STEP
  u32 group;
  u32 op;  // string id
  u32 stack;
  u32 tid;
  i32 peer;
  u16 kind;
  u16 flags;
  u64 in_numel;
  u64 out_numel;
  u8 in_dtype;
  u8 out_dtype;
  u8 reduce_op;
  u8 reserved;
  u32 timeout_ms;
  u32 group_index;  // index of this record among its group's, modulo 2^24
  u32 n_shape;      // shape words (or bytes of text for FR_NOTE); 0 = not captured
  u32 shape_hash;   // over all words where they are in the blob ring
  u32 lane;
  u32 words[kInlineWords];  // n_shape <= kInlineWords: the words; else {blob position low, high}
};
static_assert(sizeof(Payload) == 120);
inline constexpr u32 kPayloadWords = sizeof(Payload) / 8;

struct alignas(64) Record {
  std::atomic<u64> seq;
  std::atomic<u64> payload[kPayloadWords];
};
static_assert(sizeof(Record) == 128);

enum class State : u32 {  // in the low 3 bits of Status::tag
  kLocked = 0,            // an observer writes
  kStarted = 1,
  kCompleted = 2,
  kFailed = 3,
  kReleased = 4,
  kWaiting = 5,  // FR_WAIT_ONLY, FR_UNTRACKED: the program waits for it
  kIdle = 6      // and now no call does, it is not done
};

// The outcome of a record, written by observers only. Belongs to ticket t when tag >> 3 == t + 1.
struct alignas(32) Status {
  std::atomic<u64> tag;            // (t + 1) << 3 | State
  std::atomic<u64> started_ticks;  // 0 unknown; for kWaiting: when the wait began
  std::atomic<u64> ended_ticks;    // 0 unknown
  std::atomic<u32> error;          // string id
  std::atomic<u32> tid;            // thread that saw the end
};
static_assert(sizeof(Status) == 32);

// ---------------------------------------------------------------- breadcrumbs

// One thread's notes and open spans; only that thread writes.
struct alignas(64) Crumb {
  std::atomic<u32> tid;       // 0 free
  std::atomic<u32> note_seq;  // odd while the note is written
  std::atomic<u64> note_ticks;
  std::atomic<u32> note_bytes;
  std::atomic<u32> depth;  // open spans; may exceed kSpanDepth
  std::atomic<u32> span[kSpanDepth];
  std::atomic<u64> span_ticks[kSpanDepth];
  std::atomic<u32> note[kNoteBytes / 4];
  u32 reserved[2];
};
static_assert(sizeof(Crumb) == 384 && kNoteBytes % 4 == 0);

// ---------------------------------------------------------------- call sites

// How long the group stood still with an operation of this call site as the oldest in flight.
// Written by the watchdog; key last. watch/deadlines.hpp says what follows from it.
inline constexpr u32 kSiteTextBytes = 40;
struct SiteLongest {
  std::atomic<u32> ms;  // halved every few hours
  // of the last 32 to 64 waits that were noted, in two halves
  std::atomic<u32> recent_ms[2];
  std::atomic<u32> alarmed_s;  // monotonic: the last false dump, or when one was forgiven
  std::atomic<u16> false_dumps;
  std::atomic<u16> doublings;  // of the deadlines, after them
};
static_assert(sizeof(SiteLongest) == 20);
struct alignas(64) SiteRow {
  std::atomic<u64> key;     // hash of group, operation and place, the same in the next run; 0 free
  std::atomic<u64> visits;  // seconds of the clock in which operations ended
  SiteLongest absent;       // until all members had come, or whole where that cannot be seen
  SiteLongest asleep;       // part of it: a member had not come, and slept
  SiteLongest together;     // after all had come
  std::atomic<u32> noted;   // waits long enough to be learned from
  std::atomic<u32> decayed_s;  // monotonic: when the longest were last halved, 0 never
  std::atomic<u32> false_warnings;
  char text[kSiteTextBytes];  // "train.py:91 all_reduce of default_pg", before the key
};
static_assert(sizeof(SiteRow) == 128);

// ---------------------------------------------------------------- device

// Reports of a communication library on devices (NCCL) about its operations; foreign/nccl_*.

struct alignas(64) Device {
  // --- the thread that initializes a communicator
  std::atomic<u32> library_version;  // ncclGetVersion(), 0 unknown
  std::atomic<u32> plugin_api;       // profiler interface in use, 0: none loaded us
  std::atomic<u32> events;           // mask of event types requested
  std::atomic<u32> hooked;           // call sites that lead through our wrappers
  std::atomic<u64> comms_lost;       // communicators without a row
  u64 reserved0[5];
  // --- callbacks and wrappers, when something does not fit
  alignas(64) std::atomic<u64> ops_lost;  // operations without a DeviceOp: their end is not seen
  std::atomic<u64> phases_lost;           // channels and transfers without a Phase
  std::atomic<u64> stale_handles;         // events of an operation that is over
  std::atomic<u64> foreign_handles;       // events of another process's operation
  std::atomic<u64> unknown_events;
  std::atomic<u64> unmatched;        // library's operations for which no call was found
  std::atomic<i64> clock_offset_ns;  // host's CLOCK_MONOTONIC - device's clock, upper bound; 0 none
  std::atomic<u64> threads_lost;     // threads that found no row for their groups of calls
};
static_assert(sizeof(Device) == 128);

// One communicator. Cold: written while it is made, when it breaks, when it ends.
struct alignas(64) CommRow {
  std::atomic<u64> hash;      // the same on all its ranks
  std::atomic<u32> in_use;    // 0 never, 1 being made, 2 made, 3 ended
  std::atomic<u32> group;     // row of its own group; 0: all its operations are a framework's
  std::atomic<u32> pg_group;  // row of the framework's group that it works for, 0 unknown
  std::atomic<i32> n_ranks;
  std::atomic<i32> rank;
  std::atomic<u32> n_nodes;
  std::atomic<u32> name;   // string id
  std::atomic<u32> error;  // string id of the first asynchronous error
  std::atomic<u64> error_ticks;
  std::atomic<u32> is_profiled;  // the library's plugin interface reports it
  std::atomic<u32> captured;     // its operations that graphs have captured
};
static_assert(sizeof(CommRow) == 64);

enum DeviceOpFlags : u32 {
  kDevP2p = 1,
  kDevCaptured = 2,  // recorded into a graph, not run
  kDevAdopted = 4,   // belongs to the record of a framework (torch)
  kDevUnseen = 8,    // its end is not reported
  kDevFailed = 16,
  kDevTimed = 32,           // CUDA events report its start and its end
  kDevHostTimes = 64,       // device_start_ns and device_end_ns are of the host's monotonic clock
  kDevWaitTracked = 128,    // wait-tracked: ended_ticks is when a wait returned
  kDevTransfersLost = 256,  // some found no row, and are not counted
  kDevNoKernels = 512       // its kernels are not reported, though those of others may be
};

// One operation. How far it got follows from which ticks are set: launching (the host is in the
// launch), launched, started (first channel's kernel runs), ended.
struct alignas(64) DeviceOp {
  // --- the thread that issues and launches it
  std::atomic<u32> claim;  // generation << 1 | in use
  std::atomic<u32> flags;
  std::atomic<u64> ticket;  // of its record + 1; 0: none
  std::atomic<u64> stream;
  std::atomic<u64> launching_ticks;
  std::atomic<u64> launched_ticks;
  std::atomic<u32> comm;
  std::atomic<u32> channels;   // kernel channels that take part, as far as launched
  std::atomic<u32> algorithm;  // string ids
  std::atomic<u32> protocol;
  std::atomic<u32> parts;  // calls of the library that make it up
  std::atomic<u32> parts_launched;
  // --- the library's progress thread; fr-cuda where that reports nothing
  alignas(64) std::atomic<u64> started_ticks;
  std::atomic<u64> ended_ticks;
  std::atomic<u64> device_start_ns;  // the device's own clock, or see kDevHostTimes; 0 unknown
  std::atomic<u64> device_end_ns;
  std::atomic<u32> channels_started;
  std::atomic<u32> channels_ended;
  std::atomic<u32> transfers_started;
  std::atomic<u32> transfers_ended;
  u64 reserved0[2];
};
static_assert(sizeof(DeviceOp) == 128);

enum PhaseKind : u32 { kPhaseKernel = 0, kPhaseSend = 1, kPhaseRecv = 2 };

// Reason that a step of a transfer waits; 4 bits.
enum class Wait : u32 {
  kNone = 0,
  kPosted = 1,         // buffer posted
  kOwnKernel = 2,      // send: own kernel has not filled it
  kPeerCredit = 3,     // send: the peer has no buffer for it
  kInFlight = 4,       // send: given to the network
  kData = 5,           // recv: posted, nothing came
  kFlush = 6,          // recv: being flushed to the device
  kOwnKernelTakes = 7  // recv: own kernel has not taken it
};

// One kernel channel, or one (channel, direction, peer) of network transfer, of one operation.
// Written by the library's progress thread.
struct alignas(64) Phase {
  std::atomic<u32> claim;   // generation << 1 | in use
  std::atomic<u32> op;      // its DeviceOp + 1; 0: another process's operation
  std::atomic<u64> ticket;  // of its record + 1; of another process's operation its handle there
  std::atomic<u64> ticks;   // of the last change
  std::atomic<u32> what;    // PhaseKind | channel << 8
  std::atomic<i32> peer;
  std::atomic<u32> n_steps;
  std::atomic<u32> next_step;  // first that has not ended
  std::atomic<u32> waits;      // of 8 steps, 4 bits each: step s at 4 * (s % 8)
  std::atomic<u32> pid;        // process of the operation, if it is not this one
  std::atomic<u64> first;      // kernel: device clock at its start; transfer: bytes so far
  std::atomic<u64> second;  // kernel: device clock at its end; transfer: net_word(), 0 not reported
};
static_assert(sizeof(Phase) == 64);

// The parts of a handle of another process's operation (nccl/tracker/tracker.hpp).
struct HandleParts {
  u32 process;     // handle_salt() of that process
  u32 op;          // its DeviceOp
  u32 generation;  // of that
};
constexpr HandleParts handle_parts(u64 handle) noexcept {
  return {static_cast<u32>(handle >> 48), static_cast<u32>(handle & 0xfff),
          static_cast<u32>(handle >> 12 & 0xfffff)};
}

// Over what a transfer goes, as far as the library reports: the last request's.
enum class Net : u32 { kNone = 0, kIb = 1, kSocket = 2 };
// number: of the queue pair or the file descriptor; device: which of the NIC's, 0 for sockets
constexpr u64 net_word(Net net, u32 device, u32 number) noexcept {
  return static_cast<u64>(net) << 48 | static_cast<u64>(device & 0xffff) << 32 | number;
}

// Results of fr's own CUDA calls, and the process's first asynchronous error; foreign/cuda.*.
struct alignas(64) Cuda {
  // --- the observer thread, the only one that calls CUDA and may wait for it
  std::atomic<u32> observer_tid;  // 0: there is none, fr makes no device call
  std::atomic<u32> call;          // string id of the CUDA function it is in; 0 none
  std::atomic<u64> call_ticks;    // since when
  std::atomic<u64> polled_ticks;  // its last round over the events in flight
  std::atomic<u64> timed;         // pairs of events that gave both times
  std::atomic<u64> unread;        // pairs that could not be read
  std::atomic<u32> pairs;         // that there are
  u32 reserved0;
  u64 reserved1[2];
  // --- recorders, for an operation that gets no events
  alignas(64) std::atomic<u64> exhausted;  // no pair was free
  std::atomic<u64> captured;               // a graph was being captured
  std::atomic<u64> no_context;             // of a context that has no events (yet)
  std::atomic<u64> refused;                // CUDA did not record them
  // ... that are wait-tracked
  std::atomic<u64> followed;
  std::atomic<u64> unfollowed;  // too many at a time
  std::atomic<u64> unasked;     // no call had polled for it when its place was needed
  std::atomic<u64> untied;      // records of an event that found no room
  // --- the thread that sees the first asynchronous error, by CAS on error_claimed
  alignas(64) std::atomic<u32> error_claimed;
  std::atomic<u32> error_ready;  // the rest is whole
  std::atomic<i32> error_code;
  std::atomic<u32> error_tid;
  std::atomic<u64> error_ticks;
  std::atomic<u64> error_ticket;  // of the oldest operation in flight + 1; 0 none
  std::atomic<u32> error_name;    // string ids
  std::atomic<u32> error_text;
  std::atomic<u32> error_call;   // the function that returned it
  std::atomic<u32> error_stack;  // and where it was called
  u64 reserved3[2];
};
static_assert(sizeof(Cuda) == 192);

// ---------------------------------------------------------------- control page

// One file per (job, attempt) and node, shared by its ranks: the ranks that are here, and the
// incident counter that makes all ranks of the node dump together.
inline constexpr u32 kPeers = 256;

enum PeerState : u32 {
  kPeerFree = 0,
  kPeerClaimed = 1,
  kPeerLive = 2,
  kPeerExitedClean = 3,  // status 0, nothing in flight, nothing failed: ring removed
  kPeerExited = 4        // any other exit that it could still note
};

// An operation that a rank waits in and that has members on other nodes; what they said of it.
struct alignas(64) Question {
  // --- the rank
  std::atomic<u64> key;  // of the group, as all nodes make it
  std::atomic<u64> seq;
  std::atomic<u64> asked_ns;  // monotonic; 0 never
  // --- the rank that has the node's endpoint; `answers` is 0 while it writes
  std::atomic<u64> answers;  // question_id() of what the rest is of
  std::atomic<u64> heard_ns;
  std::atomic<u64> came_ns;  // monotonic: when the last member came
  std::atomic<u32> others;   // Others
  std::atomic<i32> absent;   // ranks; -1 none
  std::atomic<i32> busy;
  u32 reserved0;
};
static_assert(sizeof(Question) == 64);

struct alignas(64) PeerRow {
  // --- the peer itself; `state` is claimed by CAS
  std::atomic<u32> state;
  std::atomic<i32> pid;
  std::atomic<u64> proc_start;
  std::atomic<i32> rank;
  std::atomic<i32> local_rank;
  std::atomic<u64> heartbeat_unix_ns;
  std::atomic<u64> dumped;  // last incident it dumped
  std::atomic<i32> exit_status;
  std::atomic<i32> exit_signal;
  std::atomic<u64> exit_unix_ns;
  char ring[184];                   // file name within the ring directory; "" = anonymous
  char last_op[64];                 // set at a clean exit: what it issued last, and where
  char last_site[192];              // behind its NUL, where there is room: the place of sys.exit
  std::atomic<u64> hung;            // incident of the stall that lasts on this rank; 0 none
  std::atomic<u64> warned_unix_ns;  // its last warning of a stall
  // --- peers, by CAS
  alignas(64) std::atomic<u64> salvaged;  // by the one that salvages it: incident + 1
  std::atomic<u32> late_told;             // 1: a peer has reported it as late again and again
  std::atomic<u32> paused;                // by the rank itself: 1 while it is in fr.breakpoint()
  u64 reserved2[6];
  Question questions[4];
};
static_assert(sizeof(PeerRow) == 832);

// One node of the job, as the list that all nodes share has it. Written before Nodes::n, but for
// the endpoint.
struct NodeRow {
  std::atomic<u64> endpoint;  // epoch << 16 | port; grows as processes take the endpoint over
  u8 address[16];             // IPv4 in the first four bytes
  u8 is_v6;
  u8 reserved0;
  u16 stride;  // of its ranks; 0: they are no such row
  i32 first_rank;
  u32 n_ranks;
  char host[28];
};
static_assert(sizeof(NodeRow) == 64);
inline constexpr u32 kNodes = 16384;

// How this node reaches the others; all zero in a job of one node.
struct alignas(64) Nodes {
  // --- the rank of the node that owns its endpoint, by CAS on owner
  std::atomic<u32> owner;    // its row + 1; 0 none yet
  std::atomic<u32> n;        // nodes in the list; 0: there is none yet
  std::atomic<u64> beat_ns;  // monotonic: when the owner's thread last ran; ~0: it may be waiting
  std::atomic<u64> epoch;    // grows with each owner
  std::atomic<u32> over;     // 1: there will be no list
  u32 own;                   // our place in the list
  u32 in_store;              // the same + 1, as soon as the store gave it
  u32 counted;               // ranks of ours that the store counted
  u32 is_listed;             // 1: the store has our address
  u32 reserved0;
  u8 token[16];
  std::atomic<u64> told;  // last incident that the others were told of
  // --- the process that learns of an incident from another node
  std::atomic<u64> followed;  // the last one
  u64 reserved1[6];
  NodeRow rows[kNodes];  // the file has room for those that there are
};
static_assert(offsetof(Nodes, rows) == 128);

struct Control {
  std::atomic<u64> magic;
  u32 version;
  u32 row_bytes;
  u32 row_count;
  i32 attempt;
  // --- one rank of the node, by CAS
  std::atomic<u64> verdict;         // last incident for which a rank has started frtrace
  std::atomic<u64> dump_said;       // last incident with its dumps reported on stderr
  std::atomic<u64> warned_unix_ns;  // when a rank last reported a stall
  std::atomic<u64> leftovers_said;  // 1: a rank has reported rings that an earlier run left
  u64 reserved0[1];
  // --- the rank that opens an incident (CAS on incident)
  alignas(64) std::atomic<u64> incident;  // 0 none yet
  std::atomic<u64> incident_unix_ns;
  std::atomic<i32> incident_rank;
  std::atomic<u32> reason_seq;
  char reason[160];
  char job[128];
  std::atomic<u64> over;  // last incident that was said to be over; CAS by the rank that says it
  alignas(64) PeerRow peers[kPeers];
  Nodes nodes;
};
static_assert(sizeof(Control) % 64 == 0);
// The size of every file; only jobs of several nodes have more of the rows behind it.
inline constexpr u64 kControlBytes = offsetof(Control, nodes) + offsetof(Nodes, rows);

}  // namespace fr
