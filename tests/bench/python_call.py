"""What the manual way costs from Python: fr.begin/fr.end, without and with a deep stack; a note.

    python tests/bench/python_call.py [batches]

Wall time per call in batches of calls in a row, the empty loop subtracted; median and 99th
percentile over batches.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time

CALLS = 1000


def cost(body, batches: int) -> list[float]:
    """ns per call of body(CALLS), sorted."""
    body(CALLS)
    samples = []
    for _ in range(batches):
        begin = time.perf_counter_ns()
        body(CALLS)
        samples.append((time.perf_counter_ns() - begin) / CALLS)
    return sorted(samples)


def at_depth(depth: int, function, *args):
    return function(*args) if depth <= 1 else at_depth(depth - 1, function, *args)


def report(name: str, samples: list[float], loop: float) -> None:
    median = statistics.median(samples) - loop
    p99 = samples[len(samples) * 99 // 100] - loop
    print(f"  {name:<44} {median:9.1f} {p99:9.1f}")


def main() -> int:
    batches = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with tempfile.TemporaryDirectory(prefix="fr-bench-") as dumps:
        os.environ.update(FR_DUMP_DIR=dumps, FR_JOB="bench-python", FR_LOG="off", RANK="0")
        import fr

        group = fr.group("bench", [0, 1])
        begin, end = fr.begin, fr.end

        def loop(n):
            for _ in range(n):
                pass

        def pairs(n):
            for _ in range(n):
                end(begin(group, "all_reduce"))

        tickets = []

        def begins(n):
            tickets.append([begin(group, "all_reduce") for _ in range(n)])

        def nothings(n):
            tickets.append([None for _ in range(n)])

        empty = statistics.median(cost(loop, batches))
        print(f"python {sys.version.split()[0]}: {batches} batches of {CALLS} calls")
        print(f"  {'ns per call':<44} {'median':>9} {'p99':>9}")
        here = 3  # frames of main, cost and the loop itself
        for depth in (here, 20, 32):
            extra = max(1, depth - here)
            name = f"begin + end, {depth} frames"
            report(name, at_depth(extra, cost, pairs, batches), empty)
        bare = statistics.median(cost(nothings, batches))
        tickets.clear()
        report("begin, 20 frames", at_depth(20 - here, cost, begins, batches), bare)
        for ticket in (t for batch in tickets for t in batch):
            end(ticket)

        texts = [f"a note of forty characters, number {i:04}" for i in range(CALLS)]

        def notes(n):
            for i in range(n):
                fr.note(texts[i])

        def reads(n):
            for i in range(n):
                texts[i]

        report("note, 40 characters", cost(notes, batches), statistics.median(cost(reads, batches)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
