"""Jobs as per-rank lists of operations, in the order in which each host issues them.

A shape (class Shape) knows its groups and writes one iteration at a time; nothing here knows of
faults, of time or of files.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Group:
    """One communicator: gid is its identity here; name and desc are what the dumps show (names may
    repeat)."""

    gid: int
    name: str
    desc: str
    members: tuple[int, ...]


class Op:
    """One device operation of one rank: a collective, a send or receive, a batch of those, or
    coalesced collectives."""

    __slots__ = ("blocking", "dtype", "group", "ins", "it", "members", "name", "outs", "site")

    def __init__(self, group, name, ins, outs, dtype, site, blocking=True, members=None):
        self.group, self.name, self.ins, self.outs, self.dtype = group, name, ins, outs, dtype
        self.site, self.blocking, self.members, self.it = site, blocking, members, 0

    def copy(self):
        members = None if self.members is None else list(self.members)
        new = Op(
            self.group,
            self.name,
            list(self.ins),
            list(self.outs),
            self.dtype,
            self.site,
            self.blocking,
            members,
        )
        new.it = self.it
        return new

    @property
    def is_p2p(self):
        return self.name in ("p2p", "batch")

    @property
    def is_coll(self):
        return not self.is_p2p


# Items of a program besides Op: ("wait", op) the compute stream waits for op; ("sync",) the host
# waits for the compute stream;
# ("drain",) the host waits for everything; ("host", seconds); ("stop",) the host never comes back;
# ("exit",) the process ends.


class Row(list):
    """The items of one rank in one iteration, with short words for adding to it."""

    def coll(self, group, name, size, dtype, site, blocking=True, out=None):
        if len(group.members) < 2:
            return None
        op = Op(
            group, name, [list(size)], [list(size if out is None else out)], dtype, site, blocking
        )
        self.append(op)
        return op

    def wait(self, op):
        if op is not None:
            self.append(("wait", op))

    def host(self, seconds):
        self.append(("host", seconds))

    def sync(self):
        self.append(("sync",))

    def p2p(self, group, members, dtype, site, batched, blocking=True):
        """members: (is_send, peer, size). Batched: one operation; else one operation each. Returns
        what to wait for."""
        if not members:
            return []
        if batched:
            op = Op(group, "batch", [], [], dtype, site, blocking, list(members))
            self.append(op)
            return [op]
        ops = []
        for member in members:
            op = Op(group, "p2p", [], [], dtype, site, False, [member])
            self.append(op)
            ops.append(op)
        if blocking:
            for op in ops:
                self.append(("wait", op))
        return ops


@dataclass
class Shape:
    """A job: name, ranks, groups, and rows(it) = the items of every rank in iteration it."""

    kind: str
    n: int
    rng: random.Random
    groups: list[Group] = field(default_factory=list)
    one_name: bool = False
    step_s: float = 0.3
    role: list = field(default_factory=list)
    writer: object = None
    names: int = 2  # 0 is the world, 1 a second group of all ranks

    def group(self, name, desc, members):
        made = Group(len(self.groups), name, desc, tuple(members))
        self.groups.append(made)
        return made

    def family(self, desc, lists):
        """Groups of one mesh dimension: one name for all of them where split_group built them."""
        out = {}
        lists = [tuple(members) for members in lists]
        for i, members in enumerate(lists):
            made = self.group(str(self.names + (0 if self.one_name else i)), desc, members)
            for r in members:
                out[r] = made
        self.names += 1 if self.one_name else len(lists)
        return out

    def rows(self, it):
        rows = self.writer(it)
        for row in rows:
            for item in row:
                if isinstance(item, Op):
                    item.it = it
        return rows


def site(function, line, file="train.py"):
    return (function, f"/job/{file}", line)


S_LOSS = site("mean_loss", 96)
S_NORM = site("clip_grad_norm", 131)
S_BWD = site("backward", 88)
S_AG = site("unshard", 210, "fsdp.py")
S_RS = site("reduce_grads", 244, "fsdp.py")
S_RING = site("ring_attention", 71, "context.py")
S_A2A = site("dispatch_tokens", 40, "experts.py")
S_A2A_BACK = site("combine_tokens", 63, "experts.py")
S_EVAL = site("evaluate", 150)
S_CKPT = site("save_async", 18, "checkpoint.py")
DTYPES = ["Float", "BFloat16", "Half"]


def new_shape(kind, rng, n, one_name=None):
    shape = Shape(kind, n, rng, one_name=rng.random() < 0.25 if one_name is None else one_name)
    shape.step_s = rng.choice([0.05, 0.2, 0.5, 1.5])
    shape.world = shape.group("0", "default_pg", range(n))
    shape.dtype = rng.choice(DTYPES)
    shape.loss = rng.random() < 0.8
    shape.role = [0] * n
    return shape


def _end_of_step(shape, row):
    if shape.loss:
        row.coll(shape.world, "all_reduce", [1], "Float", S_LOSS)
        row.sync()


def ddp(rng, n=None, accumulate=1, async_ckpt=False):
    n = n or rng.choice([3, 4, 4, 6, 8, 8, 16, 32])
    shape = new_shape("ddp", rng, n)
    buckets = [
        rng.choice([512, 4096, 65536, 1 << 20]) + 16 * rng.randrange(9)
        for _ in range(rng.randint(2, 9))
    ]
    if rng.random() < 0.2:
        buckets = [buckets[0]] * len(buckets)
    buffers = rng.random() < 0.3
    ckpt = shape.group("1", "ckpt", range(n)) if async_ckpt else None
    every = rng.randint(2, 3)

    def write(it):
        rows = []
        for _ in range(n):
            row = Row()
            if buffers:
                row.coll(
                    shape.world, "broadcast", [128], "Float", site("sync_buffers", 40, "ddp.py")
                )
            for micro in range(accumulate):
                row.host(shape.step_s / accumulate)
                if micro == accumulate - 1:
                    ops = [
                        row.coll(shape.world, "all_reduce", [b], shape.dtype, S_BWD, False)
                        for b in buckets
                    ]
                    for op in ops:
                        row.wait(op)
            if ckpt and it % every == 1:
                row.coll(ckpt, "_all_gather_base", [1024], "Float", S_CKPT, False, [1024 * n])
            _end_of_step(shape, row)
            rows.append(row)
        return rows

    shape.writer = write
    return shape


def _fsdp_layers(rng):
    return [rng.choice([1 << 12, 1 << 14, 1 << 16]) + 64 * i for i in range(rng.randint(2, 8))]


def _unshard_all(shape, row, group, layers, order, site_, prefetch, body):
    k = len(group.members)
    pending = {}

    def issue(i):
        if i < len(order) and order[i] not in pending:
            size = layers[order[i]]
            pending[order[i]] = row.coll(
                group, "_all_gather_base", [size], shape.dtype, site_, False, [size * k]
            )

    for i, layer in enumerate(order):
        for ahead in range(prefetch + 1):
            issue(i + ahead)
        row.wait(pending[layer])
        body(layer)


def fsdp(rng, n=None, replicas=1, eval_every=0, coalesced=False, kind="fsdp"):
    n = n or rng.choice([4, 4, 8, 8, 16, 32])
    shape = new_shape(kind, rng, n)
    per = n // replicas
    shard = dict.fromkeys(range(n), shape.world)
    repl = None
    if replicas > 1:
        shard = shape.family("mesh_shard", [range(i * per, (i + 1) * per) for i in range(replicas)])
        repl = shape.family("mesh_replicate", [range(j, n, per) for j in range(per)])
    layers = _fsdp_layers(rng)
    prefetch = rng.randint(0, 2)
    eval_batches = rng.randint(2, 4)
    each = shape.step_s / (2 * len(layers))

    def write(it):
        rows = []
        for r in range(n):
            row, g = Row(), shard[r]
            k = len(g.members)
            fwd = list(range(len(layers)))
            _unshard_all(
                shape, row, g, layers, fwd, S_AG, prefetch, lambda _l, row=row: row.host(each)
            )
            scattered = []

            def back(layer, row=row, g=g, k=k, r=r, scattered=scattered):
                row.host(each)
                size = layers[layer]
                if coalesced:
                    halves = [size // 2, size - size // 2]
                    members = [("_reduce_scatter_base", [h * k], [h]) for h in halves]
                    op = Op(g, "coal", [], [], shape.dtype, S_RS, False, members)
                    row.append(op)
                else:
                    op = row.coll(
                        g, "_reduce_scatter_base", [size * k], shape.dtype, S_RS, False, [size]
                    )
                if repl is not None:
                    row.wait(op)
                    op = row.coll(repl[r], "all_reduce", [size], shape.dtype, S_RS, False)
                scattered.append(op)

            _unshard_all(shape, row, g, layers, fwd[::-1], S_AG, prefetch, back)
            for op in scattered:
                row.wait(op)
            row.coll(shape.world, "all_reduce", [1], "Float", S_NORM)
            if shape.loss:
                row.sync()
            if eval_every and it % eval_every == eval_every - 1:
                for _ in range(eval_batches):
                    _unshard_all(
                        shape,
                        row,
                        g,
                        layers,
                        fwd,
                        S_EVAL,
                        prefetch,
                        lambda _l, row=row: row.host(each / 2),
                    )
                    row.coll(shape.world, "all_reduce", [2], "Float", S_EVAL)
                row.sync()
            rows.append(row)
        return rows

    shape.writer = write
    return shape


def hsdp(rng, n=None):
    n = n or rng.choice([4, 8, 16, 24, 32])
    return fsdp(rng, n, rng.choice([d for d in (2, 4) if n // d >= 2]), kind="hsdp")


def zero3_eval(rng, n=None):
    return fsdp(rng, n, 1, rng.randint(2, 3), kind="zero3_eval")


def coalesced(rng, n=None):
    return fsdp(rng, n, rng.choice([1, 1, 2]), coalesced=True, kind="coalesced")


def ring(rng, n=None):
    """A ring of sends and receives that are not batched: even members send first, odd ones receive
    first."""
    n = n or rng.choice([4, 6, 8, 16])
    shape = new_shape("ring", rng, n)
    group = shape.group("1", "ring", range(n)) if rng.random() < 0.5 else shape.world
    size, rounds = rng.choice([128, 2048]), rng.randint(1, 4)
    grads = rng.choice([1024, 65536])

    def write(it):
        rows = []
        for r in range(n):
            row = Row()
            for _ in range(rounds):
                row.host(shape.step_s / rounds)
                send, recv = (True, (r + 1) % n, size), (False, (r - 1) % n, size)
                for member in [send, recv] if r % 2 == 0 else [recv, send]:
                    row.p2p(group, [member], shape.dtype, S_RING, False)
            row.coll(shape.world, "all_reduce", [grads], "Float", S_BWD)
            _end_of_step(shape, row)
            rows.append(row)
        return rows

    shape.writer = write
    return shape


def moe(rng, n=None, uneven=None, dims=1):
    if dims == 2:
        ex, ey, dp = rng.choice([(2, 2, 1), (2, 4, 1), (4, 2, 2), (4, 4, 1), (3, 2, 2)])
    else:
        ex, ey, dp = rng.choice([2, 4, 4, 8]), 1, rng.choice([1, 2, 4])
        if ex == 2 and dp == 1:
            dp = 2
    n = ex * ey * dp
    shape = new_shape("moe" if dims == 1 else "moe_2d", rng, n)
    at = lambda d, y, x: (d * ey + y) * ex + x  # noqa: E731
    gx = shape.family(
        "mesh_ep", [[at(d, y, x) for x in range(ex)] for d in range(dp) for y in range(ey)]
    )
    gy = (
        shape.family(
            "mesh_ep_outer",
            [[at(d, y, x) for y in range(ey)] for d in range(dp) for x in range(ex)],
        )
        if dims == 2
        else None
    )
    gd = shape.family(
        "mesh_dp", [[at(d, y, x) for d in range(dp)] for y in range(ey) for x in range(ex)]
    )
    shape.uneven = rng.random() < 0.5 if uneven is None else uneven
    layers, tokens = rng.randint(1, 3), rng.choice([256, 1024])
    buckets = [rng.choice([4096, 65536]) for _ in range(rng.randint(1, 3))]

    def splits(group):
        if not shape.uneven:
            return dict.fromkeys(group.members, (tokens, tokens))
        members = group.members
        table = {(a, b): shape.rng.randrange(1, tokens) for a in members for b in members}
        return {
            r: (sum(table[r, b] for b in members), sum(table[a, r] for a in members))
            for r in members
        }

    def write(it):
        rows = [Row() for _ in range(n)]
        for _ in range(layers):
            used = {}
            for dim, names in ((gx, S_A2A), (gy, S_A2A)):
                if dim is None:
                    continue
                for group in {g.gid: g for g in dim.values()}.values():
                    used[group.gid] = splits(group)
                for r in range(n):
                    rows[r].host(shape.step_s / (4 * layers))
                    a, b = used[dim[r].gid][r]
                    rows[r].coll(dim[r], "all_to_all", [a, 64], shape.dtype, names, True, [b, 64])
            for dim in (gy, gx):
                if dim is None:
                    continue
                for r in range(n):
                    rows[r].host(shape.step_s / (4 * layers))
                    a, b = used[dim[r].gid][r]
                    rows[r].coll(
                        dim[r], "all_to_all", [b, 64], shape.dtype, S_A2A_BACK, True, [a, 64]
                    )
        for r in range(n):
            for op in [
                rows[r].coll(gd[r], "all_reduce", [b], "Float", S_BWD, False) for b in buckets
            ]:
                rows[r].wait(op)
            rows[r].coll(shape.world, "all_reduce", [777], "Float", S_BWD)
            _end_of_step(shape, rows[r])
        return rows

    shape.writer = write
    return shape


def moe_2d(rng):
    return moe(rng, dims=2)


def context_ring(rng, cp=None):
    """Context parallelism: rings of batched send/receive per layer, keys and values passed on
    while attention runs."""
    cp = cp or rng.choice([3, 4, 4, 8])
    dp = rng.choice([1, 2, 4])
    n = cp * dp
    shape = new_shape("context_ring", rng, n)
    groups = shape.family("mesh_cp", [range(d * cp, (d + 1) * cp) for d in range(dp)])
    gd = shape.family("mesh_dp", [range(c, n, cp) for c in range(cp)])
    layers, size = rng.randint(1, 4), rng.choice([300, 2048])
    eager = rng.random() < 0.5

    def write(it):
        rows = []
        for r in range(n):
            row, members = Row(), groups[r].members
            i = members.index(r)
            after, before = members[(i + 1) % cp], members[(i - 1) % cp]
            for _ in range(2 * layers):
                for _ in range(cp - 1):
                    ops = row.p2p(
                        groups[r],
                        [(True, after, size), (False, before, size)],
                        shape.dtype,
                        S_RING,
                        True,
                        False,
                    )
                    row.host(shape.step_s / (2 * layers * cp))
                    for op in ops:
                        row.wait(op)
                if not eager:
                    row.sync()
            row.coll(gd[r], "all_reduce", [8192], "Float", S_BWD)
            row.coll(shape.world, "all_reduce", [65536], "Float", S_BWD)
            _end_of_step(shape, row)
            rows.append(row)
        return rows

    shape.writer = write
    return shape


def accumulation(rng, n=None):
    shape = ddp(rng, n, rng.randint(2, 4), rng.random() < 0.5)
    shape.kind = "accumulation"
    return shape
