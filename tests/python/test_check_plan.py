"""The planner of `frtrace check`, on simulated clusters with planted faults."""

import random
from itertools import combinations

import pytest

from fr.check_plan import Outcome, Planner

NODES = 64


class Fabric:
    """Nodes with faults: per unit alone, per direction a factor of its rate (0: nothing passes)."""

    def __init__(self, n, seed, rate=46.0):
        self.n = n
        self.rng = random.Random(seed)
        self.rate = rate
        self.alone = {}
        self.factor = {}
        self.silent = set()
        self.rounds = []

    def plant(self, ways, factor):
        self.factor |= dict.fromkeys(ways, factor)

    def works(self, units):
        return all(
            self.factor.get(way, 1) > 0 for e in combinations(units, 2) for way in (e, e[::-1])
        )

    def outcome(self, test):
        u = test.units
        silent = tuple(v for v in u if v in self.silent)
        if silent:
            return Outcome(False, silent=silent)
        if test.kind == "alone":
            factor = self.alone.get(u[0], 1)
            return Outcome(factor > 0, {u * 2: 900 * factor * self.noise()})
        ways = [way for e in combinations(u, 2) for way in (e, e[::-1])]
        if test.kind == "oneway":
            return Outcome(True, heard={way: self.factor.get(way, 1) > 0 for way in ways})
        if not self.works(u):
            return Outcome(False, why=f"{test.kind} of {len(u)} hangs")
        base = self.rate * (1 if test.kind == "pair" else 0.7)
        return Outcome(True, {w: base * self.factor.get(w, 1) * self.noise() for w in ways})

    def noise(self):
        return self.rng.uniform(0.95, 1.05)

    def check(self, slow=0.8):
        planner = Planner(range(self.n), slow)
        steps = planner.steps()
        outcomes = None
        while True:
            try:
                tests = steps.send(outcomes)
            except StopIteration as done:
                return done.value
            used = [u for t in tests for u in t.units]
            assert len(used) == len(set(used)), tests
            self.rounds.append(tests)
            outcomes = {t: self.outcome(t) for t in tests}


def told(finding):
    """What is compared: where, what and in which direction."""
    f = finding
    if f.kind == "border":
        sides = {frozenset(f.units), frozenset(f.others)}
        source = {"out": f.units, "in": f.others, "both": ()}[f.way]
        return (f.kind, frozenset(sides), f.what, frozenset(source))
    if f.kind == "link":
        way = {"out": f.units + f.others, "in": f.others + f.units, "both": ()}[f.way]
        return (f.kind, frozenset(f.units + f.others), f.what, way)
    return (f.kind, frozenset(f.units), f.what, f.way)


