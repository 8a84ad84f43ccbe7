"""Runs the programs of all ranks on a model of NCCL: per-communicator streams in order, a compute
stream that waits, hosts that
run ahead to a limit. All times are maxima of earlier times, so the order of evaluation is free and
one work list suffices."""

from __future__ import annotations

from collections import defaultdict, deque

from .program import Op

INF = float("inf")


class Inst:
    """One issued operation of one rank."""

    takes = 0.0  # what the compute stream spends on it after its end

    __slots__ = (
        "arrived",
        "chain",
        "done",
        "index",
        "issued",
        "left",
        "nxt",
        "op",
        "prev",
        "rank",
        "ready",
        "started",
    )

    def __init__(self, rank, index, op, issued, prev, chain):
        self.rank, self.index, self.op, self.issued, self.prev, self.chain = (
            rank,
            index,
            op,
            issued,
            prev,
            chain,
        )
        self.done, self.started, self.arrived, self.nxt, self.left, self.ready = (
            INF,
            INF,
            False,
            None,
            0,
            0.0,
        )


class Kernel:
    """Work on the compute stream that is no communication; it may begin once it is launched."""

    __slots__ = ("done", "takes")

    def __init__(self, launched, takes):
        self.done, self.takes = launched, takes


class Device:
    """What is broken below the hosts: device_dead[rank] = index of its first operation that never
    runs; lag[rank] = index of the
    operation that runs for others but does not end on this rank; broken_groups = communicator ->
    slot from which nothing ends;
    broken_link = (group, a, b, how many pass)."""

    def __init__(self):
        self.dead, self.lag, self.groups, self.links, self.slow = {}, {}, {}, {}, {}


