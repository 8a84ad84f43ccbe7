"""python -m tests.shapes.score --frtrace PATH [--failures FILE] DIR...: frtrace against the truth
of generated cases."""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

COLUMNS = (
    "cases",
    "decidable",
    "exact",
    "exact_decidable",
    "who",  # the ranks are right, whatever the kind
    "false_blame",
    "missed",
    "undecided",
)


def ask(frtrace, folder):
    done = subprocess.run(
        [str(frtrace), "--json", str(folder / "files")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    try:
        return json.loads(done.stdout)["verdict"]
    except (ValueError, KeyError):
        return {
            "kind": "crashed",
            "ranks": [],
            "summary": f"exit {done.returncode}: {done.stderr[-300:]}",
        }


def judge(truth, verdict):
    """The names of all columns that this verdict counts in."""
    kind, ranks = verdict["kind"], sorted(verdict["ranks"])
    said = {"cases"}
    exact = [kind, ranks] in truth["accept"]
    if truth["decidable"]:
        said.add("decidable")
    if exact:
        said.add("exact")
        if truth["decidable"]:
            said.add("exact_decidable")
    allowed = {r for _, names in truth["accept"] for r in names} | set(truth["guilty"])
    if set(ranks) - allowed:
        said.add("false_blame")
    if any(ranks == names for _, names in truth["accept"]):
        said.add("who")
    if truth["hang"] and kind in ("ok", "slow"):
        said.add("missed")
    if kind == "undecided":
        said.add("undecided")
    return said


def score(frtrace, folders, jobs=2):
    """(counts per class, failures)."""
    counts, failures = defaultdict(Counter), []

    def one(folder):
        truth = json.loads((folder / "truth.json").read_text())
        return folder, truth, ask(frtrace, folder)

    with ThreadPoolExecutor(jobs) as pool:
        for folder, truth, verdict in pool.map(one, folders):
            said = judge(truth, verdict)
            for name in (truth["class"], "all"):
                counts[name].update(said)
            if "exact" not in said:
                failures.append(
                    {
                        "dir": str(folder),
                        "said": sorted(said - {"cases"}),
                        "got": [verdict["kind"], verdict["ranks"]],
                        "accept": truth["accept"],
                        "fault": truth["fault"],
                        "shape": truth["shape"],
                        "why_not": truth["why_not"],
                        "summary": verdict.get("summary", ""),
                    }
                )
    return counts, failures


def table(counts):
    lines = [f"{'class':28}" + "".join(f"{c:>16}" for c in COLUMNS)]
    for name in [*sorted(n for n in counts if n != "all"), "all"]:
        lines.append(f"{name:28}" + "".join(f"{counts[name][c]:16}" for c in COLUMNS))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frtrace", required=True)
    parser.add_argument("--failures", help="one JSON line per case that is not exact")
    parser.add_argument("dirs", nargs="+")
    args = parser.parse_args()
    folders = sorted({p.parent for d in args.dirs for p in pathlib.Path(d).rglob("truth.json")})
    counts, failures = score(args.frtrace, folders)
    print(table(counts))
    if args.failures:
        pathlib.Path(args.failures).write_text("".join(json.dumps(f) + "\n" for f in failures))


if __name__ == "__main__":
    main()
