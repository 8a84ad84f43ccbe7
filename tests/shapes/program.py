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
S_TP = site("row_linear", 52, "tensor_parallel.py")
S_FWD_P2P = site("send_forward", 310, "schedules.py")
S_BWD_P2P = site("send_backward", 355, "schedules.py")
S_RING = site("ring_attention", 71, "context.py")
S_A2A = site("dispatch_tokens", 40, "experts.py")
S_A2A_BACK = site("combine_tokens", 63, "experts.py")
S_EVAL = site("evaluate", 150)
S_CKPT = site("save_async", 18, "checkpoint.py")
DTYPES = ["Float", "BFloat16", "Half"]


def _base(kind, rng, n, one_name=None):
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
    shape = _base("ddp", rng, n)
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
    shape = _base(kind, rng, n)
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


class Mesh:
    """Ranks laid out as pipeline stage x replica x tensor-parallel member, and the groups of each
    dimension."""

    def __init__(self, shape, tp, pp, dp):
        self.tp, self.pp, self.dp = tp, pp, dp
        self.at = lambda s, d, t: (s * dp + d) * tp + t
        self.where = {
            self.at(s, d, t): (s, d, t) for s in range(pp) for d in range(dp) for t in range(tp)
        }
        at = self.at
        S, D, T = range(pp), range(dp), range(tp)
        self.tp_g = shape.family("mesh_tp", [[at(s, d, t) for t in T] for s in S for d in D])
        self.pp_g = shape.family("mesh_pp", [[at(s, d, t) for s in S] for d in D for t in T])
        self.dp_g = shape.family("mesh_dp", [[at(s, d, t) for d in D] for s in S for t in T])
        shape.role = [self.where[r][0] for r in range(shape.n)]


def tp_pp_dp(rng, tp=None, pp=None, dp=None, batched=None, micro=None):
    """Tensor x pipeline x data parallel with the one-forward-one-backward schedule."""
    if tp is None:
        tp, pp, dp = rng.choice(
            [
                (1, 2, 2),
                (2, 2, 1),
                (2, 2, 2),
                (1, 4, 1),
                (2, 4, 1),
                (1, 4, 2),
                (2, 4, 2),
                (4, 2, 2),
                (4, 4, 2),
                (2, 4, 4),
            ]
        )
    shape = _base("tp_pp_dp", rng, tp * pp * dp)
    mesh = shape.mesh = Mesh(shape, tp, pp, dp)
    batched = rng.random() < 0.7 if batched is None else batched
    micro = micro or rng.randint(2, 2 * pp)
    each = shape.step_s / (2 * micro)
    tp_ops = rng.randint(1, 2)
    hidden = rng.choice([512, 1024, 4096])
    buckets = [rng.choice([4096, 65536]) for _ in range(rng.randint(1, 3))]
    dp_blocking = rng.random() < 0.5
    two_dp = rng.random() < 0.3
    second = (
        shape.family(
            "mesh_dp_cp",
            [[mesh.at(s, d, t) for d in range(dp)] for s in range(pp) for t in range(tp)],
        )
        if two_dp
        else None
    )

    def write(it):
        rows = []
        for r in range(shape.n):
            s, d, t = mesh.where[r]
            row = Row()
            prev_, next_ = (
                (mesh.at(s - 1, d, t) if s else None),
                (mesh.at(s + 1, d, t) if s + 1 < pp else None),
            )

            def talk(members, site_, row=row, r=r):
                row.p2p(
                    mesh.pp_g[r],
                    [m for m in members if m[1] is not None],
                    shape.dtype,
                    site_,
                    batched,
                )

            def work(row=row, r=r):
                for _ in range(tp_ops):
                    row.host(each / tp_ops)
                    row.coll(mesh.tp_g[r], "all_reduce", [hidden], shape.dtype, S_TP)

            warm = min(pp - 1 - s, micro)
            for _ in range(warm):
                talk([(False, prev_, hidden)], S_FWD_P2P)
                work()
                talk([(True, next_, hidden)], S_FWD_P2P)
            left = micro - warm
            if left:
                talk([(False, prev_, hidden)], S_FWD_P2P)
            for i in range(left):
                work()
                talk([(True, next_, hidden), (False, next_, hidden)], S_FWD_P2P)
                work()
                if i == left - 1:
                    talk([(True, prev_, hidden)], S_BWD_P2P)
                else:
                    talk([(False, prev_, hidden), (True, prev_, hidden)], S_BWD_P2P)
            for _ in range(warm):
                talk([(False, next_, hidden)], S_BWD_P2P)
                work()
                talk([(True, prev_, hidden)], S_BWD_P2P)
            ops = [
                row.coll(mesh.dp_g[r], "all_reduce", [b], "Float", S_BWD, dp_blocking)
                for b in buckets
            ]
            for op in ops:
                if op is not None and not dp_blocking:
                    row.wait(op)
            if second is not None:
                row.coll(second[r], "_reduce_scatter_base", [256 * dp], "Float", S_RS, True, [256])
            row.coll(shape.world, "all_reduce", [1], "Float", S_NORM)
            if shape.loss:
                row.sync()
            rows.append(row)
        return rows

    shape.writer = write
    return shape


