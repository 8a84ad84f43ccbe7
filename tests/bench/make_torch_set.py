#!/usr/bin/env python3
"""Writes dumps as PyTorch's Flight Recorder does, of a made-up job: N ranks, each with the last
ENTRIES operations and stacks of FRAMES shared frames. The rank MISSING never came to the last
all_reduce of its data-parallel group.

    make_torch_set.py DIR [--ranks 256] [--entries 2000] [--frames 12] [--missing 5]

The opcodes are those of torch::jit::Pickler (protocol 2, strings and frames once in the memo).
"""

import argparse
import pathlib
import struct


class Pickler:
    """torch::jit::Pickler's way to write plain data; dicts given in `shared` are written once."""

    def __init__(self):
        self.out = bytearray(b"\x80\x02")
        self.memo = {}
        self.n = 0

    def put(self):
        self.out += b"q" + bytes([self.n]) if self.n < 256 else b"r" + struct.pack("<I", self.n)
        self.n += 1
        return self.n - 1

    def get(self, i):
        self.out += b"h" + bytes([i]) if i < 256 else b"j" + struct.pack("<I", i)

    def value(self, v):
        if v is None:
            self.out += b"N"
        elif v is True:
            self.out += b"\x88"
        elif v is False:
            self.out += b"\x89"
        elif isinstance(v, int):
            if 0 <= v < 256:
                self.out += b"K" + bytes([v])
            elif 0 <= v < 65536:
                self.out += b"M" + struct.pack("<H", v)
            elif -(2**31) <= v < 2**31:
                self.out += b"J" + struct.pack("<i", v)
            else:
                self.out += b"\x8a\x08" + struct.pack("<q", v)
        elif isinstance(v, str):
            if v in self.memo:
                self.get(self.memo[v])
            else:
                data = v.encode()
                self.out += b"X" + struct.pack("<I", len(data)) + data
                self.memo[v] = self.put()
        elif isinstance(v, tuple):
            for item in v:
                self.value(item)
            self.out += {1: b"\x85", 2: b"\x86", 3: b"\x87"}[len(v)]
        elif isinstance(v, list):
            self.out += b"]"
            if v:
                self.out += b"("
                for item in v:
                    self.value(item)
                self.out += b"e"
        elif isinstance(v, Frame):
            if id(v) in self.memo:
                self.get(self.memo[id(v)])
            else:
                self.value(dict(v))
                self.memo[id(v)] = self.put()
        else:
            self.out += b"}("
            for key, item in v.items():
                self.value(key)
                self.value(item)
            self.out += b"u"

    def finish(self, v):
        self.value(v)
        return bytes(self.out + b".")


class Frame(dict):
    pass


BASE = 1_700_000_000_000_000_000


def stacks(n_frames):
    deep = [
        Frame(name=f"layer_{i}", filename=f"/opt/job/model/blocks_{i % 4}.py", line=100 + i)
        for i in range(n_frames)
    ]
    out = []
    for site in range(40):
        top = Frame(name=f"forward_{site}", filename="/opt/job/train.py", line=20 + site)
        out.append([top] + deep[: n_frames - 1])
    return out


def rank_dump(rank, args, sites):
    world, half = args.ranks, max(2, args.ranks // 2)
    groups = {
        "0": ("default_pg", list(range(world))),
        "1": ("dp", [r for r in range(world) if (r < half) == (rank < half)]),
    }
    names = list(groups)
    entries = []
    seq = dict.fromkeys(names, 1000)
    at = BASE + rank * 1000
    total = args.entries
    for i in range(total):
        name = names[i % len(names)]
        last = i >= total - len(names)
        if last and name == "0":
            continue  # the last one of the default group is left out on all: it ends in "dp"
        if last and rank == args.missing:
            continue
        seq[name] += 1
        at += 1_000_000
        done = not last
        numel = 1024 * (1 + i % 7)
        entries.append(
            {
                "frames": sites[i % len(sites)],
                "record_id": 5000 + i,
                "pg_id": int(name),
                "process_group": (name, groups[name][0]),
                "thread_name": "pt_main",
                "thread_id": "140000000000000",
                "collective_seq_id": seq[name],
                "p2p_seq_id": 0,
                "op_id": seq[name],
                "profiling_name": "nccl:all_reduce",
                "time_created_ns": at,
                "input_sizes": [[numel]],
                "input_dtypes": ["Float"],
                "output_sizes": [[numel]],
                "output_dtypes": ["Float"],
                "state": "completed" if done else "started",
                "time_discovered_started_ns": at + 10_000,
                "time_discovered_completed_ns": at + 500_000 if done else None,
                "retired": done,
                "timeout_ms": 600000,
                "is_p2p": False,
            }
        )
    return {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": desc, "ranks": str(ranks)}
            for name, (desc, ranks) in groups.items()
        },
        "comm_lib_version": "2.27.3",
        "pg_status": {
            name: {
                "last_enqueued_collective": seq[name],
                "last_started_collective": seq[name],
                "last_completed_collective": seq[name]
                - (1 if name == "1" and rank != args.missing else 0),
            }
            for name in names
        },
        "entries": entries,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--frames", type=int, default=12)
    parser.add_argument("--missing", type=int, default=5)
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    sites = stacks(args.frames)
    for rank in range(args.ranks):
        data = Pickler().finish(rank_dump(rank, args, sites))
        (args.dir / f"nccl_trace_rank_{rank}").write_bytes(data)


if __name__ == "__main__":
    main()
