// rank_dump_device.cpp - NCCL's and CUDA's data about a simulated rank's device.
#include "rank_dump.hpp"

namespace hangsim {

void RankDump::as_devices_tell(Ns at) {
  released_.assign(ops_.size(), false);
  for (const DeviceError& x : c_.errors) {
    error_ = x.rank == rank_ && x.at <= at ? &x : error_;
  }
  for (std::size_t i = 0; i < ops_.size() && tells_devices(); ++i) {
    Seen& s = ops_[i];
    const bool launched = s.issued->launched != kNever && s.issued->launched <= at;
    if (launched && view_.is_unseen(rank_, *s.issued->op)) {
      released_[i] = true;
      s.started = s.done = false;
    } else if (!s.done) {
      s.started = view_.is_started(rank_, *s.issued, at);
    }
    if (error_ != nullptr && failed_ == SIZE_MAX && !s.done && !released_[i] &&
        s.issued->created <= error_->at) {
      failed_ = i;
    }
  }
}

// Rows of transfers and kernels: n are in the dump, `lost` more found its table full.
struct RankDump::Phases {
  std::size_t n = 0, lost = 0;
  msgpack::sbuffer rows;
};

void RankDump::phase(Phases& all, const OperationRow* own, const CarriedRow* other,
                     const PhaseRow& row) const {
  // Drops a third of the rows of a lossy rank, as a full table does.
  if (holds(e_.lossy, rank_) &&
      scramble(c_.seed, static_cast<std::uint64_t>(rank_) * 4096 + all.n + all.lost) % 3 == 0) {
    ++all.lost;
    return;
  }
  ++all.n;
  Packer p(all.rows);
  const auto none = [&p](int n) {
    for (int i = 0; i < n; ++i) {
      p.pack_nil();
    }
  };
  p.pack_array(17);
  if (own != nullptr) {
    p.pack(slot(own->ticket));
    p.pack(own->ticket);
  } else {
    p.pack(-1);
    none(1);
  }
  p.pack(row.kind);
  p.pack(row.channel);
  p.pack(row.peer);
  p.pack(row.waits_for);
  p.pack(row.step);
  p.pack(row.n_steps);
  time(p, row.time);
  p.pack(1);
  if (e_.nics && std::string_view(row.kind) != "kernel") {
    p.pack(row.channel % 2);
    p.pack(70 + row.channel + 8 * row.peer);
  } else {
    none(2);
  }
  none(1);
  p.pack(other != nullptr ? 4000 + other->rank : 0);
  if (other != nullptr) {
    p.pack(salt(other->rank));
    p.pack(slot(other->ticket));
    p.pack(generation(other->ticket));
  } else {
    none(3);
  }
}

void RankDump::communicators(Packer& p, const std::map<Comm, std::size_t>& comms) const {
  key(p, "comms");
  columns<schema::kComms>(p, {"comm", "hash", "group", "pg_group", "n_ranks", "rank", "n_nodes",
                              "ended", "error", "error_time", "profiled"});
  p.pack_array(static_cast<std::uint32_t>(comms.size()));
  bool reported = false;
  for (const auto& [comm, row] : comms) {
    const Group& g = c_.job.groups[static_cast<std::size_t>(comm.group)];
    const int own = g.position(rank_);
    // NCCL reports its error for the communicator of the operation in flight.
    const bool nccl_error = error_ != nullptr && !error_->cuda && !reported &&
                            (failed_ == SIZE_MAX || ops_[failed_].issued->op->group == comm.group);
    reported = reported || nccl_error;
    p.pack_array(11);
    p.pack(row);
    p.pack(1000 + comm.group + (comm.is_pair() ? 100'000 * (1 + comm.low * 1024 + comm.high) : 0));
    p.pack(0);
    p.pack(row_of_.at(comm.group));
    p.pack(comm.is_pair() ? 2 : g.ranks.size());
    p.pack(comm.is_pair() ? (own == comm.low ? 0 : 1) : own);
    p.pack(view_.nodes_of(comm));
    p.pack(0);
    p.pack(nccl_error ? error_id_ : 0);
    time(p, nccl_error ? error_->at : kNever);
    p.pack(1);
  }
}

void RankDump::operations(Packer& p, const std::vector<OperationRow>& rows,
                          const std::map<Comm, std::size_t>& comms) const {
  key(p, "operations");
  columns<schema::kOperations>(
      p, {"op", "ticket", "comm", "state", "flags", "stream", "launching", "launched", "started",
          "channels", "channels_started", "generation"});
  p.pack_array(static_cast<std::uint32_t>(rows.size()));
  for (const OperationRow& o : rows) {
    const bool failed = failed_ != SIZE_MAX && ops_[failed_].ticket == o.ticket;
    p.pack_array(12);
    p.pack(slot(o.ticket));
    p.pack(o.ticket);
    p.pack(comms.at(o.comm));
    p.pack(failed ? "failed" : o.state);
    p.pack(o.issued->op->is_p2p() ? 1 : 0);
    p.pack(e_.api < 5 ? 0 : 4096 * comms.at(o.comm));
    time(p, o.launching);
    time(p, o.launched);
    time(p, o.started);
    p.pack(o.channels);
    p.pack(o.channels_started);
    p.pack(generation(o.ticket));
  }
}

void RankDump::cuda_error(Packer& p) const {
  key(p, "error");
  if (error_ == nullptr || !error_->cuda) {
    p.pack_nil();
    return;
  }
  p.pack_map(6);
  field(p, "code", 700);
  field(p, "name", error_->name);
  field(p, "text", error_->text);
  field(p, "call", "cudaEventQuery");
  key(p, "ticket");
  if (failed_ == SIZE_MAX) {
    p.pack_nil();
  } else {
    p.pack(ops_[failed_].ticket);
  }
  key(p, "time");
  time(p, error_->at);
}

void RankDump::device(Packer& p, Ns at) {
  key(p, "device");
  if (!tells_devices() || holds(e_.no_device, rank_)) {
    p.pack_nil();
    return;
  }
  const std::vector<OperationRow> rows = view_.operations(rank_, at);
  std::set<Comm> used;
  for (const auto& [group, _] : row_of_) {
    used.insert({group, -1, -1});
  }
  for (const OperationRow& o : rows) {
    used.insert(o.comm);
  }
  std::map<Comm, std::size_t> comms;
  for (const Comm& c : used) {
    comms.emplace(c, comms.size() + 1);
  }
  Phases phases;
  for (const OperationRow& o : rows) {
    for (const PhaseRow& row : o.phases) {
      phase(phases, &o, nullptr, row);
    }
  }
  for (const CarriedRow& row : view_.carried(rank_, at)) {
    phase(phases, nullptr, &row, row.phase);
  }
  p.pack_map(7);
  field(p, "plugin_api", e_.api);
  field(p, "process", salt(rank_));
  key(p, "losses");
  p.pack_map(1);
  field(p, "phases_lost", phases.lost);
  communicators(p, comms);
  operations(p, rows, comms);
  key(p, "phases");
  columns<schema::kPhases>(
      p, {"op", "ticket", "kind", "channel", "peer", "waits_for", "step", "n_steps", "time", "live",
          "nic", "qp", "socket", "pid", "of_process", "of_op", "of_generation"});
  p.pack_array(static_cast<std::uint32_t>(phases.n));
  out_.write(phases.rows.data(), phases.rows.size());
  cuda_error(p);
}

}  // namespace hangsim
