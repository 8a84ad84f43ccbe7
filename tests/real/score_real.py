#!/usr/bin/env python3
"""Scores frtrace, and torchfrtrace, on the sets that make_real_dumps.py made.

    score_real.py OUT [--frtrace PATH] [--torchfrtrace] [--exported] [--faults a,b] [--failing]

Columns: `fr` frtrace on fr's dumps, `torch` on those of PyTorch's recorder, `export` on what
`frtrace --to-torch` makes of fr's: as complete as the dumps of a GPU backend.

A case is right when the kind and the exact set of ranks are one of those in its truth.json.
"""

import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile


def frtrace(binary, where):
    got = subprocess.run([binary, "--json", where], capture_output=True, text=True, timeout=60)
    try:
        verdict = json.loads(got.stdout)["verdict"]
    except (json.JSONDecodeError, KeyError):
        return ["error", [], (got.stderr.strip() or f"exit status {got.returncode}")[:200]]
    return [verdict["kind"], sorted(verdict["ranks"]), verdict["summary"]]


def torchfrtrace(python, where, prefix="trace_rank_"):
    """It has no verdict: right is when the set of ranks it names as missing or mismatched is."""
    got = subprocess.run(
        [python, "-m", "torch.distributed.flight_recorder.fr_trace", where, "-p", prefix,
         "--allow-incomplete-ranks"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    text = got.stdout + got.stderr
    if "Traceback" in text:
        return ["error", [], text.strip().splitlines()[-1][:160]]
    ranks = {int(r) for r in re.findall(r"Culprit rank (\d+)", text)}
    for found in re.findall(r"missing ranks: {([\d, ]+)}", text):
        ranks |= {int(r) for r in found.split(",")}
    said = next((x for x in text.splitlines() if "missing" in x or "Culprit" in x), "")
    return ["said" if ranks or said else "ok", sorted(ranks), said[:160]]


def exported(binary, where, run):
    with tempfile.TemporaryDirectory() as to:
        subprocess.run([binary, "--to-torch", to, where / "fr"], capture_output=True, timeout=60)
        return run(to)


def judge(got, accepted):
    """right, or what else: set (the kind is wrong), false blame, nobody named."""
    kind, ranks, _ = got
    if any((k, sorted(r)) == (kind, ranks) for k, r in accepted):
        return "right"
    if any(sorted(r) == ranks for _, r in accepted if r):
        return "set"
    if set(ranks) - {rank for _, r in accepted for rank in r}:
        return "false"
    return "part" if ranks else "none"


def torch_accepted(truth, where):
    """PyTorch's dumps do not say how a process ended, only whether it left one."""
    left = [(where / f"trace_rank_{r}").exists() for r in truth["ranks"]]
    if left and not any(left):
        return truth["accept_torch"] + [["exited", truth["ranks"]]]
    if truth["kind"] == "exited" and all(left):
        return truth["accept_torch"] + [["missing", truth["ranks"]]]
    return truth["accept_torch"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--frtrace", default="frtrace")
    parser.add_argument("--torchfrtrace", action="store_true")
    parser.add_argument("--exported", action="store_true")
    parser.add_argument("--faults")
    parser.add_argument("--failing", action="store_true", help="name the cases that are not right")
    args = parser.parse_args()
    table = collections.defaultdict(lambda: collections.Counter())
    for path in sorted(args.out.glob("*/truth.json")):
        truth = json.loads(path.read_text())
        if args.faults and truth["fault"] not in args.faults.split(","):
            continue
        runs = {
            "fr": lambda d: frtrace(args.frtrace, d / "fr"),
            "torch": lambda d: frtrace(args.frtrace, d / "torch"),
        }
        if args.torchfrtrace:
            runs["torchfrtrace"] = lambda d: torchfrtrace(sys.executable, d / "torch")
        if args.exported:
            runs["export"] = lambda d: exported(args.frtrace, d, lambda t: frtrace(args.frtrace, t))
        if args.exported and args.torchfrtrace:
            runs["torchfrtrace on it"] = lambda d: exported(
                args.frtrace, d, lambda t: torchfrtrace(sys.executable, t, "fr_trace_rank_")
            )
        for name, run in runs.items():
            allowed = truth["accept"]
            if name in ("torch", "torchfrtrace"):
                if not any((path.parent / "torch").iterdir()):
                    continue
                allowed = torch_accepted(truth, path.parent / "torch")
            elif name != "fr" and truth["kind"] == "exited":
                allowed = [*allowed, ["missing", truth["ranks"]]]
            got = run(path.parent)
            if name.startswith("torchfrtrace"):  # it knows no kinds
                allowed = [["said" if ranks else "ok", ranks] for _, ranks in allowed]
            result = judge(got, allowed)
            for row in (truth["fault"], "all"):
                table[row][name, "n"] += 1
                table[row][name, result] += 1
            if args.failing and result != "right" and not name.startswith("torchf"):
                word = {"false": "FALSE BLAME", "none": f"nobody ({got[0]})"}.get(result, result)
                print(f"{path.parent.name}/{name} ({truth['mode']}): {word}")
                print(f"    expected {allowed}, ended {truth['ends']}")
                print(f"    got {got[0]} {got[1]}: {got[2]}")
    names = list(runs)
    columns = ("right", "set", "part", "none", "false")
    print(f"{'':18}" + "".join(f"| {n:^41}" for n in names))
    print(f"{'fault':18}" + ("| cases" + "".join(f"{c:>7}" for c in columns)) * len(names))
    for row in sorted(table, key=lambda r: (r == "all", r)):
        cells = "".join(
            f"| {table[row][n, 'n']:5}" + "".join(f"{table[row][n, c]:7}" for c in columns)
            for n in names
        )
        print(f"{row:18}{cells}")


if __name__ == "__main__":
    main()
