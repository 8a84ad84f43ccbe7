"""Runs test suites and ends with one line: N passed, N failed, N skipped.

    run_tests.py dev python e2e     suites: dev, asan, tsan (ctest presets); python, real, e2e
                                    (pytest)
    run_tests.py --total            only adds up what the last run of each suite left

Results are kept as JUnit files in build/test-results.
"""

import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "test-results"
# Several at a time, where they wait for processes. In tests/python those of a file share a job; in
# tests/e2e, which puts long ones first, each process gets the next test when it is done with one.
PYTEST = {
    "python": ["-n", "2", "--dist", "loadfile"],
    "real": ["tests/fuzz", "tests/shapes", "-n", "2", "--dist", "worksteal"],
    "e2e": ["-n", "4", "--dist", "load", "--maxschedchunk", "1"],
}


def command(suite: str, results: Path) -> list[str]:
    if suite in PYTEST:
        command = [sys.executable, "-m", "pytest", f"tests/{suite}", f"--junitxml={results}"]
        return command + PYTEST[suite]
    return ["ctest", "--preset", suite, "--output-junit", str(results)]


def count(results: Path) -> tuple[int, int, int]:
    """Passed, failed, skipped of one JUnit file."""
    passed = failed = skipped = 0
    for case in ElementTree.parse(results).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def run(suite: str) -> bool:
    results = RESULTS / f"{suite}.xml"
    results.unlink(missing_ok=True)
    print(f"== {suite}", flush=True)
    start = time.monotonic()
    status = subprocess.run(command(suite, results), cwd=ROOT, stdin=subprocess.DEVNULL).returncode
    print(f"== {suite}: {time.monotonic() - start:.0f} s, status {status}", flush=True)
    return status == 0 and results.exists()


def main() -> int:
    RESULTS.mkdir(parents=True, exist_ok=True)
    suites = sys.argv[1:]
    if suites == ["--total"]:
        suites = sorted(path.stem for path in RESULTS.glob("*.xml"))
        fine = bool(suites)
    else:
        ran = [run(suite) for suite in suites]
        fine = all(ran)
    totals = [0, 0, 0]
    for suite in suites:
        results = RESULTS / f"{suite}.xml"
        counts = count(results) if results.exists() else (0, 1, 0)  # it did not even finish
        totals = [a + b for a, b in zip(totals, counts, strict=True)]
    print("{} passed, {} failed, {} skipped".format(*totals))
    return 0 if fine and totals[1] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
