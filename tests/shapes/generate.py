"""python -m tests.shapes.generate --set a --seed 1 --count 300 --out DIR: labelled dump sets of
hung (and of healthy) jobs.

DIR/<class>-<number>/files/ holds the dumps, DIR/<class>-<number>/truth.json who did it."""

from __future__ import annotations

import argparse
import json
import pathlib
import random

from . import faults as F
from . import pipelines as L
from . import program as P
from .run import INF, Device, Run
from .write import VERSIONS, Options, RankFile, write_files


def _small_ring(o, rng, shape):
    o.ring = rng.choice([20, 30, 40, 60])


def _any_ring(o, rng, shape):
    o.ring = rng.choice([40, 100, 200, 500, 1000, 2000, 2000, 2000])


def _only_active(o, rng, shape):
    o.only_active = True


def _json(o, rng, shape):
    o.form = "json"


def _clocks(o, rng, shape):
    o.clock_s, o.per_node = 5.0, rng.choice([1, 2, 4])


def _mixed(o, rng, shape):
    o.versions = rng.sample(VERSIONS, 3)


def _timed(o, rng, shape):
    o.timing = True


def _free(o, rng, shape):
    """Any one oddity, or none."""
    _any_ring(o, rng, shape)
    pick = rng.random()
    for odd, share in ((_json, 0.08), (_only_active, 0.08), (_clocks, 0.1), (_mixed, 0.06)):
        if pick < share:
            odd(o, rng, shape)
            return
        pick -= share


def _one_name(make):
    def made(rng):
        state = rng.getstate()
        for _ in range(50):
            shape = make(rng)
            if shape.one_name:
                return shape
        rng.setstate(state)
        return make(rng)

    return made


def _of(*makes):
    return lambda rng: rng.choice(makes)(rng)


PIPES = _of(L.tp_pp_dp)
FLAT = _of(P.ddp, P.fsdp)
ANY = _of(P.ddp, P.fsdp, L.tp_pp_dp, L.tp_pp_dp, P.moe, P.ring)
GROUPS = _of(L.tp_pp_dp, P.moe, P.hsdp)


def _unbatched(rng):
    return L.tp_pp_dp(rng, batched=False)


def _batched(rng):
    return L.tp_pp_dp(rng, batched=True)


def _moe_even(rng):
    return P.moe(rng, uneven=False)


def _moe_uneven(rng):
    return P.moe(rng, uneven=True)


# class: (shape, fault, options, files: "" | lost | guilty_lost | guilty_cut | stale | mid | done)
SET_A = {
    "ddp_stop": (P.ddp, F.stop, _free, ""),
    "fsdp_stop": (P.fsdp, F.stop, _free, ""),
    "pipe_stop": (PIPES, F.stop, _free, ""),
    "moe_stop": (P.moe, F.stop, _free, ""),
    "flat_two_stop": (FLAT, F.several(2), _any_ring, ""),
    "pipe_three_stop": (PIPES, F.several(3), _any_ring, ""),
    "flat_gone": (FLAT, F.gone, _free, ""),
    "pipe_gone": (PIPES, F.gone, _free, ""),
    "flat_skip": (FLAT, F.skip, _free, ""),
    "pipe_skip": (PIPES, F.skip, _any_ring, ""),
    "extra": (ANY, F.extra, _any_ring, ""),
    "size": (ANY, F.size, _free, ""),
    "dtype_or_op": (ANY, None, _free, ""),
    "inversion": (_of(L.tp_pp_dp, P.hsdp, P.moe), F.inversion, _any_ring, ""),
    "ring_circle": (P.ring, F.circle, _any_ring, ""),
    "pair_order": (_of(_unbatched, P.ring), F.pair_order, _any_ring, ""),
    "wrong_peer": (_of(_batched, _unbatched, P.ring), F.wrong_peer, _any_ring, ""),
    "missing_send": (_of(_batched, _unbatched, P.ring), F.missing_send, _any_ring, ""),
    "missing_recv": (_of(_batched, _unbatched, P.ring), F.missing_recv, _any_ring, ""),
    "pair_size": (_of(_batched, _unbatched, P.ring), F.pair_size, _any_ring, ""),
    "split": (_of(_moe_even, _moe_even, _moe_uneven), F.split, _any_ring, ""),
    "device_lag": (ANY, F.device_lag, _any_ring, ""),
    "device_dead": (ANY, F.device_dead, _timed, ""),
    "two_devices": (ANY, F.two_devices, _timed, ""),
    "transport": (ANY, F.transport, _timed, ""),
    "untimed_device_or_net": (ANY, None, _free, ""),
    "small_ring": (GROUPS, F.stop, _small_ring, ""),
    "only_active": (ANY, None, _only_active, ""),
    "clocks": (PIPES, F.stop, _clocks, ""),
    "one_name": (_one_name(_of(L.tp_pp_dp, P.hsdp, P.moe)), None, _any_ring, ""),
    "deep_pipe": (L.deep_pipe, None, _any_ring, ""),
    "two_faults": (ANY, None, _any_ring, ""),
    "lost_innocent": (ANY, F.stop, _any_ring, "lost"),
    "lost_guilty": (ANY, F.stop, _any_ring, "guilty_lost"),
    "cut_guilty": (ANY, F.stop, _any_ring, "guilty_cut"),
    "stale": (ANY, F.stop, _any_ring, "stale"),
    "mixed_versions": (ANY, F.stop, _mixed, ""),
    "healthy_done": (ANY, F.healthy, _free, "done"),
    "healthy_mid": (ANY, F.healthy, _free, "mid"),
    "slow": (_of(P.ddp, P.fsdp, L.tp_pp_dp), F.slow, _free, "mid"),
}
FREE_FAULT = {
    "dtype_or_op": [F.dtype, F.wrong_op],
    "untimed_device_or_net": [F.device_dead, F.transport],
    "only_active": [F.stop, F.stop, F.skip, F.size, F.device_lag],
    "one_name": [F.stop, F.stop, F.skip, F.size],
    "deep_pipe": [F.stop, F.stop, F.gone, F.skip, F.missing_send],
    "two_faults": [
        F.two(F.stop, F.size),
        F.two(F.stop, F.dtype),
        F.two(F.size, F.wrong_op),
        F.two(F.stop, F.skip),
    ],
}

