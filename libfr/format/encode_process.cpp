// encode_process.cpp - a region into a dump: threads, exit record, peers, notes.
#include <iterator>

#include "format/packer.hpp"

namespace fr {

schema::CrumbCells::CrumbCells(const Crumb& of) noexcept : crumb(of) {
  for (int tries = 0; tries < 4 && !is_whole; ++tries) {
    const u32 seq = crumb.note_seq.load(std::memory_order_acquire);
    note_bytes = crumb.note_bytes.load(std::memory_order_relaxed);
    note_ticks = get(crumb.note_ticks);
    for (u32 w = 0; w < std::size(note); ++w) {
      note[w] = crumb.note[w].load(std::memory_order_relaxed);
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    is_whole = seq != 0 && (seq & 1) == 0 && crumb.note_seq.load(std::memory_order_relaxed) == seq;
  }
  depth = crumb.depth.load(std::memory_order_acquire);
}

schema::ModuleCells::ModuleCells(const ThreadReport& all, const ModuleRow& row) noexcept
    : file(all.text + row.file) {
  for (u32 k = 0; k < row.build_id_bytes; ++k) {
    build_id[2 * k] = "0123456789abcdef"[row.build_id[k] >> 4];
    build_id[2 * k + 1] = "0123456789abcdef"[row.build_id[k] & 15];
  }
}

schema::VariablesCells schema::variables_of(const ThreadCells& t, u32 i) noexcept {
  const auto thread = static_cast<u32>(&t.row - t.all.threads);
  const VariableRow* const end = t.all.variables + t.all.n_variables;
  const VariableRow* first = t.all.variables;
  while (first != end && first->thread != thread) {
    ++first;
  }
  for (;; --i) {
    const VariableRow* last = first;
    while (last != end && last->thread == thread && last->frame == first->frame) {
      ++last;
    }
    if (i == 0 || last == first) {
      return {t.all, {first, last}};
    }
    first = last;
  }
}

namespace packing {

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

void pack_notes(Packer& p, const View& view, const Times& times) {
  const Crumb* crumbs[kCrumbs];
  u32 n = 0;
  for (u32 i = 0; i < view.n_crumbs() && n < kCrumbs; ++i) {
    crumbs[n] = view.crumb(i);
    n += crumbs[n] != nullptr ? 1 : 0;
  }
  const Header& h = view.header();
  text(p, "notes");
  pack_map(p, times, schema::kNotes, schema::NotesCells{h, get(h.step_ticks), {crumbs, n}});
}

void pack_threads(Packer& p, const ThreadReport* all, const Times& times) {
  text(p, "threads");
  cell(p, times, schema::Maps{schema::kThreads, all != nullptr ? all->n_threads : 0, [all](u32 i) {
                                return schema::ThreadCells{*all, all->threads[i]};
                              }});
  text(p, "thread_facts");
  if (all != nullptr) {
    pack_map(p, times, schema::kThreadFacts, *all);
  } else {
    p.pack_nil();
  }
}

}  // namespace packing
}  // namespace fr
