"""Writes a run as PyTorch Flight Recorder dumps: one file per rank, in the layout of its
version."""

from __future__ import annotations

import json
import math
import os
import pickle
from collections import deque

from .run import INF

BASE_NS = 1_760_000_000_000_000_000
MAIN = {"name": "main", "filename": "/job/train.py", "line": 310}
VERSIONS = ["2.4", "2.5", "2.6", "2.7", "2.8", "2.9", "2.10"]


class Options:
    """How one set of files is written; drawn once per case, truth.json carries it."""

    def __init__(self, rng):
        self.versions = [rng.choice(VERSIONS)]
        self.form = "pickle"  # pickle | json
        self.only_active = False
        self.ring = 2000
        self.timing = rng.random() < 0.5
        self.query_at_dump = rng.random() < 0.7
        self.poll_s = rng.choice([0.1, 0.1, 0.3, 1.0])
        self.per_node = rng.choice([2, 4, 8])
        self.clock_s = rng.choice([0.0, 0.01, 0.2])
        self.frames = rng.random() < 0.85
        self.prefix = rng.choice(
            ["nccl_trace_rank_", "comm_lib_trace_rank_", "trace_rank_", "run7_"]
        )
        self.undefined_desc = rng.random() < 0.1
        self.keep_mtime = rng.random() < 0.9

    def as_dict(self):
        return dict(vars(self))


def _version_at_least(version, minor):
    return int(version.split(".")[1]) >= minor


def _prefixed(op, backend="nccl"):
    return f"{backend}:{op}"


def _frames(site_):
    function, file, line = site_
    return [{"name": function, "filename": file, "line": line}, MAIN]


