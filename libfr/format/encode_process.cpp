// encode_process.cpp - a region into a dump: threads, exit record, peers, notes.
#include "format/packer.hpp"
#include "format/syscalls.hpp"
#include "format/thread_report.hpp"

namespace fr::packing {

using schema::get;

void pack_exit(Packer& p, const Header& h, const Times& times) {
  const auto state = static_cast<ExitState>(h.exit.state.load(std::memory_order_acquire));
  text(p, "exit");
  if (state == kRunning) {
    p.pack_nil();
    return;
  }
  const bool has_texts = h.exit.ready.load(std::memory_order_acquire) != 0;
  pack_map(p, times, schema::kExit, schema::ExitCells{h.exit, state, has_texts});
}

void pack_peers(Packer& p, const DumpFacts& facts, const Times& times) {
  const Control* control = facts.control;
  text(p, "peers");
  u32 n = 0;
  bool shown[kPeers] = {};
  if (control != nullptr) {
    for (u32 i = 0; i < kPeers; ++i) {
      shown[i] = control->peers[i].state.load(std::memory_order_acquire) >= kPeerLive;
      n += shown[i] ? 1 : 0;
    }
  }
  p.pack_array(n);
  for (u32 i = 0; i < kPeers && n > 0; ++i) {
    if (!shown[i]) {
      continue;
    }
    const PeerRow& row = control->peers[i];
    const u32 state = row.state.load(std::memory_order_acquire);
    const bool is_gone =
        facts.is_alive != nullptr && !facts.is_alive(get(row.pid), get(row.proc_start));
    const dump::Peer how = state == kPeerExitedClean ? dump::Peer::kExitedClean
                           : state == kPeerExited    ? dump::Peer::kExited
                           : is_gone                 ? dump::Peer::kGone
                                                     : dump::Peer::kLive;
    pack_map(p, times, schema::kPeer, schema::PeerCells{row, how});
  }
}

namespace {
constexpr const char* kGilWords[] = {"", "holds", "waits"};

void pack_thread(Packer& p, const ThreadReport& all, const ThreadRow& row) {
  const Task& t = row.task;
  p.pack_map(22);
  key_int(p, "tid", t.tid);
  key_text(p, "name", t.name);
  text(p, "state");
  text(p, std::string_view(&t.state, 1));
  text(p, "activity");
  text(p, row.interrupted ? "interrupted" : activity(t));
  key_text(p, "wchan", t.wchan);
  text(p, "syscall");
  text(p, syscall_name(t.syscall));
  key_int(p, "syscall_number", t.syscall);
  text(p, "syscall_args");
  p.pack_array(t.syscall >= 0 ? 6 : 0);
  for (u32 i = 0; t.syscall >= 0 && i < 6; ++i) {
    p.pack_uint64(t.args[i]);
  }
  key_text(p, "syscall_on", t.target);
  key_uint(p, "looked_ns", t.looked_ns);
  key_uint(p, "cpu_ns", t.cpu_ns);
  key_uint(p, "runqueue_ns", t.runqueue_ns);
  key_uint(p, "voluntary_switches", t.voluntary_switches);
  key_uint(p, "involuntary_switches", t.involuntary_switches);
  text(p, "gil");
  text(p, kGilWords[static_cast<u32>(row.gil)]);
  text(p, "answer");
  text(p, answer_name(row.answer));
  key_uint(p, "answer_us", row.answer_us);
  text(p, "whole");
  row.whole ? p.pack_true() : p.pack_false();
  text(p, "handling");
  text(p, all.text + row.handling);
  text(p, "stack");
  p.pack_array(row.n_frames);
  for (u32 i = 0; i < row.n_frames; ++i) {
    p.pack_uint32(all.stack[row.first_frame + i]);
  }
  text(p, "cut");
  if (row.python_cut == 0) {
    p.pack_nil();
  } else {
    p.pack_array(2);
    p.pack_uint32(row.cut_after);
    p.pack_uint32(row.python_cut);
  }
  // rows of this thread lie together, those of one frame too
  const auto index = static_cast<u32>(&row - all.threads);
  u32 first = 0;
  while (first < all.n_variables && all.variables[first].thread != index) {
    ++first;
  }
  u32 last = first;
  u32 n_frames = 0;
  while (last < all.n_variables && all.variables[last].thread == index) {
    n_frames += last == first || all.variables[last].frame != all.variables[last - 1].frame ? 1 : 0;
    ++last;
  }
  text(p, "variables");
  p.pack_array(n_frames);
  while (first < last) {
    u32 end = first;
    while (end < last && all.variables[end].frame == all.variables[first].frame) {
      ++end;
    }
    p.pack_array(2);
    p.pack_uint32(all.variables[first].frame);
    p.pack_array(end - first);
    for (; first < end; ++first) {
      p.pack_array(2);
      text(p, all.text + all.variables[first].name);
      text(p, all.text + all.variables[first].value);
    }
  }
}

}  // namespace

void pack_threads(Packer& p, const ThreadReport* all) {
  text(p, "threads");
  p.pack_array(all != nullptr ? all->n_threads : 0);
  for (u32 i = 0; all != nullptr && i < all->n_threads; ++i) {
    pack_thread(p, *all, all->threads[i]);
  }
  text(p, "thread_facts");
  if (all == nullptr) {
    p.pack_nil();
    return;
  }
  p.pack_map(13);
  key_int(p, "signal", all->signal);
  text(p, "not_asked");
  text(p, all->why);
  key_uint(p, "took_ns", all->took_ns);
  key_uint(p, "asking_ns", all->asking_ns);
  key_uint(p, "threads_lost", all->threads_lost);
  key_uint(p, "frames_lost", all->frames_lost);
  key_uint(p, "modules_lost", all->modules_lost);
  text(p, "frames");
  p.pack_array(all->n_frames);
  for (u32 i = 0; i < all->n_frames; ++i) {
    const NamedFrame& f = all->frames[i];
    p.pack_array(5);
    text(p, f.python ? "python" : "native");
    text(p, all->text + f.function);
    text(p, all->text + f.file);
    p.pack_uint32(f.line);
    p.pack_uint64(f.offset);
  }
  key_uint(p, "children_lost", all->children_lost);
  text(p, "children");
  p.pack_array(all->n_children);
  for (u32 i = 0; i < all->n_children; ++i) {
    const ChildRow& c = all->children[i];
    p.pack_map(8);
    key_int(p, "pid", c.task.tid);
    key_text(p, "name", c.task.name);
    text(p, "state");
    text(p, std::string_view(&c.task.state, 1));
    text(p, "activity");
    text(p, activity(c.task));
    key_text(p, "wchan", c.task.wchan);
    text(p, "syscall");
    text(p, syscall_name(c.task.syscall));
    key_text(p, "syscall_on", c.task.target);
    key_int(p, "wait_status", c.wait_status);
  }
  key_uint(p, "locks_lost", all->locks_lost);
  text(p, "locks");
  p.pack_array(all->n_locks);
  for (u32 i = 0; i < all->n_locks; ++i) {
    const LockRow& l = all->locks[i];
    p.pack_map(6);
    text(p, "waits");
    l.waits ? p.pack_true() : p.pack_false();
    key_text(p, "kind", l.kind);
    key_int(p, "holder", l.holder);
    key_text(p, "holder_name", l.holder_name);
    key_uint(p, "inode", l.inode);
    key_text(p, "file", l.file);
  }
  text(p, "modules");
  p.pack_array(all->n_modules);
  for (u32 i = 0; i < all->n_modules; ++i) {
    const ModuleRow& m = all->modules[i];
    char hex[2 * sizeof m.build_id + 1] = "";
    for (u32 k = 0; k < m.build_id_bytes; ++k) {
      hex[2 * k] = "0123456789abcdef"[m.build_id[k] >> 4];
      hex[2 * k + 1] = "0123456789abcdef"[m.build_id[k] & 15];
      hex[2 * k + 2] = '\0';
    }
    p.pack_array(2);
    text(p, all->text + m.file);
    text(p, hex);
  }
}

}  // namespace fr::packing
