"""Jobs with pipelines: 1F1B, interleaved and two-directional; and jobs of many ranks."""

from .program import S_BWD, S_NORM, S_RS, Op, Row, ddp, fsdp, new_shape, site

S_BWD_P2P = site("send_backward", 355, "schedules.py")
S_FWD_P2P = site("send_forward", 310, "schedules.py")
S_TP = site("row_linear", 52, "tensor_parallel.py")


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
    shape = new_shape("tp_pp_dp", rng, tp * pp * dp)
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
    shape = new_shape(kind, rng, tp * pp * dp)
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
