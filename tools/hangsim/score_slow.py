#!/usr/bin/env python3
"""Scores frtrace's stragglers on simulated jobs in which nothing is stuck.

    score_slow.py --count 40                # of each class, fr dumps
    score_slow.py --format torch            # PyTorch dumps of the same runs
    score_slow.py --class slow_node --failures

ranks: exactly the slow ranks are named; blame: another rank is; of exact answers: cause, pattern,
and first late step within a tenth of the steps. If no rank is slow, `ok` is exact.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import score

CLASSES = "slow_host slow_device slow_node slow_rarely slow_drifting slow_nobody".split()


def since_step(entry, truth):
    """By how many steps the told start is off; the dumps of hangsim tell operations, no steps."""
    first = {f["rank"]: f["seq"] for f in truth["slow"]["first"]}.get(entry["rank"], {})
    planted = first.get(f"{entry['group']}/{entry['desc']}")
    return None if planted is None else entry["since_seq"] - planted


def judge(report, truth, form, per_step):
    verdict, want = report["verdict"], truth[form]
    named = set(verdict["ranks"])
    row = {
        "exact": verdict["kind"] == want["kind"] and named == set(want["ranks"]),
        "blame": bool(named - set(want["faulty"])),
    }
    late = report["stragglers"]
    if not row["exact"] or not late or not named:
        return row
    planted = truth["slow"]
    worst = [next(e for e in late if e["rank"] == r) for r in sorted(named)]
    row["cause"] = all(e["cause"] == planted["cause"] for e in worst)
    row["pattern"] = all(e["pattern"] == planted["pattern"] for e in worst)
    off = [since_step(e, truth) for e in worst]
    steps = max(2, planted["steps"] // 10)
    row["since"] = all(
        o is not None and -per_step(e) <= o <= steps * per_step(e)
        for o, e in zip(off, worst, strict=True)
    )
    return row


def score_class(cls, options, place):
    subprocess.run(
        [options.hangsim, "--class", cls, "--seed", str(options.seed)]
        + ["--count", str(options.count), "-o", str(place), "--format", options.format],
        check=True,
    )
    rows = []
    for file in sorted(place.glob(f"{cls}-*/truth.json")):
        truth = json.loads(file.read_text())
        done = subprocess.run(
            [options.frtrace, "--json", str(file.parent / options.format)],
            capture_output=True,
            text=True,
            timeout=score.LIMIT_S,
        )
        report = json.loads(done.stdout)

        def per_step(entry, report=report, truth=truth):
            for g in report["groups"]:
                if (g["name"], g["desc"]) == (entry["group"], entry["desc"]):
                    return -(-g["enqueued"][1] // truth["slow"]["steps"])
            return 1

        row = judge(report, truth, options.format, per_step)
        rows.append(row)
        if options.failures and (
            row["blame"] or not all(v for k, v in row.items() if k != "blame")
        ):
            late = [
                (e["rank"], e["cause"], e["pattern"], e["since_seq"], e["late"], e["of"])
                for e in report["stragglers"][:3]
            ]
            print(
                file.parent.name,
                truth["fault"],
                truth[options.format]["ranks"],
                truth["slow"],
                "got",
                report["verdict"]["kind"],
                report["verdict"]["ranks"],
                late,
            )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frtrace", default=score.default_tool("frtrace"))
    parser.add_argument("--hangsim", default=score.default_tool("hangsim"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--class", dest="cls", choices=CLASSES)
    parser.add_argument("--format", choices=["fr", "torch"], default="fr")
    parser.add_argument("--failures", action="store_true")
    options = parser.parse_args()
    lines = ["| class | cases | ranks | false blame | cause | pattern | since |", "|---" * 7 + "|"]
    for cls in [options.cls] if options.cls else CLASSES:
        with tempfile.TemporaryDirectory() as scratch:
            rows = score_class(cls, options, pathlib.Path(scratch))
        told = [r for r in rows if "cause" in r]
        cells = [str(len(rows)), score.percent(sum(r["exact"] for r in rows), len(rows))]
        cells.append(str(sum(r["blame"] for r in rows)))
        cells += [
            score.percent(sum(r[k] for r in told), len(told)) for k in ("cause", "pattern", "since")
        ]
        lines.append(f"| {cls} | " + " | ".join(cells) + " |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