def deep_pipe(rng):
    shape = tp_pp_dp(
        rng,
        *rng.choice([(2, 8, 4), (4, 8, 2), (1, 8, 8), (1, 8, 1), (2, 8, 1)]),
        micro=rng.randint(8, 12),
    )
    shape.kind = "deep_pipe"
    return shape


def ring(rng, n=None):
    """A ring of sends and receives that are not batched: even members send first, odd ones receive
    first."""
    n = n or rng.choice([4, 6, 8, 16])
    shape = _base("ring", rng, n)
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
    shape = _base("moe" if dims == 1 else "moe_2d", rng, n)
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
    shape = _base("context_ring", rng, n)
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


def _ticks(chains, micro, both):
    """A greedy schedule. chains: per direction the pipeline position of each virtual stage.
    Returns per tick
    ({position: tasks}, [(from, to, task that sends, task that needs it)])."""
    todo = {
        (d, f, v, m)
        for d, chain in enumerate(chains)
        for f in "FB"
        for v in range(len(chain))
        for m in range(micro)
    }
    done, ready_at, out, tick = set(), {}, [], 0
    here = lambda task: chains[task[0]][task[2]]  # noqa: E731

    def needs(task):
        d, f, v, m = task
        last = len(chains[d]) - 1
        if f == "F":
            return [(d, "F", v - 1, m)] if v else []
        return [(d, "F", v, m)] + ([(d, "B", v + 1, m)] if v < last else [])

    while todo:
        picked, moves = {}, []
        for task in sorted(
            todo, key=lambda t: (t[1] != "B", t[3], -t[2] if t[1] == "B" else -t[2], t[0])
        ):
            p = here(task)
            mine = picked.setdefault(p, [])
            if any(x not in done or ready_at[x] > tick for x in needs(task)):
                continue
            if not mine or (both and len(mine) == 1 and mine[0][1] != task[1]):
                mine.append(task)
        for p in sorted(picked):
            for task in picked[p]:
                todo.discard(task)
                done.add(task)
                ready_at[task] = tick + 1
                d, f, v, m = task
                nxt = (d, f, v + 1, m) if f == "F" else (d, f, v - 1, m)
                if 0 <= nxt[2] < len(chains[d]) and here(nxt) != p:
                    moves.append((p, here(nxt), task, nxt))
        out.append((picked, moves))
        tick += 1
    return out


def tick_pipe(rng, kind):
    """Interleaved (virtual stages) or two-directional pipelines: one batch per tick and rank,
    waited for where it is needed."""
    tp, pp, dp = rng.choice(
        [(1, 3, 1), (1, 4, 1), (2, 2, 2), (1, 4, 2), (2, 4, 1), (2, 4, 2), (1, 8, 1), (2, 4, 4)]
    )
    shape = _base(kind, rng, tp * pp * dp)
    mesh = shape.mesh = Mesh(shape, tp, pp, dp)
    if kind == "interleaved":
        chunks = rng.randint(2, 3)
        chains, both = [[v % pp for v in range(pp * chunks)]], False
    else:
        chains, both = [list(range(pp)), list(range(pp))[::-1]], True
    ticks = _ticks(chains, rng.randint(2, pp + 2), both)
    hidden, tp_ops = rng.choice([512, 1024]), 1
    lazy = rng.random() < 0.6

    def write(it):
        rows = []
        for r in range(shape.n):
            s, d, t = mesh.where[r]
            row, owed = Row(), {}
            for picked, moves in ticks:
                for task in picked.get(s, []):
                    if task in owed:
                        for op in owed.pop(task):
                            row.wait(op)
                    row.host(shape.step_s / len(ticks))
                    for _ in range(tp_ops):
                        row.coll(mesh.tp_g[r], "all_reduce", [hidden], shape.dtype, S_TP)
                members, needed = [], []
                for a, b, _sent, need in moves:
                    if a == s:
                        members.append((True, mesh.at(b, d, t), hidden))
                    if b == s:
                        members.append((False, mesh.at(a, d, t), hidden))
                        needed.append(need)
                if members:
                    ops = row.p2p(mesh.pp_g[r], members, shape.dtype, S_FWD_P2P, True, not lazy)
                    for need in needed:
                        owed[need] = ops if lazy else []
            for op in [x for x in row if isinstance(x, Op) and x.is_p2p and not x.blocking]:
                row.wait(op)
            row.coll(mesh.dp_g[r], "all_reduce", [65536], "Float", S_BWD)
            row.coll(shape.world, "all_reduce", [1], "Float", S_NORM)
            if shape.loss:
                row.sync()
            rows.append(row)
        return rows

    shape.writer = write
    return shape


def interleaved(rng):
    return tick_pipe(rng, "interleaved")


def two_way(rng):
    return tick_pipe(rng, "two_way")


def accumulation(rng, n=None):
    shape = ddp(rng, n, rng.randint(2, 4), rng.random() < 0.5)
    shape.kind = "accumulation"
    return shape


def wide(rng):
    """Many ranks: 128 to 512."""
    n = rng.choice([128, 128, 256, 512])
    make = rng.choice(["ddp", "hsdp", "pipe"])
    if make == "ddp":
        shape = ddp(rng, n)
    elif make == "hsdp":
        shape = fsdp(rng, n, n // 8)
    else:
        shape = tp_pp_dp(rng, 4, 4, n // 16, micro=4)
    shape.kind = "wide"
    return shape
