"""A second opinion on PyTorch's dumps, from first principles and without any code of frtrace.

    ledger     per group and sequence number: what each member issued there
    slots      members whose entries differ in operation, type or size: the minority is wrong
    frontiers  the last number that each member issued
    waits      a rank that waits in an operation waits for the members that have not issued it
    ends       ranks at which all waits end: they are in no operation, or left no file

It knows no programs, no devices and no exits, so it answers fewer cases than frtrace. Its use is
where the two differ: `make differ` prints these cases.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import json
import pathlib
import pickle
import re

# Each member may pass another size: the sizes of one operation tell nothing about its members.
UNEVEN = ("all_to_all", "alltoall", "gather_object", "allgather_into_tensor_coalesced", "coalesced")
# Only one end of these has an input.
ROOTED = ("broadcast", "scatter", "gather", "reduce")


class _Plain(pickle.Unpickler):
    """Dumps hold only plain values."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name}")


@dataclasses.dataclass(eq=False)
class Entry:
    rank: int
    group: tuple
    seq: int
    op: str
    is_p2p: bool
    peer: int  # the rank that sends to this one, or that it sends to; -1 for collectives
    size: tuple
    dtype: str
    done: bool
    order: int


@dataclasses.dataclass
class Rank:
    rank: int
    entries: list
    issued: dict  # group: the last number in the file


def load(path: pathlib.Path):
    data = path.read_bytes()
    if data[:1] == b"{":
        return json.loads(data)
    with path.open("rb") as file:
        return _Plain(file).load()


def rank_of(path: pathlib.Path) -> int | None:
    found = re.search(r"(\d+)(?:\.json)?$", path.name)
    return int(found[1]) if found else None


def read(folder: pathlib.Path) -> list[Rank]:
    ranks = []
    for path in sorted(folder.iterdir()):
        number = rank_of(path)
        try:
            dump = load(path)
            entries = dump["entries"]
        except (ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError):
            continue
        if number is not None:
            ranks.append(read_rank(number, dump, entries))
    return ranks


def read_rank(number: int, dump: dict, entries: list) -> Rank:
    groups = {}
    for name, config in (dump.get("pg_config") or {}).items():
        members = config.get("ranks") or "[]"
        listed = ast.literal_eval(members) if isinstance(members, str) else members
        groups[str(name)] = tuple(sorted(map(int, listed)))
    read = [entry_of(number, e, groups, i) for i, e in enumerate(entries) if e.get("process_group")]
    issued = {}
    for e in read:
        if not e.is_p2p:
            issued[e.group] = max(issued.get(e.group, 0), e.seq)
    return Rank(number, read, issued)


def entry_of(number: int, e: dict, groups: dict, order: int) -> Entry:
    name, desc = (*e["process_group"], "")[:2]
    members = groups.get(str(name), ())
    op = e["profiling_name"].split(":", 1)[-1]
    peer = -1
    if found := re.match(r"(?:send|recv) (\d+)(?:->|<-)(\d+)$", op):
        left, right = int(found[1]), int(found[2])
        at = members.index(number) if number in members else number
        index = right if left == at else left
        peer = members[index] if index < len(members) else index
        op = op.split(" ")[0]
    is_p2p = bool(e.get("is_p2p")) or op in ("send", "recv")
    return Entry(
        rank=number,
        group=(members, str(name) if members else f"{name} {desc}"),
        seq=e["p2p_seq_id"] if is_p2p else e.get("collective_seq_id", e.get("seq_id", 0)),
        op=op,
        is_p2p=is_p2p,
        peer=peer,
        size=tuple(count(x) for x in e.get("input_sizes") or []),
        dtype=str((e.get("input_dtypes") or [""])[0]),
        done=e["state"] == "completed" or bool(e.get("retired")),
        order=order,
    )


def count(shape) -> int:
    total = 1
    for n in shape if isinstance(shape, list | tuple) else [shape]:
        total *= n
    return total


# ---------------------------------------------------------------- opinion


@dataclasses.dataclass
class Opinion:
    kind: str
    ranks: list
    why: str