class RankFile:
    """What one rank's recorder held at one instant (in true time)."""

    def __init__(self, run, shape, rank, at, options, rng, version, clock_s):
        self.rank, self.at, self.version = rank, at, version
        self.first_it = None
        timing, phase = options.timing, rng.random() * options.poll_s
        self.ns = lambda t: BASE_NS + int((t + clock_s) * 1e9)
        local_id, coll, p2p = {}, {}, {}
        for g in shape.groups:
            if rank in g.members:
                local_id[g.gid] = len(local_id)
                coll[g.gid] = p2p[g.gid] = 0
        ring = deque(maxlen=options.ring)
        status = {}
        record, op_id = 0, {}
        cache = {}

        def polled(t):
            return (
                INF
                if t == INF
                else phase + math.ceil((t - phase) / options.poll_s) * options.poll_s
            )

        for inst in run.insts[rank]:
            if inst.issued > at:
                break
            op = inst.op
            gid, group = op.group.gid, op.group
            seen = polled(inst.done)
            retired = seen <= at
            known = seen if retired else (at if options.query_at_dump and inst.done <= at else INF)
            started = INF
            if timing and inst.started <= at:
                began = polled(inst.started)
                started = (
                    known
                    if known < INF
                    else began
                    if began <= at
                    else (at if options.query_at_dump else INF)
                )
                started = min(started, began)
            parts = []  # (name, ins, outs, followed)
            if op.is_p2p:
                p2p[gid] += 1
                me = group.members.index(rank)
                for is_send, peer, size in op.members:
                    other = group.members.index(peer)
                    name = f"send {me}->{other}" if is_send else f"recv {me}<-{other}"
                    parts.append((name, [[size]], [[size]], op.name == "p2p"))
                if op.name == "batch":
                    parts.append(("coalesced", [], [], True))
            else:
                coll[gid] += 1
                if op.name == "coal":
                    if _version_at_least(version, 7):
                        parts += [(name, [ins], [outs], False) for name, ins, outs in op.members]
                    parts.append(("coalesced", [], [], True))
                else:
                    parts.append((op.name, op.ins, op.outs, True))
            seq = p2p[gid] if op.is_p2p else coll[gid]
            state = status.setdefault(gid, [-1, -1, -1])
            state[0] = seq
            if timing and inst.started <= at and polled(inst.started) <= at:
                state[1] = max(state[1], seq)
            if retired:
                state[2] = seq
            if op.site not in cache:
                cache[op.site] = _frames(op.site)
            for name, ins, outs, followed in parts:
                if not (name == "coalesced"):
                    op_id[gid] = op_id.get(gid, 0) + 1
                done, began = (known, started) if followed else (INF, INF)
                entry = {
                    "record_id": record,
                    "pg_id": local_id[gid],
                    "process_group": (
                        group.name,
                        "undefined" if options.undefined_desc and gid else group.desc,
                    ),
                    "collective_seq_id": coll[gid],
                    "p2p_seq_id": p2p[gid],
                    "op_id": op_id.get(gid, 0),
                    "profiling_name": _prefixed(name),
                    "time_created_ns": self.ns(inst.issued),
                }
                if timing and followed and retired:
                    entry["duration_ms"] = round((inst.done - inst.started) * 1e3, 3)
                entry |= {
                    "input_sizes": ins,
                    "input_dtypes": [op.dtype] * len(ins),
                    "output_sizes": outs,
                    "output_dtypes": [op.dtype] * len(outs),
                    "state": "completed"
                    if done < INF
                    else "started"
                    if began < INF
                    else "scheduled",
                    "time_discovered_started_ns": self.ns(began) if began < INF else None,
                    "time_discovered_completed_ns": self.ns(done) if done < INF else None,
                    "retired": followed and retired,
                    "timeout_ms": 600000,
                    "is_p2p": op.is_p2p,
                }
                if version == "2.10":
                    entry |= {
                        "thread_name": "pt_main_thread",
                        "thread_id": str(140_000_000_000 + rank),
                    }
                if options.frames:
                    entry["frames"] = cache[op.site]
                ring.append((op.it, inst.index, entry))
                record += 1
        self.kept_from = ring[0] if ring else None
        self.records = record
        entries = [e for _, _, e in ring]
        if options.only_active:
            entries = [e for e in entries if e["state"] != "completed"]
        used = [g for g in shape.groups if g.gid in status]
        self.data = {
            "version": version,
            "pg_config": {
                g.name: {
                    "name": g.name,
                    "desc": "undefined" if options.undefined_desc and g.gid else g.desc,
                    "ranks": "[" + ", ".join(map(str, g.members)) + "]",
                }
                for g in used
            },
            "pg_status": {
                str(local_id[gid]): {
                    "last_enqueued_collective": s[0],
                    "last_started_collective": s[1],
                    "last_completed_collective": s[2],
                }
                for gid, s in status.items()
            },
        }
        if _version_at_least(version, 8):
            self.data["comm_lib_version"] = "2.27.7"
        elif _version_at_least(version, 6):
            self.data["nccl_version"] = "2.21.5"
        self.data["entries"] = entries

    def bytes(self, form):
        if form == "pickle":
            return pickle.dumps(self.data, protocol=2)
        data = dict(self.data)
        data["pg_status"] = {
            k: {x: str(y) for x, y in v.items()} for k, v in data["pg_status"].items()
        }
        entries = []
        for entry in data.pop("entries"):
            new = {k: v for k, v in entry.items() if k != "frames"}
            for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
                new[key] = new[key] or 0
            entries.append(new)
        if entries:
            data["entries"] = entries
        return json.dumps(data).encode()

    def whole_step(self, before):
        """Whether the file keeps one whole iteration older than `before`."""
        if self.kept_from is None:
            return False
        it, index, _ = self.kept_from
        return before > 0 and (index == 0 or it < before - 1)


def write_files(folder, files, options, lost, cut, rng):
    folder.mkdir(parents=True, exist_ok=True)
    for f in files:
        if f.rank in lost:
            continue
        data = f.bytes(options.form)
        if f.rank in cut:
            data = data[: int(len(data) * rng.uniform(0.2, 0.8))]
        name = f"{options.prefix}{f.rank}" + (".json" if options.form == "json" else "")
        path = folder / name
        path.write_bytes(data)
        if options.keep_mtime:
            when = f.ns(f.at)
            os.utime(path, ns=(when, when))
