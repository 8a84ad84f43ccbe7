"""Which tests of a cluster to run next, and what is wrong in the end. No I/O: `Planner.steps()` is
a generator that yields rounds (lists of tests that share no unit) and is sent their outcomes.

A unit is a node, or on several GPUs per node that node's rank on one rail; units are numbered by
place, so that neighbours share a switch. Rounds:

1. alone: each unit by itself. One that fails is left out of all that follows.
2. pairs (0,1), (2,3), ... Both units of a bad pair are suspects, all others are good.
3. each suspect with good units, one near it and two far from it. Bad with all, and with both its
   neighbours (a rack of two may be cut off): the unit is set aside.
4. one group of all the others, in which every link is used and timed. A healthy cluster is done.
5. where that does not end: halves, both at once, down to groups that work; then unions of these.
   What is left are groups that work in themselves and not with each other.
6. the link or links between two such groups: each half with each half. Where all four fail, units
   one by one against each other: if none works, the border between the groups is what is broken.
7. slow links again, single ones with all else at rest; a link is as fast as its best measurement.
8. one way: datagrams in each direction over what is dead.

Slow is a rate below `slow` times the median of the same kind of test. What no finding explains is
`undecided`; no unit is blamed for what another cause would explain as well."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median


@dataclass(frozen=True)
class Test:
    kind: str  # alone, pair, group, oneway
    units: tuple[int, ...]


@dataclass
class Outcome:
    ok: bool  # ended in time, with the right data
    rates: dict = field(default_factory=dict)  # (from, to): GB/s; alone (unit, unit): GFLOP/s
    heard: dict = field(default_factory=dict)  # oneway: (from, to): whether a datagram came
    silent: tuple = ()  # units that gave no answer at all, not even that they failed
    why: str = ""  # verdict on a failure


@dataclass
class Finding:
    kind: str  # node, link, border, undecided
    units: tuple[int, ...]  # the node; the ends of the link; the smaller side of the border
    others: tuple[int, ...] = ()  # of a border: the other side
    what: str = "dead"  # dead, slow, alone, slow alone, no answer, together
    way: str = "both"  # both, out (of units to others), in
    ratio: float = 0.0  # to the median
    rate: float = 0.0
    of: int = 0  # number of tests behind the median
    median: float = 0.0
    tried: int = 0  # links or tests that were bad
    why: str = ""


def edge(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)


def halves(x: tuple) -> list[tuple]:
    return [x] if len(x) == 1 else [x[: len(x) // 2], x[len(x) // 2 :]]


def usual(rates, slow: float) -> tuple[float, int]:
    """The median and of how many; where a large part is slow against the upper quartile, as half
    the links are over a slow spine, the median of the others."""
    rates = sorted(rates)
    if not rates:
        return 0.0, 0
    upper = rates[len(rates) * 3 // 4]
    fast = [r for r in rates if r >= slow * upper]
    rates = rates if 3 * len(fast) > 2 * len(rates) else fast
    return median(rates), len(rates)


class Planner:
    def __init__(self, units, slow: float = 0.8, known_alone: bool = False):
        self.known_alone = known_alone  # they are tested alone already
        self.live = list(units)
        self.slow = slow
        self.findings: list[Finding] = []
        self.rounds = 0
        self.good: set = set()  # edges over which data came
        self.dead: set = set()
        self.dead_blocks: list[tuple] = []  # (units, units): none works with any of the others
        self.rate: dict = {}  # direction -> (ratio, rate, median, of how many), the best
        self.raw: dict = defaultdict(float)  # direction -> best rate of its pair
        self.swept: dict = {}  # the same of groups
        self.source: dict = {}  # direction -> the group test that measured it
        self.failed: list[set] = []  # units of tests that did not end well
        self.why: dict = {}  # edge or set of units -> the verdict on its failure
        self.aside: set = set()

    # --- knowledge

    def run(self, tests):
        """Runs the tests, as many at once as share no unit."""
        todo = [t for t in dict.fromkeys(tests) if set(t.units) <= set(self.live)]
        outcomes = {}
        while todo:
            used, now, rest = set(), [], []
            for t in todo:
                if used.isdisjoint(t.units):
                    now.append(t)
                else:
                    rest.append(t)
                used.update(t.units)
            got = yield now
            self.rounds += 1
            for t in now:
                outcomes[t] = got[t]
                self.learn(t, got[t])
            gone = {u for t in now for u in got[t].silent}
            todo = [t for t in rest if gone.isdisjoint(t.units)]
        return outcomes

    def learn(self, t: Test, got: Outcome):
        for u in got.silent:
            if u in self.live:
                self.live.remove(u)
                self.findings.append(Finding("undecided", (u,), what="no answer"))
        if t.kind not in ("pair", "group") or got.silent:
            return
        if not got.ok:
            self.why[t.units] = got.why
            self.failed.append(set(t.units))
            if len(t.units) == 2:
                self.dead.add(edge(*t.units))
            return
        self.good.update(edge(*e) for e in combinations(t.units, 2))
        if t.kind == "pair":
            for way, rate in got.rates.items():
                self.raw[way] = max(self.raw[way], rate)
            return
        middle, of = usual(got.rates.values(), self.slow)
        for way, rate in got.rates.items():
            seen = (rate / middle if middle else 1.0, rate, middle, of)
            self.swept[way] = max(self.swept.get(way, seen), seen)
            self.source.setdefault(way, t)

    def compare(self):
        """Rates with the usual ones; a pair's with those of all pairs until now."""
        self.rate = dict(self.swept)
        middle, of = usual(self.raw.values(), self.slow)
        for way, rate in self.raw.items():
            seen = (rate / middle if middle else 1.0, rate, middle, of)
            self.rate[way] = max(self.rate.get(way, seen), seen)

    def is_slow(self, way) -> bool:
        return self.rate.get(way, (1.0,))[0] < self.slow

    def is_bad(self, a, b) -> bool:
        return edge(a, b) in self.dead or self.is_slow((a, b)) or self.is_slow((b, a))

    def is_known(self, a, b) -> bool:
        return edge(a, b) in self.good or edge(a, b) in self.dead

    def known_good(self, units) -> bool:
        return all(edge(*e) in self.good for e in combinations(units, 2))

    def known_dead(self, units) -> bool:
        return any(edge(*e) in self.dead for e in combinations(units, 2))

    def known_failed(self, units) -> bool:
        return any(f <= set(units) for f in self.failed)

    def known_bad(self, units) -> bool:
        return self.known_dead(units) or self.known_failed(units)

    # --- rounds

    def steps(self):
        if not self.known_alone:
            yield from self.alone()
        if len(self.live) > 1:
            yield from self.pairs()
            yield from self.suspects()
            cliques = yield from self.cliques()
            cliques = yield from self.rejoined(cliques)
            yield from self.between(list(combinations(cliques, 2)))
            yield from self.again()
        self.explain()
        yield from self.directions()
        return self.findings

    def alone(self):
        got = yield from self.run(Test("alone", (u,)) for u in self.live)
        rates = {t.units[0]: o.rates.get(t.units * 2, 0) for t, o in got.items() if o.ok}
        middle = median(rates.values()) if rates else 0
        late = [u for u in rates if rates[u] < self.slow * middle]
        more = yield from self.run(Test("alone", (u,)) for u in late)
        rates |= {t.units[0]: max(rates[t.units[0]], *o.rates.values(), 0) for t, o in more.items()}
        for t, o in got.items():
            (u,) = t.units
            if not o.ok and not o.silent:
                self.findings.append(Finding("node", (u,), what="alone", why=o.why))
                self.live.remove(u)
            elif u in late and rates[u] < self.slow * middle:
                seen = {"ratio": rates[u] / middle, "rate": rates[u]}
                seen |= {"median": middle, "of": len(rates)}
                self.findings.append(Finding("node", (u,), what="slow alone", **seen))

    def pairs(self):
        n = self.live
        if len(n) <= 4:
            both = sorted(combinations(range(len(n)), 2), key=lambda e: e[0] ^ e[1])
            yield from self.run(Test("pair", (n[a], n[b])) for a, b in both)
        else:
            yield from self.run(Test("pair", (a, b)) for a, b in zip(n[::2], n[1::2], strict=False))
            if len(n) % 2:
                yield from self.run([Test("pair", (n[0], n[-1]))])
        self.compare()

    def suspects(self):
        """Sets aside units that are bad with good units near and far, and with both neighbours."""
        if len(self.live) <= 4:
            return
        place = {u: i for i, u in enumerate(self.live)}
        bad = {u for e in combinations(self.live, 2) if self.is_bad(*e) for u in e}
        good = [u for u in self.live if u not in bad]
        tried = defaultdict(list)
        for jump in (0, len(self.live) // 3, 2 * len(self.live) // 3):
            todo = sorted(bad) if len(good) > 1 else []
            while todo:
                free, tests = set(good), []
                for u in todo[: len(good)]:
                    at = (place[u] + jump) % len(place)
                    allowed = sorted(free - set(tried[u]), key=lambda g: (abs(place[g] - at), g))
                    if allowed:
                        free.discard(allowed[0])
                        tried[u].append(allowed[0])
                        tests.append(Test("pair", edge(u, allowed[0])))
                todo = todo[len(good) :]
                yield from self.run(tests)
        self.compare()
        aside = {u for u in tried if len(tried[u]) > 1 and all(self.is_bad(u, g) for g in tried[u])}
        near = [e for e in zip(self.live, self.live[1:], strict=False) if not aside.isdisjoint(e)]
        yield from self.run(Test("pair", e) for e in near if not self.is_known(*e))
        self.compare()
        joined = {u for e in near if edge(*e) in self.good and not self.is_bad(*e) for u in e}
        self.aside = aside - joined

    def cliques(self):
        """Groups that work in themselves, of which no two work together."""
        members = tuple(u for u in self.live if u not in self.aside)
        cover = self.cover(members)
        todo = [tuple(u for u in members if u not in cover)] + [(u,) for u in cover]
        found = []
        while todo:
            untried = [g for g in todo if len(g) > 2 or (len(g) == 2 and not self.known_good(g))]
            untried = [g for g in untried if not self.known_dead(g)]
            got = yield from self.run(Test("group", g) for g in untried)
            fine = {t.units for t, o in got.items() if o.ok}
            split = []
            for g in todo:
                if len(g) == 1 or g in fine or (g not in untried and not self.known_dead(g)):
                    found.append(g)
                else:
                    split += halves(g)
            todo = self.of_live(split)
        return (yield from self.merged(list(self.of_live(found))))

    def of_live(self, groups):
        """Without units that have fallen silent."""
        kept = (tuple(u for u in g if u in self.live) for g in groups)
        return tuple(g for g in kept if g)

    def cover(self, units) -> set:
        """Units without which no known dead link is left among the others."""
        found, left = set(), [e for e in combinations(units, 2) if edge(*e) in self.dead]
        while left:
            count = defaultdict(int)
            for e in left:
                for u in e:
                    count[u] += 1
            found.add(max(count, key=lambda u: (count[u], u)))
            left = [e for e in left if found.isdisjoint(e)]
        return found

    def merged(self, groups):
        """Unions of groups, until no two of them work together."""
        while True:
            used, tests = set(), []
            groups.sort(key=lambda g: (-len(g), g))
            for x, y in combinations(groups, 2):
                if not used & {x, y} and not self.known_bad(x + y):
                    used |= {x, y}
                    tests.append((x, y))
            if not tests:
                return groups
            unions = {Test("group", tuple(sorted(x + y))): (x, y) for x, y in tests}
            got = yield from self.run(unions)
            groups = list(self.of_live(groups))
            for t, o in got.items():
                x, y = unions[t]
                if o.ok:
                    groups = [g for g in groups if g not in (x, y)] + [t.units]

    def rejoined(self, cliques):
        """Units that were set aside, and work with a group none of whose members they had met."""
        tests = []
        for u in sorted(self.aside):
            for g in cliques:
                near = min(g, key=lambda v: (abs(u - v), v))
                if not any(self.is_known(u, v) for v in g):
                    tests.append(Test("pair", edge(u, near)))
        got = yield from self.run(tests)
        self.compare()
        back = {u for t, o in got.items() if o.ok and not self.is_bad(*t.units) for u in t.units}
        back &= self.aside
        self.aside -= back
        return (yield from self.merged(cliques + [(u,) for u in sorted(back)])) if back else cliques

    def between(self, blocks):
        """Which links between two groups, that work in themselves, do not work."""
        while blocks := [b for b in map(self.of_live, blocks) if len(b) == 2]:
            parts = {b: [p for p in self.parts(b) if all(p)] for b in blocks}
            tests = {}
            for p in {p for ps in parts.values() for p in ps}:
                union = tuple(sorted(p[0] + p[1]))
                if not self.known_good(union) and not self.known_dead(union):
                    tests[p] = Test("pair" if len(union) == 2 else "group", union)
            yield from self.run(tests.values())
            blocks, dense = [], []
            for b, ps in parts.items():
                fails = [p for p in ps if not self.known_good(p[0] + p[1])]
                fails = [p for p in fails if not self.resolved(p)]
                whole = b[0] + b[1]
                if not fails and self.known_failed(whole) and not self.known_dead(whole):
                    seen = self.why.get(tuple(sorted(b[0] + b[1])), "")
                    them = {"others": b[1], "what": "together", "why": seen}
                    self.findings.append(Finding("undecided", b[0], **them))
                (dense if len(fails) == len(ps) > 1 else blocks).append((b, fails))
            again = [p for _, fails in blocks for p in fails]
            for b, fails in dense:
                again += [] if (yield from self.is_border(b)) else fails
            blocks = again

    def resolved(self, block) -> bool:
        return all(self.is_known(a, b) for a in block[0] for b in block[1])

    def parts(self, block):
        x, y = block
        dead = {e for e in ((a, b) for a in x for b in y) if edge(*e) in self.dead}
        cover = self.cover(x + y) if dead else set()
        if not dead or len(cover) > 4:
            return [(a, b) for a in halves(x) for b in halves(y)]
        # The few units with dead links apart, each with those that it is not known to miss.
        rest = (tuple(u for u in x if u not in cover), tuple(u for u in y if u not in cover))
        ends = [((u,), tuple(v for v in y if (u, v) not in dead)) for u in x if u in cover]
        ends += [(tuple(v for v in rest[0] if (v, u) not in dead), (u,)) for u in y if u in cover]
        return [rest, *ends]

    def is_border(self, block) -> bool:
        """Units of both sides against each other, in at most 4 rounds; True if none works."""
        small, large = sorted(block, key=len)
        for shift in range(min(4, len(large))):
            used = {
                edge(u, large[(i + shift * len(small)) % len(large)]) for i, u in enumerate(small)
            }
            if shift * len(small) >= len(large):
                used = {edge(u, large[(i + shift) % len(large)]) for i, u in enumerate(small)}
            yield from self.run(Test("pair", e) for e in used if not self.is_known(*e))
            if used & self.good:
                return False
        self.dead_blocks.append(block)
        return True

    def again(self):
        for _ in range(2):
            self.compare()
            late = [way for way in self.rate if self.is_slow(way)]
            groups = {self.source[way] for way in late if way in self.source}
            alone = {Test("pair", edge(*way)) for way in late if way not in self.source}
            yield from self.run(sorted(groups | alone, key=lambda t: t.units))
        self.compare()
        # Single links once more with nothing else on the network, nor on the processors.
        before = list(self.findings)
        self.explain()
        single = [f for f in self.findings[len(before) :] if (f.kind, f.what) == ("link", "slow")]
        self.findings = before
        for f in single[:16]:
            yield from self.run([Test("pair", f.units + f.others)])
        self.compare()

    # --- findings

    def explain(self):
        dead = set(self.dead)
        for x, y in self.dead_blocks:
            dead |= {edge(a, b) for a in x for b in y}
        good = self.good - dead
        slow = {way for way in self.rate if self.is_slow(way) and edge(*way) in good}
        bad = dead | {edge(*way) for way in slow}
        units = list(self.live)
        if len(units) > 2:
            units = self.bad_nodes(units, bad, dead, slow)
            bad = {e for e in bad if set(e) <= set(units)}
            bad -= self.borders(units, good, bad, dead, slow)
        for e in sorted(bad):
            self.add("link", e[:1], e[1:], {e}, dead, slow)

    def bad_nodes(self, units, bad, dead, slow):
        """A unit is bad if all its links that were tried are; the worst first, since its links say
        nothing of the others."""
        left = list(units)
        while True:
            tried = {u: [] for u in left}
            for e in self.good | bad:
                if e[0] in tried and e[1] in tried:
                    for u in e:
                        tried[u].append(e)
            whole = [u for u in left if len(tried[u]) > 1 and all(e in bad for e in tried[u])]
            # where two units are left, or all of three are bad, nothing says which of them it is
            if not whole or len(left) < 3 or (len(left) == 3 and len(whole) > 1):
                return left
            most = max(whole, key=lambda u: (len(tried[u]), u))
            others = tuple(u for u in left if u != most)
            self.add("node", (most,), others, set(tried[most]), dead, slow)
            left.remove(most)

    def borders(self, units, good, bad, dead, slow):
        """Sets of units that work in themselves and with no other."""
        works = defaultdict(set)
        for a, b in good - bad:
            works[a].add(b)
            works[b].add(a)
        parts, left = [], set(units)
        while left:
            part, edge_of = set(), [min(left)]
            while edge_of:
                u = edge_of.pop()
                part.add(u)
                edge_of += (works[u] & left) - part
            left -= part
            parts.append(tuple(sorted(part)))
        parts.sort(key=lambda p: (-len(p), p))
        explained = set()
        for part in parts[1:]:
            across = {e for e in bad if (e[0] in part) != (e[1] in part)} - explained
            rest = tuple(u for u in units if u not in part)
            if len(part) > 1 and across:
                self.add("border", part, rest, across, dead, slow)
                explained |= across
        return explained

    def add(self, kind, units, others, edges, dead, slow):
        ways = [(a, b) for e in edges for a, b in (e, e[::-1])]
        seen = [self.rate[way] for way in ways if way in slow]
        f = Finding(kind, tuple(units), tuple(others), tried=len(edges))
        if 2 * len(edges & dead) > len(edges):
            said = [self.why.get(e, "") for e in sorted(edges & dead)]
            f.why = next((w for w in said if w), "")
        else:
            f.what = "slow"
            f.ratio, f.rate, f.median, f.of = sorted(seen)[len(seen) // 2]
            out = {way for way in ways if way in slow and way[0] in units}
            back = {way for way in ways if way in slow and way[0] not in units}
            f.way = "both" if out and back else "out" if out else "in"
        self.findings.append(f)

    def directions(self):
        """Datagrams over the dead links: the direction in which none comes."""
        dead = [f for f in self.findings if f.what == "dead" and f.kind != "undecided"]
        for f in dead:
            across = [e for e in sorted(self.dead) if (e[0] in f.units) != (e[1] in f.units)]
            across = [e for e in across if set(e) <= set(f.units + f.others)]
            got = yield from self.run(Test("oneway", e) for e in across[:1])
            for o in got.values():
                out = [heard for (a, _), heard in o.heard.items() if a in f.units]
                back = [heard for (a, _), heard in o.heard.items() if a not in f.units]
                if out and back and any(out) != any(back):
                    f.way = "in" if any(out) else "out"
