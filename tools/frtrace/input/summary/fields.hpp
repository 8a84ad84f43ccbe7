// fields.hpp - the members of a rank's evidence, listed once for writing and reading. A struct that
// gains a member does not compile here.
//
// `io` takes: numbers, codes and truths; texts; times (std::int64_t); lists and pairs of these;
// id(), a string of the rank; stack(), shape(), frames(), of its tables; raw(), a signed number
// that is not a time; history(), the records, with those that every reader needs apart from the
// rest.
#pragma once

#include "model/rank_data.hpp"

namespace frtrace::reduce {

#define FR_MEMBERS(T, ...)     \
  template <class Io>          \
  void fields(Io& io, T& of) { \
    auto& [__VA_ARGS__] = of;  \
    io(__VA_ARGS__);           \
  }

FR_MEMBERS(RankRange, first, count, stride)
FR_MEMBERS(LaneEvidence, group, peer, send, relative, guessed, newest_number, enqueued, started,
           completed, ended, failed, enqueued_time, completed_time)
FR_MEMBERS(ThreadNotes, tid, note, note_time, spans)
FR_MEMBERS(PeerEvidence, rank, pid, state, status, signal, exit_time, last_op, last_site, exit_site)
FR_MEMBERS(DeviceSpan, ticket, start, end)
FR_MEMBERS(CarriedPhase, phase, pid, process, generation)
FR_MEMBERS(DeviceFailure, present, code, name, text, call, has_record, ticket, time)
FR_MEMBERS(RasEvidence, asked, address, format, answer, error, cut)
FR_MEMBERS(NodesEvidence::Silent, host, first_rank, n_ranks, stride)
FR_MEMBERS(NodesEvidence, asked, took_ns, unanswered)
FR_MEMBERS(Identity, job, host, boot_id, command, cwd, recorder, attempt, rank, local_rank,
           world_size, local_world_size, pid, proc_start, run, start, warned, anonymous, n_records)
FR_MEMBERS(Losses, dropped, overwritten, torn, status_lost, strings_lost, stacks_lost, groups_lost,
           lanes_lost, no_group, groups_forgotten, cut, trimmed)
FR_MEMBERS(Holes, only_active, no_stacks, no_status, no_members, no_p2p, relative_p2p,
           frontier_inferred, failure_inferred, run_by_clock, rank_from_name, truncated,
           frontiers_at_least, written_guessed, from_log, only_stacks, may_wait, reduced,
           truncated_at, only_times, calls_only, no_completions, unrecorded)
FR_MEMBERS(FrameVariables, frame, values)
FR_MEMBERS(FileLock, waits, holder, kind, holder_name, file)
FR_MEMBERS(ThreadModule, file, build_id)

#undef FR_MEMBERS

template <class Io>
void fields(Io& io, Record& of) {
  auto& [ticket, time, seq, in_numel, out_numel, started, ended, group, op, stack, tid, peer,
         timeout_ms, batch, shape_first, shape_count, in_dtype, out_dtype, reduce_op, error, flags,
         kind, state] = of;
  io(ticket, kind, group, peer, seq, time, started, ended, in_numel, out_numel, tid, timeout_ms,
     batch, flags, state);
  io.id(op);
  io.stack(stack);
  io.shape(shape_first, shape_count);
  io.id(in_dtype);
  io.id(out_dtype);
  io.id(reduce_op);
  io.id(error);
}

template <class Io>
void fields(Io& io, GroupEvidence& of) {
  auto& [used, name, desc, backend, instance, generation, n_ranks, own_rank, ranks, created,
         destroyed, enqueued, started, completed, ended, failed, enqueued_time, started_time,
         completed_time, p2p_enqueued, p2p_ended, lifecycle, lifecycle_ended, untracked, wait_only,
         wait_only_ended, released, kept, first_kept, last_kept, overwritten, dropped] = of;
  io(used);
  io.id(name);
  io.id(desc);
  io.id(backend);
  io(instance, generation, n_ranks, own_rank, ranks, created, destroyed, enqueued, started,
     completed, ended, failed, enqueued_time, started_time, completed_time, p2p_enqueued, p2p_ended,
     lifecycle, lifecycle_ended, untracked, wait_only, wait_only_ended, released, kept, first_kept,
     last_kept, overwritten, dropped);
}

template <class Io>
void fields(Io& io, ExitEvidence& of) {
  auto& [present, state, status, signal, sender_pid, kind, type, message, stack, time] = of;
  io(present, state, status, signal, sender_pid, kind, type, message, time);
  io.stack(stack);
}

template <class Io>
void fields(Io& io, CommEvidence& of) {
  auto& [used, ended, profiled, hash, group, pg_group, n_ranks, rank, n_nodes, captured, name,
         error, error_time] = of;
  io(used, ended, profiled, hash, group, pg_group, n_ranks, rank, n_nodes, captured, error_time);
  io.id(name);
  io.id(error);
}

template <class Io>
void fields(Io& io, DeviceOperation& of) {
  auto& [row, comm, has_record, ticket, state, flags, stream, launching, launched, started,
         channels, channels_started, channels_ended, transfers_started, transfers_ended, algorithm,
         generation, phase_first, phase_count] = of;
  io(row, comm, has_record, ticket, state, flags, stream, launching, launched, started, channels,
     channels_started, channels_ended, transfers_started, transfers_ended, generation);
  io.id(algorithm);
}  // phases are found by their own row

template <class Io>
void fields(Io& io, DevicePhase& of) {
  auto& [row, has_record, ticket, kind, wait, channel, peer, step, n_steps, time, nic, qp, socket,
         carrier] = of;
  io(row, has_record, ticket, kind, wait, channel, peer, step, n_steps, time);
  io.raw(nic);
  io.raw(qp);
  io.raw(socket);
}

template <class Io>
void fields(Io& io, DeviceEvidence& of) {
  auto& [present, plugin_api, events, process, comms_lost, ops_lost, phases_lost, unmatched,
         threads_lost, comms, spans, operations, phases, carried, failure, observer_call,
         observer_since] = of;
  io(present, plugin_api, events, process, comms_lost, ops_lost, phases_lost, unmatched,
     threads_lost, comms, spans, operations, phases, carried, failure, observer_call,
     observer_since);
}

template <class Io>
void fields(Io& io, ChildProcess& of) {
  auto& [pid, name, state, activity, wchan, syscall, syscall_on, wait_status, stack] = of;
  io(pid, name, state, activity, wchan, syscall, syscall_on, wait_status);
  io.thread_stack(stack);
}

template <class Io>
void fields(Io& io, ThreadStack& of) {
  auto& [tid, name, state, activity, wchan, syscall, syscall_on, gil, answer, answer_us, looked_ns,
         cpu_ns, runqueue_ns, whole, handling, stack, cut_after, cut, variables] = of;
  io(tid, name, state, activity, wchan, syscall, syscall_on, gil, answer, answer_us, looked_ns,
     cpu_ns, runqueue_ns, whole, handling, cut_after, cut, variables);
  io.thread_stack(stack);
}

template <class Io>
void fields(Io& io, ThreadsEvidence& of) {
  auto& [present, signal, not_asked, took_ns, asking_ns, threads_lost, frames_lost, modules_lost,
         frames, modules, children_known, children, locks, threads] = of;
  io(present, signal, not_asked, took_ns, asking_ns, threads_lost, frames_lost, modules_lost,
     modules, children_known, children, locks, threads);
}  // frames are those of the summary

template <class Io>
void fields(Io& io, RankEvidence& of) {
  auto& [file, format, holes, newest, looked, clock_set, file_time, source, id, reason, trigger,
         incident, written, salvaged, salvaged_by, oom_kills, salvage, process_gone, options,
         layers, strings, frames, stacks, shape_words, groups, lanes, records, has_step, step,
         notes, exit, peers, threads, threads_by, device, ras, nodes, deadlines, witness, losses,
         unreadable_rows] = of;
  io(id, file, format, holes, newest, looked, file_time, source, reason, trigger, incident, written,
     salvaged, salvaged_by, salvage, process_gone, options, layers, groups, lanes, has_step, notes,
     exit, peers, threads, threads_by, device, ras, nodes, losses, unreadable_rows, witness);
  io.raw(clock_set);
  io.raw(oom_kills);
  io.raw(step);
  io.history(records);
}

}  // namespace frtrace::reduce
