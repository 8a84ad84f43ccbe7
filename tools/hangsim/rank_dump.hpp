// rank_dump.hpp - the dump of one simulated rank, under the names and words of
// libfr/format/schema.hpp. Nothing else here is libfr's: what the simulator writes and what libfr
// writes can differ, and then the tests see it.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <msgpack.hpp>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "device.hpp"
#include "format/schema.hpp"

namespace hangsim {

namespace schema = fr::schema;

using Packer = msgpack::packer<msgpack::sbuffer>;

// The way in which a rank's dump was written.
struct How {
  bool present = true;
  Ns at = 0;
  std::string trigger, reason;
  std::optional<int> salvaged_by;
};

class RankDump {
 public:
  RankDump(const Case& c, const DeviceView& view, int rank, const How& how)
      : c_(c), e_(c.fr), view_(view), rank_(rank), run_(c.run_of(rank)), how_(how) {}

  std::string write();

 private:
  bool tells_devices() const { return c_.job.backend == "nccl" && e_.timing; }

  // Sets the state of each record from NCCL's data about its operation.
  void as_devices_tell(Ns at);

  // Strings stand before the tables that number them: tables are packed apart, first.
  std::uint32_t text(std::string_view s) {
    if (s.empty()) {
      return 0;
    }
    const auto [it, added] = ids_.try_emplace(std::string(s), strings_.size());
    if (added) {
      strings_.emplace_back(s);
    }
    return static_cast<std::uint32_t>(it->second);
  }

  static void key(Packer& p, std::string_view s) {
    p.pack_str(static_cast<std::uint32_t>(s.size()));
    p.pack_str_body(s.data(), static_cast<std::uint32_t>(s.size()));
  }
  template <class T>
  static void field(Packer& p, std::string_view name, const T& v) {
    key(p, name);
    p.pack(v);
  }
  // Columns of a table of the schema, in an order of its own: a name that fr does not write does
  // not compile.
  template <const auto& table>
  struct Name {
    consteval Name(const char* n) : text(schema::column(table, n)) {}
    const char* text;
  };
  template <const auto& table>
  static void columns(Packer& p, std::initializer_list<Name<table>> names) {
    p.pack_map(2);
    key(p, "fields");
    p.pack_array(static_cast<std::uint32_t>(names.size()));
    for (const Name<table>& name : names) {
      p.pack(name.text);
    }
    key(p, "rows");
  }
  // A time of the job's clock, 0 at the start of the job.
  void time(Packer& p, Ns t) const {
    if (t == kNever) {
      p.pack_nil();
    } else {
      p.pack(t);
    }
  }

  // Records that are kept: the last ones of each group survive when the ring wraps.
  std::vector<bool> kept() const;

  // The operation ended, but its success was not seen.
  bool is_over(std::size_t i) const { return released_[i] || i == failed_; }

  struct Frontier {
    std::uint64_t enqueued = 0, started = 0, completed = 0, ended = 0, failed = 0;
    Ns enqueued_time = kNever, started_time = kNever, completed_time = kNever;
    void add(const Seen& s, bool over, bool broke) {
      const std::uint64_t seq = s.issued->seq;
      enqueued = std::max(enqueued, seq);
      enqueued_time = std::max(enqueued_time, s.issued->created);
      if (s.started) {
        started = std::max(started, seq);
        started_time = std::max(started_time, s.issued->started);
      }
      if (over) {
        ++ended;
        failed += broke ? 1 : 0;
      } else if (s.done) {
        ++ended;
        failed += s.issued->failed ? 1 : 0;
        if (!s.issued->failed) {
          completed = std::max(completed, seq);
          completed_time = std::max(completed_time, s.issued->done);
        }
      }
    }
  };

  void records(Packer& p, const std::vector<bool>& keep);

  int stack_of(int site);
  int frame(const std::string& file, int line, const std::string& function);

  // Operations of one group.
  struct Sums {
    Frontier all;  // collectives
    std::uint64_t p2p = 0, p2p_ended = 0, released = 0, kept = 0, first = 0, last = 0;
    Ns p2p_time = kNever;
  };
  std::map<int, Sums> sums_of(const std::vector<bool>& keep) const;
  void groups(Packer& p, const std::vector<bool>& keep);

  void lanes(Packer& p);

  void identity(Packer& p);

  // NCCL's data: communicators, operations not ended on the device, and their transfers.
  void device(Packer& p, Ns at);
  struct Phases;
  void phase(Phases& all, const OperationRow* own, const CarriedRow* other,
             const PhaseRow& row) const;
  void communicators(Packer& p, const std::map<Comm, std::size_t>& comms) const;
  void operations(Packer& p, const std::vector<OperationRow>& rows,
                  const std::map<Comm, std::size_t>& comms) const;
  void cuda_error(Packer& p) const;
  // Slots of the tables behind NCCL's handles are reused.
  static std::uint64_t slot(std::uint64_t ticket) { return ticket % 512; }
  static std::uint64_t generation(std::uint64_t ticket) { return 1 + ticket / 512; }
  std::uint64_t salt(int rank) const {
    return scramble(c_.seed, static_cast<std::uint64_t>(rank)) % 0xffff + 1;
  }

  // The ranks of this node, and their states.
  void peers(Packer& p);

  void exit_record(Packer& p);

  void body(Ns at);

  int step_at(Ns at) const;

  std::string compress() const;

  const Case& c_;
  const Evidence& e_;
  const DeviceView& view_;
  const int rank_;
  const RankRun& run_;
  const How& how_;
  bool ended_ = false;
  std::vector<Seen> ops_;
  std::vector<bool> released_;     // of ops_
  std::size_t failed_ = SIZE_MAX;  // in ops_: the operation ended by the device's error
  const DeviceError* error_ = nullptr;
  std::uint32_t error_id_ = 0;  // string id of the error's text
  std::map<int, int> row_of_;   // group -> row
  std::vector<std::string> strings_{""};
  std::unordered_map<std::string, std::size_t> ids_;
  std::vector<std::array<std::uint32_t, 3>> frames_;
  std::vector<std::vector<int>> stacks_;
  std::map<int, int> by_site_;  // -> stack
  msgpack::sbuffer out_;
};

}  // namespace hangsim
