#!/usr/bin/env python3
"""Scores analyzers on simulated hangs whose answer is known.

    score.py --count 500                     # makes 500 cases by seed and scores them
    score.py --class missing --count 100     # of one class
    score.py --dir DIR                       # scores what hangsim has written there
    score.py --half all --count 2000         # jobs drawn widely: known kinds and those held out
    score.py --half all --json failures.json # what frtrace gets wrong: seed, expected, got

Columns: frtrace on fr dumps; frtrace, PyTorch's torchfrtrace and a restatement of NVRx's rule on
PyTorch dumps of the same runs. Needs torch for torchfrtrace; without it that column is left out.
"""

import argparse
import ast
import collections
import contextlib
import io
import json
import logging
import multiprocessing
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 60  # of one analyzer on one case


class Answer:
    """Sets of ranks that an analyzer names (several readings of one output), and the kind; for
    faults of the network the pairs of ranks that it names."""

    def __init__(self, kind, *sets, links=()):
        self.kind = kind
        self.links = [tuple(pair) for pair in links]
        self.sets = [frozenset(s) for s in sets] or [frozenset()]


# ------------------------------------------------------------------ analyzers


def frtrace(path, options):
    done = subprocess.run(
        [options.frtrace, "--json", str(path)], capture_output=True, timeout=LIMIT_S, text=True
    )
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return Answer("crash" if done.returncode < 0 else "unreadable")
    verdict = report["verdict"]
    links = [(link["from"], link["to"]) for link in report.get("links", ())]
    return Answer(verdict["kind"], verdict["ranks"], links=links)


