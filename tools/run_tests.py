"""Runs test suites and ends with one line: N passed, N failed, N skipped.

    run_tests.py dev python e2e     suites: dev, asan, tsan (ctest presets); python, real, e2e
                                    (pytest)
    run_tests.py --total            only adds up what the last run of each suite left

Results are kept as JUnit files in build/test-results. A test that fails runs again, alone, twice at
most: on a busy machine one of thousands may wait in vain. Those that pass only then are named, and
counted in the last line; one that fails each time has failed, and so has one in which a sanitizer
found something. The lines before the last one name them.
"""

import collections
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "test-results"
MOST_AGAIN = 5  # failures of one suite; more are no accident
TIMES_AGAIN = 2
SLOWEST = 10  # tests that are listed
# Several at a time, where they wait for processes. In tests/python those of a file share a job; in
# tests/e2e, which puts long ones first, each process gets the next test when it is done with one.
PYTEST = {
    "python": ["-n", "3", "--dist", "loadfile"],
    "real": ["-n", "2", "--dist", "worksteal"],
    "e2e": ["-n", "4", "--dist", "load", "--maxschedchunk", "1"],
}
MORE_FOLDERS = {"real": ["tests/fuzz", "tests/shapes"]}
TOLD = {
    "again": "passed only when run again",
    "failed": "FAILED",
    "found": "FAILED, a sanitizer found something",
}
FINDING = re.compile(r"Sanitizer: |: runtime error: ")


def command(suite: str, results: Path, again: bool = False) -> list[str]:
    if suite in PYTEST:
        command = [sys.executable, "-m", "pytest", f"--junitxml={results}", f"tests/{suite}"]
        command += MORE_FOLDERS.get(suite, [])
        return command + (["--last-failed"] if again else PYTEST[suite])
    command = ["ctest", "--preset", suite, "--output-junit", str(results)]
    return command + (["--rerun-failed", "-j", "1"] if again else [])


def cases(results: Path) -> dict[str, str]:
    """passed, failed, found (by a sanitizer) or skipped, by the test's name."""
    found = {}
    for case in ElementTree.parse(results).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = "found" if FINDING.search("".join(case.itertext())) else "failed"
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            outcome = "skipped"
        else:
            outcome = "passed"
        found[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return found


def result_files(suite: str) -> list[Path]:
    """Where the suite's runs leave theirs: the first one, then those of what failed."""
    return [RESULTS / f"{suite}{'.again' * times}.xml" for times in range(TIMES_AGAIN + 1)]


def outcomes(suite: str) -> dict[str, str]:
    """Of all tests of the suite's last run; "again": passed when run once more."""
    first, *more = result_files(suite)
    if not first.exists():
        return {suite: "failed"}  # it did not even finish
    found = cases(first)
    for name, outcome in (case for path in more if path.exists() for case in cases(path).items()):
        if found.get(name) == "failed" and outcome in ("passed", "found"):
            found[name] = "again" if outcome == "passed" else outcome
    return found


def slowest(suites: list[str]) -> list[str]:
    """The tests of the suites' last runs that took longest, "12.3 s e2e: name"."""
    found = []
    for suite in suites:
        first = result_files(suite)[0]
        for case in ElementTree.parse(first).iter("testcase") if first.exists() else ():
            name = f"{suite}: {case.get('classname')}::{case.get('name')}"
            found.append((float(case.get("time") or 0), name))
    return [f"{time_s:6.1f} s {name}" for time_s, name in sorted(found, reverse=True)[:SLOWEST]]


def run(suite: str) -> bool:
    first, *more = result_files(suite)
    for path in result_files(suite):
        path.unlink(missing_ok=True)
    print(f"== {suite}", flush=True)
    start = time.monotonic()

    def execute(*arguments) -> int:
        line = command(*arguments)
        return subprocess.run(line, cwd=ROOT, stdin=subprocess.DEVNULL).returncode

    status = execute(suite, first)
    for path in more:
        failed = [name for name, outcome in outcomes(suite).items() if outcome == "failed"]
        if status == 0 or not first.exists() or not 0 < len(failed) <= MOST_AGAIN:
            break
        print(f"== {suite}: once more, alone: {', '.join(failed)}", flush=True)
        again = execute(suite, path, True)
        status = status if {"failed", "found"} & set(outcomes(suite).values()) else again
    print(f"== {suite}: {time.monotonic() - start:.0f} s, status {status}", flush=True)
    return status == 0 and first.exists()


def main() -> int:
    RESULTS.mkdir(parents=True, exist_ok=True)
    suites = sys.argv[1:]
    if suites == ["--total"]:
        suites = sorted(path.stem for path in RESULTS.glob("*.xml") if "." not in path.stem)
        fine = bool(suites)
    else:
        ran = [run(suite) for suite in suites]
        fine = all(ran)
    print("the slowest tests:", *slowest(suites), sep="\n")
    counts = collections.Counter()
    for suite in suites:
        found = outcomes(suite)
        counts.update(found.values())
        for name, outcome in found.items():
            if outcome in TOLD:
                print(f"{suite}: {TOLD[outcome]}: {name}")
    again = f" ({counts['again']} only when run again)" if counts["again"] else ""
    passed, failed = counts["passed"] + counts["again"], counts["failed"] + counts["found"]
    print(f"{passed} passed{again}, {failed} failed, {counts['skipped']} skipped")
    return 0 if fine and failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