class Job:
    def __init__(self, ranks: list[Rank]):
        self.ranks = {r.rank: r for r in ranks}
        self.has_members = any(e.group[0] for r in ranks for e in r.entries)
        self.slots = collections.defaultdict(dict)  # (group, seq) -> rank -> entry
        self.lanes = collections.defaultdict(list)  # (group, from, to, end) -> entries in order
        for r in ranks:
            for e in r.entries:
                if not e.is_p2p:
                    self.slots[e.group, e.seq][e.rank] = e
                elif e.peer >= 0:
                    ends = (e.rank, e.peer) if e.op == "send" else (e.peer, e.rank)
                    self.lanes[(e.group, *ends, e.op)].append(e)

    # -- slots

    def mismatch(self) -> Opinion | None:
        """The earliest slot, by the number of entries before it, whose members differ."""
        found = []
        for (group, seq), slot in self.slots.items():
            if all(e.done for e in slot.values()):
                continue
            classes = collections.defaultdict(list)
            for rank, e in slot.items():
                classes[self.spelling(e)].append(rank)
            if len(classes) > 1:
                found.append((min(e.order for e in slot.values()), group, seq, classes))
        for _, group, seq, classes in sorted(found, key=lambda x: x[0])[:1]:
            sizes = sorted(map(len, classes.values()))
            wrong = [r for c in classes.values() if len(c) < sizes[-1] for r in c]
            if sizes[-1] == sizes[-2]:
                wrong = self.unusual(group, seq, classes)
            kind = "mismatch" if wrong else "undecided"
            return Opinion(kind, sorted(wrong), f"slot {seq} differs")
        return None

    def unusual(self, group, seq, classes) -> list[int]:
        """Of classes of one size: the ranks whose entry never followed its forerunner before."""
        followed = collections.Counter()
        for (g, n), slot in self.slots.items():
            if g == group and n < seq:
                after = self.slots.get((g, n + 1), {})
                followed.update(
                    (self.spelling(e), self.spelling(after[rank]))
                    for rank, e in slot.items()
                    if rank in after and n + 1 < seq
                )
        seen = {}
        for spelled, members in classes.items():
            before = self.slots.get((group, seq - 1), {})
            seen[spelled] = max(
                (followed[self.spelling(before[r]), spelled] for r in members if r in before),
                default=0,
            )
        usual = [spelled for spelled, times in seen.items() if times > 0]
        return (
            [r for c, m in classes.items() if c not in usual for r in m] if len(usual) == 1 else []
        )

    @staticmethod
    def spelling(e: Entry) -> tuple:
        fixed = not e.op.startswith(ROOTED) and not any(u in e.op for u in UNEVEN)
        return (e.op, e.dtype, e.size) if fixed or e.op.startswith("broadcast") else (e.op,)

    # -- waits

    def stuck(self, r: Rank) -> list[Entry]:
        return [e for e in r.entries if not e.done]

    def awaits(self, e: Entry) -> set[int]:
        """The ranks that have not issued their part of the operation."""
        if e.is_p2p:
            return self.awaits_peer(e)
        absent = set()
        for member in e.group[0]:
            other = self.ranks.get(member)
            if other is None or other.issued.get(e.group, 0) < e.seq:
                absent.add(member)
        return absent - {e.rank}

    def awaits_peer(self, e: Entry) -> set[int]:
        if e.peer < 0:
            return set()  # a batch: its messages are entries of their own, or not recorded
        ends = (e.rank, e.peer) if e.op == "send" else (e.peer, e.rank)
        own = self.lanes[(e.group, *ends, e.op)]
        theirs = self.lanes[(e.group, *ends, "recv" if e.op == "send" else "send")]
        behind = len(own) - own.index(e)  # counted from the last: rings forget the first
        open_theirs = sum(not x.done for x in theirs)
        open_own = sum(not x.done for x in own)
        return {e.peer} if open_theirs < open_own and behind <= open_own - open_theirs else set()

    def opinion(self) -> Opinion:
        waits = {}
        for r in self.ranks.values():
            # Operations of one group run in order: the oldest one in flight of each is waited for.
            oldest = {}
            for e in self.stuck(r):
                oldest.setdefault((e.group, e.is_p2p, e.peer), e)
            waits[r.rank] = {peer for e in oldest.values() for peer in self.awaits(e)}
        if not any(self.stuck(r) for r in self.ranks.values()):
            kind = "ok" if self.has_members else "undecided"  # gloo: failed ones count as ended
            return Opinion(kind, [], "nothing is in flight")
        if differs := self.mismatch():
            return differs
        awaited = {peer for peers in waits.values() for peer in peers}
        if not awaited:
            return Opinion("undecided", [], "all members are in the operations in flight")
        lost = sorted(r for r in awaited if r not in self.ranks)
        idle = sorted(r for r in awaited if r in self.ranks and not self.stuck(self.ranks[r]))
        if any(r in self.ranks and self.stuck(self.ranks[r]) and not waits[r] for r in awaited):
            return Opinion("undecided", [], "an operation in flight lacks nobody")
        if idle and not lost:
            return Opinion("missing", idle, "they wait for nobody, and others wait for them")
        if lost and not idle:
            one = len(lost) == 1
            return Opinion("exited" if one else "undecided", lost if one else [], "no file")
        if idle and lost:
            return Opinion("undecided", [], "some left no file, others wait for nobody")
        return Opinion("deadlock", self.on_circle(waits), "they wait for each other")

    @staticmethod
    def on_circle(waits: dict) -> list[int]:
        def reaches(rank):
            seen, todo = set(), list(waits.get(rank, ()))
            while todo:
                at = todo.pop()
                if at not in seen:
                    seen.add(at)
                    todo += waits.get(at, ())
            return seen

        return sorted(rank for rank in waits if rank in reaches(rank))


def opinion_of(folder: pathlib.Path) -> Opinion | None:
    """None: no dump of PyTorch's is there."""
    ranks = read(folder)
    return Job(ranks).opinion() if ranks else None