def torchfrtrace(path, _options):
    """The culprits of its database: all of them, or those of its first finding."""
    from torch.distributed.flight_recorder.components import utils
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.config_manager import JobConfig
    from torch.distributed.flight_recorder.components.loader import read_dir

    logging.disable(logging.CRITICAL)
    if not hasattr(utils, "tabulate"):  # a package it needs and does not bring; it only prints
        utils.tabulate = lambda *_args, **_options: ""
    arguments = [str(path), "--allow-incomplete-ranks"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            args = JobConfig().parse_args(arguments)
            args.prefix = prefix_of(path)
            details, version = read_dir(args)
            db = build_db(details, args, version)
        except TimeoutError:
            raise
        except (Exception, SystemExit):
            return Answer("crash")
    first, union, kind = None, set(), "ok"
    for c in db.collectives:
        named = set(c.missing_ranks or ()) | set(c.mismatch_collectives or ())
        if named:
            if first is None:
                first, kind = named, "mismatch" if c.mismatch_collectives else "missing"
            union |= named
    return Answer(kind, first or set(), union)


def prefix_of(path):
    name = sorted(os.listdir(path))[0]
    return name.rstrip("0123456789")


def nvrx(path, _options):
    """NVRx's rule: per group, members without a scheduled entry, or whose last enqueued
    collective is behind the group's; all groups together."""
    ranks = {}
    for file in pathlib.Path(path).iterdir():
        try:
            data = file.read_bytes()
            dump = json.loads(data) if file.suffix == ".json" else pickle.loads(data)
            rank = int("".join(c for c in file.stem.rsplit("_")[-1] if c.isdigit()))
            ranks[rank] = dump["entries"], dump["pg_status"], dump["pg_config"]
        except Exception:  # it prints and skips what it cannot read
            continue
    if not ranks:
        return Answer("crash")
    members, appeared, enqueued = {}, collections.defaultdict(set), collections.defaultdict(dict)
    for rank, (entries, status, config) in ranks.items():
        for name, group in config.items():
            members.setdefault(name, set()).update(ast.literal_eval(group["ranks"]))
        for e in entries:
            name = e["process_group"][0]
            if str(e["pg_id"]) in status:
                last = int(status[str(e["pg_id"])]["last_enqueued_collective"])
                enqueued[name][rank] = last
            if e["state"] == "scheduled" and not e.get("is_p2p"):
                appeared[name].add(rank)
    hanging = set()
    for name, present in appeared.items():
        most = max(enqueued[name].values(), default=0)
        hanging |= members.get(name, set()) - present
        hanging |= {r for r, last in enqueued[name].items() if last < most}
    return Answer("missing" if hanging else "ok", hanging)


ANALYZERS = [
    ("frtrace, fr dumps", "fr", frtrace),
    ("frtrace, PyTorch dumps", "torch", frtrace),
    ("torchfrtrace", "torch", torchfrtrace),
    ("NVRx's rule", "torch", nvrx),
]


# ------------------------------------------------------------------ judging


def judge(answer, truth):
    """The score of an answer: outcome, false blame, whether the kind is right too."""
    accepted = [(truth["kind"], frozenset(truth["ranks"]))]
    accepted += [(a["kind"], frozenset(a["ranks"])) for a in truth["also"]]
    # If nothing is stuck, every rank named as stuck is named falsely.
    alarm = truth["kind"] in ("ok", "slow") and answer.kind != "slow"
    faulty = set() if alarm else set(truth["faulty"])
    blame = all(s - faulty for s in answer.sets)
    if answer.kind == "transport" and "links" in truth:
        blame = blame or bool(set(answer.links) - {tuple(pair) for pair in truth["links"]})
    # The answer of a verdict that names no rank is its kind.
    exact = any(s and s in {r for _, r in accepted} for s in answer.sets) or any(
        not s and (answer.kind, s) in accepted for s in answer.sets
    )
    kind = exact and any((answer.kind, s) in accepted for s in answer.sets)
    if answer.kind in ("crash", "unreadable"):
        outcome = "none"
    elif blame:
        outcome = "blame"
    elif exact:
        outcome = "exact"
    elif answer.kind == "undecided":
        outcome = "undecided"
    else:
        outcome = "miss"
    return outcome, kind and outcome == "exact"


def score_case(job):
    directory, options = job
    truth = json.loads((directory / "truth.json").read_text())
    rows = []
    for column, form, analyzer in ANALYZERS:
        path = directory / form
        wanted = column in options.columns and form in truth
        if not wanted or not path.is_dir() or not any(path.iterdir()):
            continue
        signal.alarm(LIMIT_S)
        try:
            answer = analyzer(path, options)
        except (TimeoutError, subprocess.TimeoutExpired):
            answer = Answer("crash")
        finally:
            signal.alarm(0)
        outcome, kind = judge(answer, truth[form])
        rows.append(
            {
                "column": column,
                "format": form,
                "case": truth["name"],
                "class": truth["class"],
                "decidable": truth[form]["decidable"],
                "outcome": outcome,
                "kind": kind,
                "half": truth.get("half", "old"),
                "job": truth["job"],
                "seed": truth["seed"],
                "world": truth["world"],
                "got": [answer.kind, sorted(answer.sets[-1]), *answer.links],
                "expected": [truth[form]["kind"], truth[form]["ranks"]],
                "also": [[a["kind"], a["ranks"]] for a in truth[form]["also"]],
                "lacking": truth[form].get("lacking", ""),
                "path": str(path),
                "fault": truth["fault"],
            }
        )
    return rows


def on_alarm(_signal, _frame):
    raise TimeoutError


def start_worker():
    signal.signal(signal.SIGALRM, on_alarm)


def score(directories, options):
    jobs = [(d, options) for d in directories]
    with multiprocessing.Pool(options.jobs, start_worker) as pool:
        return [row for rows in pool.imap(score_case, jobs, chunksize=4) for row in rows]


# ------------------------------------------------------------------ output


def percent(part, whole):
    if whole == 0:
        return "-"
    return f"{100 * part // whole} %" if part < whole else "100 %"


def summary(rows):
    clear = [r for r in rows if r["decidable"]]
    count = collections.Counter(r["outcome"] for r in clear)
    return {
        "cases": len(rows),
        "decidable": len(clear),
        "exact": count["exact"],
        "kind": sum(r["kind"] for r in clear),
        "blame": sum(r["outcome"] == "blame" for r in rows),
        "miss": count["miss"],
        "undecided": count["undecided"],
        "none": count["none"],
    }


def halves_of(rows):
    """The halves that stand beside each other: known kinds of jobs and held-out kinds."""
    if any(r["half"] == "held_out" for r in rows) and any(r["half"] == "known" for r in rows):
        return ["known", "held_out"]
    return [None]


def cell(rows):
    s = summary(rows)
    return f"{percent(s['exact'], s['decidable'])} of {s['decidable']} / {s['blame']}"


def halves_table(rows, options):
    """Markdown: a line per class (or kind of job), per analyzer the two halves: exact of the
    decidable / false blame."""
    columns = [c for c, _, _ in ANALYZERS if any(r["column"] == c for r in rows)]
    halves = ["known", "held_out"]
    heads = [f"{c.removeprefix('frtrace, ')}, {h}" for c in columns for h in halves]
    lines = [f"| {options.by} | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for name in [*sorted({r[options.by] for r in rows}), "all"]:
        mine = [r for r in rows if name in (r[options.by], "all")]
        cells = [
            cell([r for r in mine if r["column"] == c and r["half"] == h])
            for c in columns
            for h in halves
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def totals(rows, columns):
    """Markdown: a line per analyzer, and per half where there are two."""
    heads = "analyzer|cases|decidable|exact|kind too|false blame|missed|undecided|no answer"
    lines = ["| " + heads.replace("|", " | ") + " |", "|---" * (heads.count("|") + 1) + "|"]
    for column in columns:
        for half in halves_of(rows):
            s = summary([r for r in rows if r["column"] == column and half in (None, r["half"])])
            part = [percent(s[k], s["decidable"]) for k in ("exact", "kind")]
            part += [f"{s['blame']} ({percent(s['blame'], s['cases'])})"]
            part += [str(s[k]) for k in ("miss", "undecided", "none")]
            name = column if half is None else f"{column}, {half}"
            lines.append(f"| {name} | {s['cases']} | {s['decidable']} | " + " | ".join(part) + " |")
    return "\n".join(lines)


def table(rows, options):
    """Markdown: a line per class (exact of the decidable / false blame), and the totals."""
    columns = [c for c, _, _ in ANALYZERS if any(r["column"] == c for r in rows)]
    lines = []
    if len(halves_of(rows)) > 1 and not options.totals:
        lines = [halves_table(rows, options), ""]
    elif not options.totals:
        classes = list(dict.fromkeys(r["class"] for r in sorted(rows, key=lambda r: r["class"])))
        lines.append("| class | " + " | ".join(columns) + " |")
        lines.append("|---" * (len(columns) + 1) + "|")
        for name in classes:
            cells = []
            for column in columns:
                s = summary([r for r in rows if r["class"] == name and r["column"] == column])
                blame = percent(s["blame"], s["cases"])
                cells.append(f"{percent(s['exact'], s['decidable'])} of {s['decidable']} / {blame}")
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join([*lines, totals(rows, columns)])


def wrong(rows):
    """The cases that frtrace gets wrong."""
    bad = [r for r in rows if r["column"].startswith("frtrace")]
    return [
        r
        for r in bad
        if r["outcome"] in ("blame", "none")
        or (r["decidable"] and not (r["outcome"] == "exact" and r["kind"]))
    ]


def failures(rows):
    for r in wrong(rows):
        mark = "" if r["decidable"] else f" (not decidable: {r['lacking']})"
        yield (
            f"{r['outcome']:9} {r['path']}{mark}\n"
            f"          expected {r['expected'][0]} {r['expected'][1]}, "
            f"got {' '.join(map(str, r['got']))}; fault: {r['fault']}"
        )


def default_tool(name):
    """The binary of the newest build."""
    found = sorted(ROOT.glob(f"build/*/tools/{name}/{name}"), key=lambda p: p.stat().st_mtime)
    return str(found[-1]) if found else name


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frtrace", default=default_tool("frtrace"))
    parser.add_argument("--hangsim", default=default_tool("hangsim"))
    parser.add_argument("--dir", type=pathlib.Path, help="cases that are already there")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--class", dest="cls", help="one class of hangsim --list")
    parser.add_argument("--below", action="store_true", help="faults below the host; fr dumps only")
    parser.add_argument("--half", choices=["known", "held_out", "all"], help="jobs drawn widely")
    parser.add_argument("--by", choices=["class", "job"], default="class", help="lines of halves")
    parser.add_argument("--json", type=pathlib.Path, help="write there what frtrace gets wrong")
    parser.add_argument("--job", help="one kind of job")
    parser.add_argument("--world", type=int)
    parser.add_argument("--columns", default=[c for c, _, _ in ANALYZERS], type=columns_of)
    parser.add_argument("--totals", action="store_true", help="no line per class")
    parser.add_argument("--failures", action="store_true", help="name what frtrace gets wrong")
    parser.add_argument("--keep", type=pathlib.Path, help="write the cases there, and keep them")
    parser.add_argument("-j", "--jobs", type=int, default=min(2, os.cpu_count()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = options.dir or options.keep or pathlib.Path(scratch)
        if options.dir is None:
            command = [options.hangsim, "-o", str(place)]
            for name in ("seed", "count", "job", "world", "half"):
                value = getattr(options, name)
                command += [f"--{name}", str(value)] if value is not None else []
            command += ["--class", options.cls] if options.cls else []
            command += ["--below"] if options.below else []
            subprocess.run(command, check=True)
        rows = score(sorted(p.parent for p in place.rglob("truth.json")), options)
        print(table(rows, options))
        if options.json:
            options.json.write_text(json.dumps(wrong(rows), indent=1) + "\n")
        if options.failures:
            print("\n".join(["", *failures(rows)]))
    return 0 if rows else 1


def columns_of(text):
    """Names of analyzers; the first word is enough: frtrace, torchfrtrace, NVRx's."""
    wanted = text.split(",")
    return [c for c, _, _ in ANALYZERS if any(c.startswith(w) for w in wanted)]


if __name__ == "__main__":
    sys.exit(main())
