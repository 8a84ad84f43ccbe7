#!/usr/bin/env python3
"""Measures what each decision of the engine is worth: `make ablate`.

    ablate.py [--count N] [--only WORD] [--sets a,b] [--out FILE]

Every function of facts/, causes/ and judge/ that decides something is replaced by a constant in
turn (switches.py). Per switch and set of cases the table shows how many answers change, and how:

    lost      a right answer became another one
    blamed    an innocent rank is named, or a hang is called ok, where that was not so before
    gained    a wrong answer became right

A decision without `lost` and `blamed` in all sets can go. If only a single set has them, the
decision was drawn from cases of that set: CONTRIBUTING.md says what such a clause needs to stay.

Sets: classes, below, known, held_out (hangsim: its classes, faults below the host, and the two
halves of its wide jobs; fr's dumps and PyTorch's), shapes, elsewhere, real. These sets have hardly
any exits, stores, stacks of threads, logs or calls that make groups: rules about such evidence
answer to the tests in tests/e2e on real processes.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import pathlib
import subprocess
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT), str(ROOT / "tools" / "hangsim")]
import score as hangsim  # noqa: E402
import switches  # noqa: E402
from tests.shapes import generate  # noqa: E402
from tests.shapes import score as shapes  # noqa: E402

RIGHT, OPEN, WRONG = "right", "open", "wrong"
Case = collections.namedtuple("Case", "set path name worth")  # worth(kind, ranks, named, links)


# ---------------------------------------------------------------- cases


def hangsim_cases(name, arguments, options, where):
    command = [hangsim.default_tool("hangsim"), "-o", str(where), *arguments]
    command += ["--count", str(options.count), "--seed", str(options.seed)]
    subprocess.run(command, check=True)
    for file in sorted(where.rglob("truth.json")):
        truth = json.loads(file.read_text())
        for form in ("fr", "torch"):
            if form in truth and (file.parent / form).is_dir():
                yield Case(name, file.parent / form, truth["name"], worth_hangsim(truth[form]))


def worth_hangsim(truth):
    def worth(kind, ranks, _named, links):
        answer = hangsim.Answer(kind, ranks, links=links)
        outcome, _ = hangsim.judge(answer, truth)
        hidden = outcome == "miss" and kind == "ok"
        return RIGHT if outcome == "exact" else WRONG if outcome == "blame" or hidden else OPEN

    return worth


def shapes_cases(count, seed, where):
    for which in ("a", "b"):
        for folder in generate.generate(which, seed, count, where / which):
            truth = json.loads((folder / "truth.json").read_text())
            yield Case("shapes", folder / "files", folder.name, worth_shapes(truth))


def worth_shapes(truth):
    def worth(kind, ranks, _named, _links):
        said = shapes.judge(truth, {"kind": kind, "ranks": ranks})
        return RIGHT if "exact" in said else WRONG if said & {"false_blame", "missed"} else OPEN

    return worth


def elsewhere_cases(where):
    for archive in sorted((ROOT / "tests" / "data" / "elsewhere").iterdir()):
        name = archive.name.removesuffix(".tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(where / name, filter="data")
        truth = json.loads((where / name / "truth.json").read_text())
        yield Case("elsewhere", where / name / "dumps", name, worth_elsewhere(truth))


def worth_elsewhere(truth):
    def worth(kind, _ranks, named, _links):
        decided = kind != "undecided" or not truth.get("undecided")
        kinds = {truth["kind"]} if "kind" in truth else {kind} if truth["guilty"] else {"ok"}
        if named == (truth["guilty"] if decided else []) and (kind in kinds or not decided):
            hidden = truth["guilty"] and kind == "ok"
            return WRONG if hidden else RIGHT
        return WRONG if set(named) - set(truth["guilty"]) else OPEN

    return worth


def real_cases():
    for folder in sorted((ROOT / "tests" / "data" / "real").iterdir()):
        truth = json.loads((folder / "truth.json").read_text())
        yield Case("real", folder, folder.name, worth_real(truth))


def worth_real(truth):
    accepted = [(kind, sorted(ranks)) for kind, ranks in truth["accept"]]
    innocent = {rank for _, ranks in accepted for rank in ranks}

    def worth(kind, ranks, _named, _links):
        if (kind, ranks) in accepted:
            return RIGHT
        return WRONG if set(ranks) - innocent or kind == "ok" else OPEN

    return worth


def cases_of(options, where):
    simulated = {
        "classes": [],
        "below": ["--below"],
        "known": ["--half", "known"],
        "held_out": ["--half", "held_out"],
    }
    makers = {
        name: functools.partial(hangsim_cases, name, arguments, options, where / name)
        for name, arguments in simulated.items()
    }
    makers |= {
        "shapes": lambda: shapes_cases(options.count, options.seed, where / "shapes"),
        "elsewhere": lambda: elsewhere_cases(where / "elsewhere"),
        "real": real_cases,
    }
    return [case for name in options.sets for case in makers[name]()]


# ---------------------------------------------------------------- answers


def run(program, cases, numbers, where):
    """Yields (switch, case, worth of the answer); switch -1: none is off."""
    listed = where / "cases.txt"
    listed.write_text("".join(f"{case.path}\n" for case in cases))
    wanted = where / "switches.txt"
    wanted.write_text("".join(f"{number}\n" for number in numbers))
    command = [program, listed, wanted, "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            number, index, kind, *lists = line.split()
            ranks, named, links = ([] if x == "-" else x.split(",") for x in lists)
            pairs = [tuple(map(int, link.split(">"))) for link in links]
            case = cases[int(index)]
            answer = (kind, sorted(map(int, ranks)), sorted(map(int, named)), pairs)
            failed = kind in ("crash", "hang", "nothing")
            yield int(number), int(index), OPEN if failed else case.worth(*answer), kind


def changes(rows, cases):
    """Per switch and set: Counter of changed, lost, blamed, gained, crash."""
    base, found, names = {}, collections.defaultdict(collections.Counter), {}
    for number, index, worth, kind in rows:
        if number < 0:
            base[index] = worth
            continue
        count, before = found[number, cases[index].set], base[index]
        count["changed"] += 1
        count["lost"] += before == RIGHT and worth != RIGHT
        count["blamed"] += before != WRONG and worth == WRONG
        count["gained"] += before != RIGHT and worth == RIGHT
        count["crash"] += kind in ("crash", "hang")
        if before == RIGHT and worth != RIGHT:
            names.setdefault(number, []).append(f"{cases[index].set}/{cases[index].name}")
    return base, found, names


def table(all_switches, cases, base, found, names):
    sets = list(dict.fromkeys(case.set for case in cases))
    right = collections.Counter(cases[i].set for i, worth in base.items() if worth == RIGHT)
    total = collections.Counter(case.set for case in cases)
    shares = ", ".join(f"{name} {right[name]} of {total[name]}" for name in sets)
    heads = (f"{name}: lost/blamed/gained" for name in sets)
    lines = [f"right with all switches on: {shares}"]
    lines.append("\t".join(["switch", "lines", *heads, "lost"]))
    for switch in all_switches:
        cells = []
        for name in sets:
            c = found.get((switch.number, name), {})
            cells.append("/".join(str(c.get(k, 0)) for k in ("lost", "blamed", "gained")))
        few = names.get(switch.number, [])
        shown = " ".join(few) if len(few) <= 4 else f"{len(few)} cases"
        lines.append("\t".join([switch.title, str(switch.lines), *cells, shown]))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="cases of each generated set")
    parser.add_argument("--seed", type=int, default=7001)
    parser.add_argument("--only", default="", help="switches whose title has this word")
    parser.add_argument("--sets", default="classes,below,known,held_out,shapes,elsewhere,real")
    parser.add_argument("--where", type=pathlib.Path, default=ROOT / "build" / "ablate")
    parser.add_argument("--out", type=pathlib.Path, help="write the table there, too")
    options = parser.parse_args()
    options.sets = options.sets.split(",")
    program, all_switches = switches.build(options.where.resolve())
    chosen = [s for s in all_switches if options.only in s.title]
    scratch = options.where.resolve() / "cases"
    scratch.mkdir(exist_ok=True)
    cases = cases_of(options, scratch)
    numbers = [s.number for s in chosen]
    text = table(chosen, cases, *changes(run(program, cases, numbers, scratch), cases))
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