class Run:
    def __init__(self, n, programs, rng, device=None, limit=1000, op_s=2e-4, on_device=0.0):
        self.n, self.programs, self.rng, self.device = n, programs, rng, device or Device()
        self.limit, self.op_s, self.on_device = limit, op_s, on_device
        self.insts = [[] for _ in range(n)]
        self.of_op = {}
        self.pc, self.host = [0] * n, [rng.random() * 0.01 for _ in range(n)]
        self.ended = [None] * n
        self.block = [None] * n
        self.tail = {}
        self.chain, self.chain_at = [[] for _ in range(n)], [[0.0] for _ in range(n)]
        self.chain_wait = [defaultdict(list) for _ in range(n)]
        self.slots, self.count = {}, defaultdict(int)
        self.mail, self.mail_count = {}, defaultdict(int)
        self.bad_slots, self.cut_off = [], []
        self.todo = deque()
        for r in range(n):
            self.todo.append(("host", r))
        while self.todo:
            what, x = self.todo.popleft()
            if what == "host":
                self._host(x)
            else:
                self._arrive(x)

    # --- hosts ---
    def _host(self, r):
        prog, insts = self.programs[r], self.insts[r]
        while self.pc[r] < len(prog):
            if self.ended[r]:
                return
            item = prog[self.pc[r]]
            if isinstance(item, Op):
                if len(insts) >= self.limit:
                    old = insts[len(insts) - self.limit]
                    if old.done == INF:
                        self.block[r] = ("inst", old)
                        return
                    self.host[r] = max(self.host[r], old.done)
                self._issue(r, item)
            elif item[0] == "wait":
                inst = self.of_op[r, id(item[1])]
                self._chain_add(r, inst)
            elif item[0] == "host":
                took = item[1] * self.device.slow.get(r, 1.0) * self.rng.uniform(0.9, 1.1)
                self.host[r] += took * (1 - self.on_device)
                if self.on_device:
                    self._chain_add(r, Kernel(self.host[r], took * self.on_device))
            elif item[0] == "sync":
                if len(self.chain_at[r]) <= len(self.chain[r]):
                    self.block[r] = ("chain", len(self.chain[r]))
                    return
                self.host[r] = max(self.host[r], self.chain_at[r][len(self.chain[r])])
            elif item[0] == "drain":
                late = [i for i in insts[-200:] if i.done == INF]
                if late:
                    self.block[r] = ("inst", late[0])
                    return
                self.host[r] = max([self.host[r], *(i.done for i in insts[-200:])])
            else:
                self.ended[r] = item[0]
                return
            self.pc[r] += 1
        if not self.ended[r]:
            self.ended[r] = "finished"

    def _wake(self, r):
        if self.block[r] is None:
            return
        kind, what = self.block[r]
        if (kind == "inst" and what.done < INF) or (
            kind == "chain" and len(self.chain_at[r]) > what
        ):
            self.block[r] = None
            self.todo.append(("host", r))

    def _issue(self, r, op):
        self.host[r] += self.op_s * self.rng.uniform(0.5, 1.5)
        key = (r, op.group.gid)
        if op.name == "p2p":
            key = (r, op.group.gid, op.members[0][1])
        inst = Inst(r, len(self.insts[r]), op, self.host[r], self.tail.get(key), len(self.chain[r]))
        if inst.prev is not None:
            inst.prev.nxt = inst
        self.tail[key] = inst
        self.insts[r].append(inst)
        self.of_op[r, id(op)] = inst
        if op.blocking:
            self._chain_add(r, inst)
        self.todo.append(("dev", inst))

    # --- streams ---
    def _chain_add(self, r, inst):
        self.chain[r].append(inst)
        self._chain_move(r)

    def _chain_move(self, r):
        chain, at = self.chain[r], self.chain_at[r]
        old = len(at)
        while len(at) <= len(chain) and chain[len(at) - 1].done < INF:
            link = chain[len(at) - 1]
            at.append(max(at[-1], link.done) + link.takes)
        if len(at) > old:
            wait = self.chain_wait[r]
            for k in range(old, len(at)):
                for inst in wait.pop(k, ()):
                    self.todo.append(("dev", inst))
            self._wake(r)

    def _arrive(self, inst):
        r = inst.rank
        if inst.arrived:
            return
        if inst.prev is not None and inst.prev.done == INF:
            return  # woken by prev
        if len(self.chain_at[r]) <= inst.chain:
            self.chain_wait[r][inst.chain].append(inst)
            return
        if inst.index >= self.device.dead.get(r, INF):
            return
        inst.arrived = True
        before = inst.prev.done if inst.prev is not None else 0.0
        inst.ready = max(inst.issued + 2e-5, before, self.chain_at[r][inst.chain])
        inst.started = inst.ready
        if inst.op.is_coll:
            self._collective(inst)
        else:
            self._messages(inst)

    def _finish(self, inst, when):
        if inst.index >= self.device.lag.get(inst.rank, INF):
            return
        inst.done = when
        self._chain_move(inst.rank)
        self._wake(inst.rank)
        if inst.nxt is not None:
            self.todo.append(("dev", inst.nxt))

    # --- meetings ---
    def _collective(self, inst):
        op, gid = inst.op, inst.op.group.gid
        k = self.count[gid, inst.rank]
        self.count[gid, inst.rank] = k + 1
        slot = self.slots.setdefault((gid, k), [])
        slot.append(inst)
        if len(slot) < len(op.group.members):
            return
        if k >= self.device.groups.get(gid, INF):
            self.cut_off.append(slot)
            return
        if not self._agree(slot):
            self.bad_slots.append((gid, k, slot))
            return
        took = self.rng.uniform(5e-4, 5e-3)
        when = max(i.ready for i in slot) + took
        for i in slot:
            self._finish(i, when + self.rng.random() * 2e-4)

    @staticmethod
    def _agree(slot):
        first = slot[0].op
        if any(i.op.name != first.name or i.op.dtype != first.dtype for i in slot):
            return False
        if first.name == "all_to_all":
            return sum(i.op.ins[0][0] for i in slot) == sum(i.op.outs[0][0] for i in slot)
        if first.name == "coal":
            return all(i.op.members == first.members for i in slot)
        return all(i.op.ins == first.ins and i.op.outs == first.outs for i in slot)

    def _messages(self, inst):
        inst.left = len(inst.op.members)
        r = inst.rank
        for is_send, peer, size in inst.op.members:
            if peer == r:
                inst.left -= 1
                continue
            base = (
                (inst.op.group.gid, inst.op.name, r, peer)
                if is_send
                else (inst.op.group.gid, inst.op.name, peer, r)
            )
            mine, other = base + (is_send,), base + (not is_send,)
            k = self.mail_count[mine]
            self.mail_count[mine] = k + 1
            gid, _, a, b = base
            broken = self.device.links.get((gid, a, b), INF)
            theirs = self.mail.pop(other + (k,), None)
            if theirs is None:
                self.mail[mine + (k,)] = (inst, size)
                continue
            other_inst, other_size = theirs
            if k >= broken:
                self.cut_off.append([inst, other_inst])
                continue
            if other_size != size or other_inst.op.dtype != inst.op.dtype:
                self.bad_slots.append((gid, k, [inst, other_inst]))
                continue
            when = max(inst.ready, other_inst.ready)
            for x in (inst, other_inst):
                x.left -= 1
                x.ready = max(x.ready, when)
                if x.left == 0:
                    self._finish(x, x.ready + self.rng.uniform(3e-4, 2e-3))
        if inst.left == 0 and inst.done == INF:
            self._finish(inst, inst.ready + 1e-3)

    # --- what came of it ---
    @property
    def hung(self):
        return any(e != "finished" for e in self.ended) or any(
            i and i[-1].done == INF for i in self.insts
        )

    def someone_waits(self, but=()):
        for r in range(self.n):
            if r not in but and any(i.done == INF for i in self.insts[r][-400:]):
                return True
        return False

    def first_pending(self, r):
        return next((i for i in self.insts[r] if i.done == INF), None)

    def end_time(self):
        last = 0.0
        for insts in self.insts:
            for i in insts[-400:]:
                last = max(last, i.issued, i.done if i.done < INF else 0.0)
        return last
