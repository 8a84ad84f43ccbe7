"""Faults: each changes the programs (or the devices) of a healthy job at one iteration and says
who did it.

A fault function takes a Plan and returns a Fault, or None where the job offers no place for it.
Fault.shown(run) says after the run
whether the fault was reached and did what it should; only then the case is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .program import S_RING, Op, site
from .run import INF, Device

S_DEBUG = site("debug_sum", 203)


@dataclass
class Plan:
    rng: Any
    shape: Any
    rows: list
    at: int  # the iteration of the fault
    device: Device
    taken: set = field(default_factory=set)

    def rank(self, among=None):
        free = [
            r for r in (among if among is not None else range(self.shape.n)) if r not in self.taken
        ]
        return self.rng.choice(free) if free else None

    def row(self, r):
        return self.rows[self.at][r]

    def absolute(self, r, index):
        return sum(len(self.rows[i][r]) for i in range(self.at)) + index

    def op_index(self, r, op):
        k = 0
        for it in range(self.at + 1):
            for item in self.rows[it][r]:
                if item is op:
                    return k
                k += isinstance(item, Op)
        raise ValueError


@dataclass
class Fault:
    name: str
    kinds: list  # accepted kinds, the best first
    ranks: list
    shown: Any
    # the case is decidable only if the files of these ranks hold their earlier iterations
    history: tuple = ()
    timing: bool = False  # decidable only where the files know "started"
    also: list = field(default_factory=list)  # further accepted (kind, ranks)
    tie: tuple = ()  # both sides: accepted where no earlier iteration tells which of them changed
    gone: tuple = ()
    why: str = ""
    undecidable: str = ""


def _drop(row, op):
    row[:] = [
        x
        for x in row
        if x is not op and not (isinstance(x, tuple) and x[0] == "wait" and x[1] is op)
    ]


def _colls(plan, r, want=lambda op: True):
    return [
        x for x in plan.row(r) if isinstance(x, Op) and x.is_coll and x.name != "coal" and want(x)
    ]


def _passed(plan, r, index):
    where = plan.absolute(r, index)
    return lambda run: run.pc[r] > where


def _history(op, r):
    """Two members cannot outvote each other: earlier iterations must tell."""
    return tuple(op.group.members) if len(op.group.members) < 3 else ()


def stop(plan, word="stop", among=None):
    r = plan.rank(among)
    if r is None:
        return None
    plan.taken.add(r)
    row = plan.row(r)
    index = plan.rng.randrange(1, len(row) + 1)
    if plan.rng.random() < 0.3:
        row.insert(index, ("drain",))
        index += 1
    row.insert(index, (word,))
    del row[index + 1 :]
    for later in plan.rows[plan.at + 1 :]:
        later[r].clear()
    return Fault("stop", ["missing"], [r], lambda run: run.ended[r] == word)


def gone(plan):
    fault = stop(plan, "exit")
    if fault is None:
        return None
    fault.name, fault.kinds, fault.gone = "gone", ["exited"], tuple(fault.ranks)
    r = fault.ranks[0]
    if plan.rng.random() < 0.5:  # killed in flight: its last operations die with it
        ops = sum(isinstance(x, Op) for it in range(plan.at + 1) for x in plan.rows[it][r])
        plan.device.dead[r] = max(0, ops - plan.rng.randint(1, 4))
    return fault


def several(count):
    def fault(plan):
        parts = [stop(plan) for _ in range(count)]
        if None in parts:
            return None
        ranks = sorted(p.ranks[0] for p in parts)
        return Fault("stop", ["missing"], ranks, lambda run: all(p.shown(run) for p in parts))

    return fault


def skip(plan):
    r = plan.rank()
    ops = _colls(plan, r)
    if not ops:
        return None
    op = plan.rng.choice(ops)
    index = plan.row(r).index(op)
    _drop(plan.row(r), op)
    plan.taken.add(r)
    return Fault("skip", ["missing", "mismatch"], [r], _passed(plan, r, index), _history(op, r))


def short_eval(plan):
    """One rank has one evaluation batch less than the others: a run of operations is left out."""
    from .program import S_EVAL

    r = plan.rank()
    ops = _colls(plan, r, lambda op: op.site is S_EVAL)
    if not ops:
        return None
    ends = [i for i, op in enumerate(ops) if op.name == "all_reduce"]
    first = 0 if len(ends) < 2 or plan.rng.random() < 0.3 else ends[-2] + 1
    last = ends[-1] if first else ends[0]
    index = plan.row(r).index(ops[first])
    for op in ops[first : last + 1]:
        _drop(plan.row(r), op)
    plan.taken.add(r)
    return Fault(
        "short_eval", ["missing", "mismatch"], [r], _passed(plan, r, index), _history(ops[0], r)
    )


def extra(plan):
    r = plan.rank()
    ops = _colls(plan, r)
    if not ops:
        return None
    op = plan.rng.choice(ops)
    new = op.copy()
    new.blocking = True
    if plan.rng.random() < 0.5:
        new.name, new.ins, new.outs, new.dtype, new.site = (
            "all_reduce",
            [[3]],
            [[3]],
            "Float",
            S_DEBUG,
        )
    row = plan.row(r)
    index = row.index(op)
    row.insert(index, new)
    plan.taken.add(r)
    return Fault(
        "extra", ["mismatch", "missing", "deadlock"], [r], _passed(plan, r, index), _history(op, r)
    )


def _changed(plan, name, change, want):
    r = plan.rank()
    ops = _colls(plan, r, want)
    if not ops:
        return None
    op = plan.rng.choice(ops)
    change(op)
    plan.taken.add(r)
    shown = lambda run: any(i.op is op for _, _, slot in run.bad_slots for i in slot)  # noqa: E731
    return Fault(name, ["mismatch"], [r], shown, _history(op, r), tie=_history(op, r))


def size(plan):
    def change(op):
        k = plan.rng.choice([2, 3])
        d = plan.rng.choice([0, 1])
        op.ins = [[x * k + d for x in dims] for dims in op.ins]
        op.outs = [[x * k + d for x in dims] for dims in op.outs]

    return _changed(plan, "size", change, lambda op: op.name != "all_to_all")


def dtype(plan):
    def change(op):
        op.dtype = plan.rng.choice([d for d in ("Float", "Half", "Double") if d != op.dtype])

    return _changed(plan, "dtype", change, lambda op: True)


def wrong_op(plan):
    def change(op):
        op.name = plan.rng.choice(
            [x for x in ("all_reduce", "broadcast", "reduce") if x != op.name]
        )
        op.outs = op.ins

    return _changed(plan, "wrong_op", change, lambda op: op.name != "all_to_all")


def split(plan):
    def change(op):
        op.ins = [[op.ins[0][0] + plan.rng.randint(1, 99), *op.ins[0][1:]]]

    fault = _changed(plan, "split", change, lambda op: op.name == "all_to_all")
    if fault and plan.shape.uneven:
        fault.undecidable = "splits differ by design: totals disagree, nothing names the rank"
        fault.also = [("mismatch", [])]
    elif fault:
        fault.history = (
            fault.tie
        ) = ()  # its input differs from its own output and from all sizes of its peers
    return fault


def inversion(plan):
    r = plan.rank()
    row = plan.row(r)
    blocking = [i for i, x in enumerate(row) if isinstance(x, Op) and x.is_coll and x.blocking]

    def between(i, j):
        both = (row[i].group, row[j].group)
        return (x for x in row[i + 1 : j] if isinstance(x, Op) and (x.is_p2p or x.group in both))

    pairs = [
        (i, j)
        for a, i in enumerate(blocking)
        for j in blocking[a + 1 : a + 3]
        if row[i].group is not row[j].group and not any(between(i, j))
    ]
    if not pairs:
        return None
    i, j = plan.rng.choice(pairs)
    ops = row[i], row[j]
    row[i], row[j] = row[j], row[i]
    plan.taken.add(r)
    few = tuple({m for op in ops if len(op.group.members) < 3 for m in op.group.members})
    return Fault("inversion", ["deadlock"], [r], _passed(plan, r, j), few)


def circle(plan):
    """All members of a ring receive first: nobody sends."""
    evens = []
    for r in range(plan.shape.n):
        row = plan.row(r)
        ops = [x for x in row if isinstance(x, Op) and x.is_p2p and x.site is S_RING][:2]
        if len(ops) < 2 or len(ops[0].members) > 1:
            return None
        if ops[0].members[0][0]:
            evens.append(r)
            ops[0].members, ops[1].members = ops[1].members, ops[0].members
    everyone = list(range(plan.shape.n))
    plan.taken.update(everyone)
    return Fault("circle", ["deadlock"], everyone, lambda run: True, also=[("deadlock", evens)])


def _members(plan, r, want):
    return [
        (op, k)
        for op in plan.row(r)
        if isinstance(op, Op) and op.is_p2p
        for k, m in enumerate(op.members)
        if want(m, op)
    ]


def _p2p_rank(plan, want):
    ranks = list(range(plan.shape.n))
    plan.rng.shuffle(ranks)
    for r in ranks:
        if r not in plan.taken and _members(plan, r, want):
            return r, *plan.rng.choice(_members(plan, r, want))
    return None


def wrong_peer(plan):
    picked = _p2p_rank(plan, lambda m, op: m[0] and len(op.group.members) > 2)
    if not picked:
        return None
    r, op, k = picked
    _, peer, count = op.members[k]
    op.members[k] = (
        True,
        plan.rng.choice([q for q in op.group.members if q not in (r, peer)]),
        count,
    )
    plan.taken.add(r)
    kinds = ["missing", "mismatch", "deadlock"]
    return Fault("wrong_peer", kinds, [r], _passed(plan, r, plan.row(r).index(op)), (r,))


def _left_out(is_send):
    def fault(plan):
        picked = _p2p_rank(plan, lambda m, op: m[0] is is_send)
        if not picked:
            return None
        r, op, k = picked
        peer = op.members[k][1]
        index = plan.row(r).index(op)
        if len(op.members) == 1:
            _drop(plan.row(r), op)
        else:
            del op.members[k]
        plan.taken.add(r)
        return Fault(
            "left_out_send" if is_send else "left_out_recv",
            ["missing"],
            [r],
            _passed(plan, r, index),
            (r, peer),
        )

    return fault


missing_send, missing_recv = _left_out(True), _left_out(False)


def pair_size(plan):
    picked = _p2p_rank(plan, lambda m, op: True)
    if not picked:
        return None
    r, op, k = picked
    is_send, peer, count = op.members[k]
    op.members[k] = (is_send, peer, count // 4 + 1)
    plan.taken.add(r)
    shown = lambda run: any(i.op is op for _, _, slot in run.bad_slots for i in slot)  # noqa: E731
    return Fault("pair_size", ["mismatch"], [r], shown, (r, peer), tie=(r, peer))


def pair_order(plan):
    """One stage turns the order of its send and its receive with one neighbour: both ends receive
    (or send) first."""
    ranks = list(range(plan.shape.n))
    plan.rng.shuffle(ranks)
    for r in ranks:
        row = plan.row(r)
        for i in range(len(row) - 1):
            a, b = row[i], row[i + 1]
            if not (isinstance(a, Op) and isinstance(b, Op) and a.name == b.name == "p2p"):
                continue
            if a.members[0][1] == b.members[0][1] and a.members[0][0] != b.members[0][0]:
                row[i], row[i + 1] = b, a
                plan.taken.add(r)
                both = sorted([r, a.members[0][1]])
                return Fault(
                    "pair_order", ["deadlock"], [r], _passed(plan, r, i), (r,), tie=tuple(both)
                )
    return None


def _any_op(plan, r):
    ops = [x for x in plan.row(r) if isinstance(x, Op)]
    return plan.rng.choice(ops) if ops else None


def _at_head(run, r, index):
    """The operation was next on its stream and nothing before it was open: the device stands there
    and nowhere else."""
    if len(run.insts[r]) <= index:
        return False
    i = run.insts[r][index]
    return (i.prev is None or i.prev.done < INF) and len(run.chain_at[r]) > i.chain


def _others(run, inst):
    """The other ends of one instance, as far as they were met: same slot of the group."""
    for (gid, _k), slot in run.slots.items():
        if gid == inst.op.group.gid and inst in slot:
            return [i for i in slot if i is not inst]
    return []


def device_lag(plan):
    r = plan.rank()
    ops = _colls(plan, r) or [None]
    op = plan.rng.choice(ops)
    if op is None:
        return None
    index = plan.op_index(r, op)
    plan.device.lag[r] = index
    plan.taken.add(r)

    def shown(run):
        return len(run.insts[r]) > index and any(
            i.done < INF for i in _others(run, run.insts[r][index])
        )

    return Fault("device_lag", ["device"], [r], shown)


def device_dead(plan):
    r = plan.rank()
    op = _any_op(plan, r)
    if op is None:
        return None
    index = plan.op_index(r, op)
    plan.device.dead[r] = index
    plan.taken.add(r)
    return Fault("device_dead", ["device"], [r], lambda run: _at_head(run, r, index), timing=True)


def two_devices(plan):
    a = device_dead(plan)
    b = device_dead(plan)
    if a is None or b is None:
        return None
    ranks = sorted(a.ranks + b.ranks)
    return Fault(
        "two_devices", ["device"], ranks, lambda run: a.shown(run) and b.shown(run), timing=True
    )


def transport(plan):
    r = plan.rank()
    ops = [x for x in plan.row(r) if isinstance(x, Op)]
    if not ops:
        return None
    op = plan.rng.choice(ops)
    before = [x for it in range(plan.at + 1) for x in plan.rows[it][r] if isinstance(x, Op)]
    before = before[: next(i for i, x in enumerate(before) if x is op)]
    if op.is_coll:
        gid = op.group.gid
        plan.device.groups[gid] = sum(x.is_coll and x.group.gid == gid for x in before)
    else:
        is_send, peer, _ = op.members[0]
        a, b = (r, peer) if is_send else (peer, r)
        same = [m for x in before if x.name == op.name and x.group is op.group for m in x.members]
        plan.device.links[op.group.gid, a, b] = sum(m[0] == is_send and m[1] == peer for m in same)
    return Fault("transport", ["transport"], [], lambda run: bool(run.cut_off), timing=True)


def healthy(plan):
    return Fault("healthy", ["ok"], [], lambda run: True)


def slow(plan):
    r = plan.rank()
    plan.device.slow[r] = plan.rng.choice([1.5, 3.0, 6.0])
    return Fault("slow", ["ok", "slow"], [], lambda run: True, also=[("slow", [r])])


def two(*makers):
    """Two independent faults; generate.py checks that each alone hangs the job, too."""

    def fault(plan):
        parts = [make(plan) for make in makers]
        if None in parts or len({r for p in parts for r in p.ranks}) < 2:
            return None
        if plan.shape.n < 6:
            return None  # two of few: no majority is left to tell them from
        kinds = list(dict.fromkeys(k for p in parts for k in p.kinds))
        made = Fault(
            "two",
            kinds,
            sorted(r for p in parts for r in p.ranks),
            lambda run: all(p.shown(run) for p in parts),
            tuple(m for p in parts for m in p.history),
            any(p.timing for p in parts),
        )
        made.why = " and ".join(p.name for p in parts)
        return made

    return fault
