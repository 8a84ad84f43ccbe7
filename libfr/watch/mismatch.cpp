// mismatch.cpp - one rank of the node compares for all: it maps the rings of the others.
#include "watch/mismatch.hpp"

#include <unistd.h>

#include <climits>
#include <cstring>
#include <new>

#include "format/text.hpp"
#include "format/ticks.hpp"
#include "recorder/log.hpp"
#include "recorder/recorder.hpp"
#include "sample/map_file.hpp"
#include "watch/agreement.hpp"
#include "watch/control_page.hpp"

namespace fr {
namespace {

constexpr u64 kAlive_ns =
    3'000'000'000;  // a watchdog that is not heard for so long compares nothing

// State of the rank that compares, used on its watchdog's thread.
struct Rings {
  Agreement agreement;
  bool has_memory = false, has_none = false, has_said_holes = false;
  struct {
    i32 pid;
    u64 proc_start;
    Mapping mapping;
  } at[kPeers];
};
Rings g_rings;

// The rank that has the node's endpoint compares; in a job of one node the first of the living. One
// that takes that over does not tell again of what came before.
bool is_ours(const Recorder& r, bool& takes_over) noexcept {
  const Nodes& nodes = r.control->page().nodes;
  const u32 owner = nodes.n.load(std::memory_order_acquire) > 1 ? nodes.owner.load() : 0;
  if (owner != 0 && owner <= kPeers) {
    takes_over = nodes.epoch.load() > 1;
    return r.control->own() == &r.control->page().peers[owner - 1];
  }
  const u64 now = unix_now_ns();
  takes_over = false;
  for (const PeerRow& peer : r.control->page().peers) {
    const u32 state = peer.state.load(std::memory_order_acquire);
    if (&peer == r.control->own()) {
      return true;
    }
    if (state == kPeerLive && now - peer.heartbeat_unix_ns.load() < kAlive_ns) {
      return false;
    }
    takes_over = takes_over || state != kPeerFree;
  }
  return false;
}

void attach_rings(Recorder& r, bool takes_over) noexcept {
  const Control& page = r.control->page();
  for (u32 i = 0; i < kPeers; ++i) {
    const PeerRow& peer = page.peers[i];
    auto& at = g_rings.at[i];
    const i32 pid = peer.pid.load();
    const u64 start = peer.proc_start.load();
    if (peer.state.load(std::memory_order_acquire) != kPeerLive || peer.ring[0] == '\0' ||
        (at.pid == pid && at.proc_start == start)) {
      continue;
    }
    View view = r.view;
    Mapping mapping;
    if (&peer != r.control->own()) {
      char path[PATH_MAX];
      format(path, sizeof path, "%s/%s", r.region.dir.c_str(), peer.ring);
      mapping = map_file(path);
      view = View::of(mapping.base, mapping.bytes);
    }
    if (!view.ok() || view.header().rank.load() < 0) {
      unmap_file(mapping);
      continue;  // it is just starting
    }
    if (mapping.fd >= 0) {
      close(mapping.fd);  // the program may need all that it may have
      mapping.fd = -1;
    }
    g_rings.agreement.attach(i, view, takes_over ? get(view.header().head) : 0);
    unmap_file(at.mapping);
    at = {pid, start, mapping};
  }
}

}  // namespace

void forget_mismatch(Recorder&) {
  new (&g_rings) Rings;  // a forked child: what was mapped stays, which is little
}

void look_for_mismatch() noexcept {
  Recorder* r = recorder();
  bool takes_over = false;
  if (r == nullptr || (!r->options.mismatch && r->options.fingerprint == 0) || g_rings.has_none ||
      !r->control->is_shared() || !is_ours(*r, takes_over)) {
    return;
  }
  if (!g_rings.has_memory) {
    g_rings.has_memory = g_rings.agreement.init();
    g_rings.has_none = !g_rings.has_memory;
    return;
  }
  attach_rings(*r, takes_over);
  const u64 now = monotonic_ns();
  g_rings.agreement.read_all(now);
  g_rings.agreement.set_operations(r->options.mismatch);
  if (const Nodes& nodes = r->control->page().nodes;
      r->options.mismatch && nodes.n.load(std::memory_order_acquire) > 1) {
    g_rings.agreement.set_nodes(nodes.rows, nodes.n.load(), nodes.own);
    Post post;
    while (hashes_from_nodes.take(post)) {
      g_rings.agreement.hear(post, now, posts_to_nodes);
    }
    g_rings.agreement.talk(now, posts_to_nodes);
  }
  if (g_rings.agreement.passed_by() != 0 && !g_rings.has_said_holes) {
    g_rings.has_said_holes = true;
    log_line(kLogInfo, "some operations are not compared: rings wrap before they are read");
  }
  char text[600] = "fr: ";  // of notes: frtrace shows them
  constexpr std::size_t kOwn = 4;
  while (g_rings.agreement.tell(now, text + kOwn, sizeof text - kOwn)) {
    log_line(kLogWarn, "%s", text + kOwn);
    if (Hot* h = hot()) {
      note(*h, text, std::strlen(text));
    }
  }
}

}  // namespace fr