def plant(fabric, rng, allowed=None):
    """One random fault, away from nodes that have one; (what is to be found, nodes in question)."""
    allowed = sorted(allowed if allowed is not None else range(fabric.n))
    kind = rng.choice(["node", "link", "one direction", "rack", "node direction", "alone"])
    factor, what = rng.choice([(0, "dead"), (rng.uniform(0.02, 0.7), "slow")])
    way = rng.choice(["out", "in"])
    a, b = sorted(rng.sample(allowed, 2))
    everybody = range(fabric.n)
    if kind == "alone":
        fabric.alone[a] = factor
        return ("node", frozenset([a]), "slow alone" if factor else "alone", "both"), {a}
    if kind in ("node", "node direction"):
        out = [(a, v) for v in everybody if v != a]
        back = [(v, a) for v in everybody if v != a]
        ways = {"node": out + back, "node direction": out if way == "out" else back}[kind]
        fabric.plant(ways, factor)
        return ("node", frozenset([a]), what, "both" if kind == "node" else way), {a}
    if kind == "link":
        fabric.plant([(a, b), (b, a)], factor)
        return ("link", frozenset([a, b]), what, ()), {a, b}
    if kind == "one direction":
        ends = (a, b) if way == "out" else (b, a)
        fabric.plant([ends], factor)
        return ("link", frozenset([a, b]), what, ends), {a, b}
    size = rng.randint(2, fabric.n // 2)
    start = rng.randint(0, fabric.n - size)
    rack = set(range(start, start + size))
    rest = set(everybody) - rack
    out = [(u, v) for u in rack for v in rest]
    ways, source = {
        0: (out + [way[::-1] for way in out], ()),
        1: (out, rack),
        2: ([way[::-1] for way in out], rest),
    }[rng.randint(0, 2)]
    fabric.plant(ways, factor)
    return ("border", frozenset([frozenset(rack), frozenset(rest)]), what, frozenset(source)), rack


def test_a_healthy_cluster_takes_three_rounds():
    for n in (1, 2, 3, 4, 5, 63, 64, 200):
        fabric = Fabric(n, n)
        assert fabric.check() == []
        assert len(fabric.rounds) <= (3 if n > 4 and n % 2 == 0 else 4 if n > 4 else 5)


@pytest.mark.parametrize("seed", range(200))
def test_one_fault_of_64_nodes_is_found_exactly(seed):
    rng = random.Random(seed)
    fabric = Fabric(NODES, seed)
    truth, _ = plant(fabric, rng)
    findings = fabric.check()
    assert [told(f) for f in findings] == [truth], (findings, truth)
    assert len(fabric.rounds) <= 30, len(fabric.rounds)


@pytest.mark.parametrize("seed", range(60))
def test_of_three_faults_none_is_put_on_a_node_that_is_fine(seed):
    rng = random.Random(1000 + seed)
    fabric = Fabric(NODES, seed)
    truths, involved = set(), set()
    while len(truths) < 3:
        sketch = Fabric(NODES, seed)
        truth, nodes = plant(sketch, rng, set(range(NODES)) - involved)
        if truth[0] != "border":
            truths.add(truth)
            involved |= nodes
            fabric.alone |= sketch.alone
            fabric.factor |= {w: f for w, f in sketch.factor.items() if fabric.factor.get(w, 1) > f}
    found = {told(f) for f in fabric.check()}
    # The direction of a node's links is not that of all of them where another fault lies on one.
    assert {t[:3] for t in found} == {t[:3] for t in truths}


def test_a_node_without_an_answer_is_undecided_and_hides_nothing():
    fabric = Fabric(NODES, 1)
    fabric.silent = {9}
    fabric.plant([(20, v) for v in range(NODES)], 0)
    found = {(f.kind, f.units, f.what) for f in fabric.check()}
    assert found == {("undecided", (9,), "no answer"), ("node", (20,), "dead")}


@pytest.mark.parametrize("when", range(1, 25))
def test_a_node_that_falls_silent_in_between_hides_nothing(when):
    fabric = Fabric(NODES, when)
    fabric.plant([(11, 50), (50, 11)], 0)
    honest = fabric.outcome

    def outcome(test):
        if len(fabric.rounds) >= when:
            fabric.silent = {12 + when}
        return honest(test)

    fabric.outcome = outcome
    found = {(f.kind, f.units, f.others, f.what) for f in fabric.check()}
    silent = {("undecided", (12 + when,), (), "no answer")}
    assert found - silent == {("link", (11,), (50,), "dead")}


def test_two_nodes_cannot_tell_which_of_them_it_is():
    fabric = Fabric(2, 1)
    fabric.plant([(0, 1), (1, 0)], 0)
    assert [(f.kind, f.units, f.others) for f in fabric.check()] == [("link", (0,), (1,))]


def test_what_fails_only_all_together_is_undecided():
    fabric = Fabric(NODES, 1)
    fabric.works = lambda units: len(units) <= 32
    assert [(f.kind, f.what) for f in fabric.check()] == [("undecided", "together")]


def test_a_test_that_was_slow_once_is_not_a_finding():
    fabric = Fabric(NODES, 1)
    once = []
    honest = fabric.outcome

    def outcome(test):
        got = honest(test)
        if test.kind == "group" and not once:
            once.append(test)
            got.rates[3, 40] /= 10
        return got

    fabric.outcome = outcome
    assert fabric.check() == [] and once
