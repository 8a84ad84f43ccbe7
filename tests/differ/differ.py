#!/usr/bin/env python3
"""Two opinions on the same dumps: frtrace's and checker.py's. `make differ`.

    differ.py [--count N] [--sets a,b] [--names]

Prints how often the checker has an opinion (undecided is none), how often the two then agree, how
often either is right by the truth of the set, and the cases in which they differ. Where they agree,
the answer is almost always right. Where they differ, somebody should read the case, whichever of
them is right.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "ablate"), str(ROOT)]
import ablate  # noqa: E402
import checker  # noqa: E402
import score as hangsim  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="cases of each generated set")
    parser.add_argument("--seed", type=int, default=9001)
    parser.add_argument("--sets", default="classes,known,held_out,shapes,elsewhere,real")
    parser.add_argument("--frtrace", default=hangsim.default_tool("frtrace"))
    options = parser.parse_args()
    options.sets = options.sets.split(",")
    with tempfile.TemporaryDirectory() as scratch:
        cases = ablate.cases_of(options, pathlib.Path(scratch))
        compare(cases, options.frtrace)


def compare(cases, frtrace):
    def both(case):
        second = checker.opinion_of(case.path)
        return case, second, second and hangsim.frtrace(case.path, Program(frtrace))

    counts, differing = collections.defaultdict(collections.Counter), []
    with ThreadPoolExecutor(2) as pool:
        for case, second, first in pool.map(both, cases):
            if second is None:
                continue
            ranks = sorted(first.sets[0])
            ours = case.worth(first.kind, ranks, ranks, first.links)
            theirs = case.worth(second.kind, second.ranks, second.ranks, [])
            decided = second.kind != "undecided"
            same = decided and ranks == second.ranks
            for name in (case.set, "all"):
                counts[name].update(
                    cases=1,
                    opinions=decided,
                    agree=same,
                    agree_right=same and ours == ablate.RIGHT,
                    frtrace_right=ours == ablate.RIGHT,
                    checker_right=decided and theirs == ablate.RIGHT,
                )
            if decided and not same:
                differing.append((case, ours, first.kind, ranks, theirs, second))
    columns = ("cases", "opinions", "agree", "agree_right", "frtrace_right", "checker_right")
    print(f"{'set':12}" + "".join(f"{c:>15}" for c in columns))
    for name, count in counts.items():
        print(f"{name:12}" + "".join(f"{count[c]:15}" for c in columns))
    for case, ours, kind, ranks, theirs, second in differing:
        print(
            f"{case.set}/{case.name}: frtrace {kind} {ranks} ({ours}); "
            f"checker {second.kind} {second.ranks} ({theirs}): {second.why}"
        )


Program = collections.namedtuple("Program", "frtrace")

if __name__ == "__main__":
    sys.exit(main())
