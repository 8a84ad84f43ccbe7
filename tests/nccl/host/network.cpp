// network.cpp - the threads of a communicator: that of its transfers, which up to version 6 reports
// kernels, too, and that which reports kernels with version 7. See library.cpp for what they follow.
#include <pthread.h>

#include "simulation.hpp"

namespace host {
namespace {

// Version 1 reports each slice (profiler.cc, ncclProfilerStartSendProxyStepEvents).
int slices() {
  return Profiler::api() == 1 ? kSlices : 1;
}

void begin_step(const Comm& c, Lane& l, uint64_t n) {
  for (int i = 0; i < slices() && l.op != nullptr; ++i) {
    Event e{kProxyStep};
    e.parent = l.op;
    e.steps = static_cast<int>(n) * slices() + i;
    l.handle[n % kDepth][i] = c.profiler.start(e);
  }
}
void step_state(const Comm& c, Lane& l, uint64_t n, int state, size_t bytes = 0) {
  for (int i = 0; i < slices(); ++i) {
    c.profiler.state(l.handle[n % kDepth][i], state, bytes);
  }
}
void end_step(const Comm& c, Lane& l, uint64_t n) {
  for (int i = 0; i < slices(); ++i) {
    c.profiler.stop(l.handle[n % kDepth][i]);
  }
}

// A state of the transfer as a whole; versions 1 to 3 only. 2.23 counts slices, newer ones whole
// steps (profiler.cc, ncclProfilerRecordProxyOpEventState).
void count_state(const Comm& c, const Lane& l, int state, uint64_t steps) {
  if (Profiler::api() <= 3) {
    c.profiler.state(l.op, state, 0, static_cast<int>(steps) * slices());
  }
}

bool progress_send(const Comm& c, Lane& l, int fault) {
  bool moved = false;
  Wire& w = *l.wire;
  while (l.posted < l.steps && l.posted < l.done + kDepth) {
    begin_step(c, l, l.posted);
    l.posted.fetch_add(1);
    count_state(c, l, kSendPosted, l.posted);
    step_state(c, l, l.posted - 1, kSendGpuWait);
    moved = true;
  }
  if (l.moved < l.posted && w.filled.load() > l.base + l.moved) {
    if (Profiler::api() >= 4) {
      step_state(c, l, l.moved, kSendPeerWait);  // at every poll
    }
    count_state(c, l, kSendRemFifoWait, l.moved + 1);
    if (fault != kHostNoCredit && w.posted.load() > l.base + l.moved) {
      step_state(c, l, l.moved, kSendWait, 1 << 19);
      ++l.moved;
      count_state(c, l, kSendTransmitted, l.moved);
      if (fault != kHostLost && fault != kHostForgotten) {
        w.arrived.fetch_add(1);
      }
      if (fault != kHostLost) {
        w.acknowledged.fetch_add(1);
      }
      moved = true;
    }
  }
  while (l.done < l.moved && w.acknowledged.load() > l.base + l.done) {
    end_step(c, l, l.done);
    ++l.done;
    count_state(c, l, kSendDone, l.done);
    moved = true;
  }
  return moved;
}

bool progress_recv(const Comm& c, Lane& l) {
  bool moved = false;
  Wire& w = *l.wire;
  while (l.posted < l.steps && l.posted < l.done + kDepth) {
    begin_step(c, l, l.posted);
    w.posted.fetch_add(1);
    l.posted.fetch_add(1);
    count_state(c, l, kRecvPosted, l.posted);
    step_state(c, l, l.posted - 1, kRecvWait);
    moved = true;
  }
  while (l.moved < l.posted && w.arrived.load() > l.base + l.moved) {
    step_state(c, l, l.moved, kRecvFlushWait, 1 << 19);
    ++l.moved;
    count_state(c, l, kRecvReceived, l.moved);
    step_state(c, l, l.moved - 1, kRecvGpuWait, 1 << 19);
    count_state(c, l, kRecvTransmitted, l.moved);
    l.flushed.fetch_add(1);
    moved = true;
  }
  while (l.done < l.moved && w.taken.load() > l.base + l.done) {
    end_step(c, l, l.done);
    ++l.done;
    count_state(c, l, kRecvDone, l.done);
    moved = true;
  }
  return moved;
}

void start_transfer(const Comm& c, const Work& w, Lane& l) {
  if (l.networked && w.told()) {
    Event e{kProxyOp};
    e.parent = w.task;
    e.channel = l.channel;
    e.root = l.peer;
    e.steps = static_cast<int>(l.steps) * slices();
    e.is_send = l.send;
    l.op = c.profiler.start(e);
  }
}

bool progress(Comm& c, Plan& p, std::map<const void*, Lane*>& busy) {
  bool moved = false;
  for (auto& w : p.works) {
    for (Lane& l : w->lanes) {
      if (!l.networked || l.over || w->fault == kHostNoThread) {
        continue;
      }
      Lane*& first = busy.try_emplace(l.wire, &l).first->second;
      if (first != &l) {
        continue;  // queued behind an earlier transfer of the same connection
      }
      if (!l.begun && Profiler::api() >= 4) {
        c.profiler.state(l.op, kInProgress);
      } else if (!l.begun) {
        start_transfer(c, *w, l);
      }
      l.begun = true;
      moved = (l.send ? progress_send(c, l, w->fault) : progress_recv(c, l)) || moved;
      if (l.done == l.steps) {
        l.over = true;
        c.profiler.stop(l.op);
        busy.erase(l.wire);
      }
    }
  }
  return moved;
}

bool report_kernels(Comm& c, Plan& p, bool& over) {
  bool moved = false;
  over = true;
  for (auto& w : p.works) {
    const Work* seen = nullptr;  // the work with the kernel that has this number
    {
      const std::lock_guard guard(c.lock);
      const auto found = c.numbered.find(w->number);
      seen = found != c.numbered.end() ? found->second : nullptr;
    }
    for (const auto& other : p.works) {
      if (w->is_p2p && !w->is_send && other->is_send && !other->is_self() && seen == w.get()) {
        seen = other.get();  // the send of the same pair reports for both
      }
    }
    for (size_t i = 0; i < w->blocks.size(); ++i) {
      Block& b = w->blocks[i];
      const Block* by = seen != nullptr ? &seen->blocks[i] : nullptr;
      const bool started = by != nullptr && by->started, ended = by != nullptr && by->ended;
      if (!b.start_told && started) {
        Event e{kKernelCh};
        e.parent = w->task;
        e.channel = b.channel;
        e.timer = by->start_ns;
        b.handle = w->told() && !w->is_self() ? c.profiler.start(e) : nullptr;
        b.start_told = moved = true;
      } else if (b.start_told && !b.end_told && ended) {
        c.profiler.state(b.handle, kKernelChStop, by->end_ns);
        c.profiler.stop(b.handle);
        b.end_told = moved = true;
      }
      over = over && b.end_told;
    }
  }
  return moved;
}

bool is_over(const Plan& p) {
  for (const auto& w : p.works) {
    for (const Lane& l : w->lanes) {
      if (l.networked && !l.over) {
        return false;
      }
    }
  }
  return true;
}

std::deque<Plan*> copy_of(Comm& c, const std::deque<Plan*>& list) {
  const std::lock_guard guard(c.lock);
  return list;
}

}  // namespace

void run_kernel_reports(Comm* c) {
  Nap nap;
  for (;;) {
    bool moved = false;
    for (Plan* p : copy_of(*c, c->kernels)) {
      bool over = false;
      moved = report_kernels(*c, *p, over) || moved;
      if (over) {
        const std::lock_guard guard(c->lock);
        std::erase(c->kernels, p);
      }
    }
    nap(moved);
  }
}

void run_progress(Comm* c) {
  pthread_setname_np(pthread_self(), "NCCL Progress");
  Nap nap;
  std::map<const void*, Lane*> busy;
  for (;;) {
    bool moved = false;
    for (Plan* p : copy_of(*c, c->uploaded)) {
      if (!p->is_uploaded.load()) {
        for (auto& w : p->works) {
          for (Lane& l : w->lanes) {
            if (Profiler::api() >= 4) {
              start_transfer(*c, *w, l);  // proxy.cc, ProxyAppend; before, when it begins
            }
          }
        }
        p->is_uploaded.store(true);
      }
      moved = progress(*c, *p, busy) || moved;
      bool kernel_over = true;
      if (Profiler::api() < 7) {
        moved = report_kernels(*c, *p, kernel_over) || moved;
      }
      if (kernel_over && is_over(*p)) {
        const std::lock_guard guard(c->lock);
        std::erase(c->uploaded, p);
      }
    }
    nap(moved);
  }
}

}  // namespace host
