"""What fr.trace_calls costs: python tests/bench/trace_calls.py [rounds]

ns per call of an empty function, untraced, traced (both notes included) and left out by `only`;
the empty loop subtracted, median over rounds of 1000 calls.
"""

import os
import statistics
import sys
import tempfile
import time

CALLS = 1000


def function_in(file: str):
    scope: dict = {}
    exec(compile("def function():\n    pass\n", file, "exec"), scope)
    return scope["function"]


def calls(function) -> None:
    for _ in range(CALLS):
        function()


def nothing(_) -> None:
    for _ in range(CALLS):
        pass


def cost(body, argument, rounds: int) -> float:
    body(argument)
    samples = []
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        body(argument)
        samples.append((time.perf_counter_ns() - begin) / CALLS)
    return statistics.median(samples)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with tempfile.TemporaryDirectory(prefix="fr-bench-") as dumps:
        os.environ.update(FR_DUMP_DIR=dumps, FR_JOB="bench-trace", FR_LOG="off", RANK="0")
        import fr
        from fr import _fr

        assert _fr.start(), "not recording"
        wanted, other, note = function_in("wanted.py"), function_in("other.py"), fr.note

        def notes(text):
            for _ in range(CALLS):
                note(text)

        rows = {"call": (calls, wanted), "fr.note": (notes, "-> function wanted.py:1")}
        rows = {name: cost(*row, rounds) for name, row in rows.items()}
        before = fr.status()["losses"]
        with fr.trace_calls(only="wanted.py"):
            rows["traced call"] = cost(calls, wanted, rounds)
            rows["call left out"] = cost(calls, other, rounds)
        last = [r for r in _fr.records() if r["kind"] == "note"]
        assert len(last) > 2 * CALLS and fr.status()["losses"] == before, "not all were recorded"
        empty = cost(nothing, None, rounds)
        how = "sys.monitoring" if hasattr(sys, "monitoring") else "sys.setprofile"
        print(f"python {sys.version.split()[0]}, {how}, ns per call, {rounds} rounds of {CALLS}")
        for name, ns in rows.items():
            print(f"  {name:<16} {ns - empty:8.0f}")


if __name__ == "__main__":
    main()