B_SHAPES = {
    "interleaved": L.interleaved,
    "two_way": L.two_way,
    "context_ring": P.context_ring,
    "moe_2d": P.moe_2d,
    "zero3_eval": P.zero3_eval,
    "coalesced": P.coalesced,
    "hsdp": P.hsdp,
    "accumulation": P.accumulation,
    "wide": L.wide,
}
P2P_SHAPES = ("interleaved", "two_way", "context_ring")
B_FAULTS = {
    "stop": (F.stop, _free, ""),
    "two_stop": (F.several(2), _any_ring, ""),
    "gone": (F.gone, _free, ""),
    "skip": (F.skip, _free, ""),
    "extra": (F.extra, _any_ring, ""),
    "mismatch": (None, _free, ""),
    "device_lag": (F.device_lag, _free, ""),
    "device": (None, _timed, ""),
    "transport": (F.transport, _timed, ""),
    "two": (None, _any_ring, ""),
    "files": (F.stop, _any_ring, None),
    "small_ring": (F.stop, _small_ring, ""),
    "mid": (F.healthy, _free, "mid"),
    "done": (F.healthy, _free, "done"),
}
B_MORE = {
    "wrong_peer": (F.wrong_peer, _any_ring, ""),
    "left_out": (None, _any_ring, ""),
    "pair_size": (F.pair_size, _any_ring, ""),
}
B_FREE = {
    "mismatch": [F.size, F.dtype, F.wrong_op],
    "device": [F.device_dead, F.two_devices],
    "two": FREE_FAULT["two_faults"],
    "left_out": [F.missing_send, F.missing_recv],
}


def _set_b():
    out = {}
    for shape, make in B_SHAPES.items():
        for fault, (fn, opts, files) in (
            B_FAULTS | (B_MORE if shape in P2P_SHAPES else {})
        ).items():
            if fault == "mismatch" and shape == "moe_2d":
                out["moe_2d_split"] = (make, F.split, opts, files)
            out[f"{shape}_{fault}"] = (make, fn, opts, files)
            FREE_FAULT[f"{shape}_{fault}"] = B_FREE.get(fault)
        if shape == "zero3_eval":
            out["zero3_eval_short"] = (make, F.short_eval, _any_ring, "")
    return out


SET_B = _set_b()
SETS = {"a": SET_A, "b": SET_B}


def _lacks(run, r):
    """Whether a rank issued an operation that needs r and that r has not issued."""
    mine_coll, mine_msg = {}, {}
    for i in run.insts[r]:
        if i.op.is_coll:
            mine_coll[i.op.group.gid] = mine_coll.get(i.op.group.gid, 0) + 1
        else:
            for m in i.op.members:
                key = (i.op.group.gid, i.op.name, m[0], m[1])
                mine_msg[key] = mine_msg.get(key, 0) + 1
    for q in range(run.n):
        if q == r:
            continue
        coll, msg = {}, {}
        for i in run.insts[q]:
            gid = i.op.group.gid
            if i.op.is_coll:
                if r in i.op.group.members:
                    coll[gid] = coll.get(gid, 0) + 1
            else:
                for is_send, peer, _ in i.op.members:
                    if peer == r:
                        key = (gid, i.op.name, not is_send, q)
                        msg[key] = msg.get(key, 0) + 1
        if any(k > mine_coll.get(g, 0) for g, k in coll.items()):
            return True
        if any(k > mine_msg.get(key, 0) for key, k in msg.items()):
            return True
    return False


def _stands_out(run, shape, r, guilty):
    """A stopped host with something pending looks like a victim unless a rank of the same role,
    with the same
    pending operation (by its place in the program), went on issuing."""
    first = run.first_pending(r)
    if first is None:
        return True
    for q in range(run.n):
        if q in guilty or shape.role[q] != shape.role[r] or q == r:
            continue
        theirs = run.first_pending(q)
        if (
            theirs is not None
            and theirs.index <= first.index
            and len(run.insts[q]) > len(run.insts[r])
        ):
            return True
    return False


def _provably_stale(run, x, at):
    """Something that others completed needs x, and x had not issued it at that instant."""
    mine = {}
    for i in run.insts[x]:
        if i.issued > at:
            break
        if i.op.is_coll:
            mine[i.op.group.gid] = mine.get(i.op.group.gid, 0) + 1
    for (gid, k), slot in run.slots.items():
        if (
            k >= mine.get(gid, 0)
            and any(i.rank == x for i in slot)
            and any(i.done < INF for i in slot)
        ):
            return True
    return False


def _kept(run, files, guilty, alive):
    """Whether the rings still hold the operations that hang because of the fault."""
    held = lambda i: i.rank in alive and i.index >= files[i.rank].kept_from[1]  # noqa: E731
    for slot in [slot for _, _, slot in run.bad_slots] + run.cut_off:
        mine = [i for i in slot if i.rank in guilty]
        if mine or not guilty:
            rest = [held(i) for i in slot if i not in mine]
            return all(map(held, mine)) and 2 * sum(rest) > len(rest)
    first = [run.first_pending(r) for r in guilty]
    return all(held(i) for i in first if i is not None)


def build(name, row, seed):
    """One case, or None where the drawn fault did not show in the drawn job."""
    rng = random.Random(seed)
    make_shape, make_fault, set_options, how = row
    if make_fault is None:
        make_fault = rng.choice(FREE_FAULT[name])
    if how is None:
        how = rng.choice(["lost", "guilty_lost", "guilty_cut", "stale"])
    shape = make_shape(rng)
    options = Options(rng)
    set_options(options, rng, shape)
    wide = shape.n > 100
    at = rng.randint(1, 2) if wide else rng.choice([0, 1, 2, 2, 3, 4, 5, 8])
    steps = at + rng.randint(1, 2 if wide else 3)
    rows = [shape.rows(it) for it in range(steps)]
    device = Device()
    plan = F.Plan(rng, shape, rows, at, device)
    fault = make_fault(plan)
    if fault is None:
        return None
    programs = [[x for it in range(steps) for x in rows[it][r]] for r in range(shape.n)]
    limit = rng.choice([8, 32, 100, 1000, 1000, 1000])
    run = Run(shape.n, programs, rng, device, limit, on_device=rng.choice([0.0, 0.9, 0.95]))
    healthy = fault.name in ("healthy", "slow")
    if healthy == run.hung:
        assert not healthy, f"the model hangs by itself: {name} {seed}"
        return None
    if not fault.shown(run) or (not healthy and not run.someone_waits(fault.gone)):
        return None
    guilty = fault.ranks
    if fault.name in ("stop", "gone") or "stop" in fault.why:
        stopped = [r for r in guilty if run.ended[r] in ("stop", "exit")]
        if not all(_lacks(run, r) for r in stopped):
            return None
    else:
        stopped = []
    decidable, why = True, []

    def cannot(reason):
        nonlocal decidable
        decidable = False
        why.append(reason)

    end = run.end_time()
    if how == "mid":
        moment = rng.uniform(0.4, 0.9) * end
        spread = rng.choice([0.0, 0.001, 0.05, 1.0])
        times = [max(0.0, min(end, moment + rng.uniform(0, spread))) for _ in range(shape.n)]
    else:
        moment = end + rng.uniform(5, 600)
        spread = rng.choice([0.0, 0.5, 5.0, 30.0])
        times = [moment + rng.uniform(0, spread) for _ in range(shape.n)]
    lost, cut, stale = set(fault.gone), set(), []
    innocent = [r for r in range(shape.n) if r not in guilty]
    also = list(fault.also)
    if how == "lost":
        lost |= set(rng.sample(innocent, min(len(innocent) - 2, rng.randint(1, 2))))
    elif how in ("guilty_lost", "guilty_cut"):
        (lost if how == "guilty_lost" else cut).update(guilty)
        also.append(("exited", guilty))
        cannot(
            "the guilty rank's file is lost"
            if how == "guilty_lost"
            else "the guilty rank's file is cut"
        )
    elif how == "stale":
        for r in rng.sample(innocent, max(1, len(innocent) // 4)):
            then = end - rng.uniform(0.05, min(20.0, end * 0.8))
            if _provably_stale(run, r, then):
                times[r] = then
                stale.append(r)
        if not stale:
            return None
    clocks = {
        node: rng.uniform(-options.clock_s, options.clock_s)
        for node in range(shape.n // options.per_node + 1)
    }
    versions = options.versions
    files = []
    for r in range(shape.n):
        version = versions[(r // options.per_node) % len(versions)]
        files.append(
            RankFile(run, shape, r, times[r], options, rng, version, clocks[r // options.per_node])
        )
    alive = [r for r in range(shape.n) if r not in lost and r not in cut]
    if not healthy and not any(run.first_pending(r) for r in alive):
        return None

    # what the files let a careful reader decide
    told = [
        r
        for r in fault.history
        if r in alive and not options.only_active and files[r].whole_step(at)
    ]
    if fault.history and len(told) < len(fault.history):
        cannot("no whole earlier iteration is kept of both sides")
        if fault.tie:
            also.append((fault.kinds[0], sorted(fault.tie)))
    if fault.timing and not options.timing and not healthy:
        cannot("start times are off: device and network look alike")
    for r in stopped:
        if r not in fault.gone and not _stands_out(run, shape, r, guilty):
            cannot(f"rank {r} stopped with an operation pending and no twin of it went on")
    if fault.undecidable:
        cannot(fault.undecidable)
    if not healthy and not stopped and not _kept(run, files, guilty, alive):
        cannot("the records of the fault are overwritten")
    accept = [(k, guilty) for k in fault.kinds] + also
    if not decidable:
        accept.append(("undecided", []))
        if fault.timing:
            accept.append(("transport", []))
    if how == "mid":
        accept += [("undecided", [])]
    truth = {
        "class": name,
        "seed": seed,
        "shape": shape.kind,
        "ranks": shape.n,
        "fault": fault.name + (f" ({fault.why})" if fault.why else ""),
        "iteration": at,
        "hang": not healthy,
        "guilty": guilty,
        "accept": [[k, sorted(r)] for k, r in dict.fromkeys((k, tuple(r)) for k, r in accept)],
        "decidable": decidable,
        "why_not": why,
        "lost": sorted(lost),
        "cut": sorted(cut),
        "stale": sorted(stale),
        "files": options.as_dict(),
    }
    return truth, files, options, lost, cut, rng


def generate(which, seed, count, out):
    """Yields the folder of each case as it is written."""
    table = SETS[which]
    names = list(table)
    for k in range(count):
        name = names[(k + seed * 7) % len(names)] if count < len(names) else names[k % len(names)]
        number = seed * 1_000_000 + k * 1000
        made = None
        for attempt in range(400):
            made = build(name, table[name], number + attempt)
            if made:
                break
        if not made:
            continue
        truth, files, options, lost, cut, rng = made
        folder = pathlib.Path(out) / f"{name}-{truth['seed']}"
        write_files(folder / "files", files, options, lost, cut, rng)
        (folder / "truth.json").write_text(json.dumps(truth, indent=1))
        yield folder


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=sorted(SETS), required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    print(sum(1 for _ in generate(args.set, args.seed, args.count, args.out)), "cases written")


if __name__ == "__main__":
    main()
