"""Damages directories of evidence and runs frtrace on them, a process per run.

    cli.py --frtrace build/asan/tools/frtrace/frtrace --seconds 60 [--seed N]

Content: elements of the msgpack of dumps dropped, doubled, exchanged, retyped, compressed again;
bytes of the other formats. Files: cut, bits flipped, pages zeroed, doubled, put together, missing.
Counted: crashes (sanitizers' too), over 10 s, over 2 GB, and where only files were damaged,
`certain` blame of a rank that the sound set does not blame. test_cli.py shows each counter count.
Run n of seed s is Random(f"{s}.{n}"): --first n --runs 1 repeats it. Exit status 1 if anything was
counted.
"""

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgpack
import zstandard

DATA = Path(__file__).resolve().parents[1] / "data"
PAGE = 4096
HTML = "HTML"  # a file beside the directory
MODES = (["--json"], [], ["-j"], ["--stacks"], ["-o", HTML])


def seeds():
    found = []
    for top in ("torch", "real", "golden/v1"):
        found += [d for d in sorted((DATA / top).iterdir()) if d.is_dir()]
    return found


def content(d, rnd):
    """The data with one thing in it that says something else."""
    raw = d
    if d[:4] == b"\x28\xb5\x2f\xfd":
        try:
            raw = zstandard.ZstdDecompressor().decompress(d, max_output_size=1 << 28)
            tree = msgpack.unpackb(raw, strict_map_key=False)
            at = tree
            while isinstance(at, dict | list) and at:
                key = rnd.choice(list(at) if isinstance(at, dict) else range(len(at)))
                if not isinstance(at[key], dict | list) or not at[key] or rnd.random() < 0.3:
                    break
                at = at[key]
            change(at, key, rnd)
            return zstandard.ZstdCompressor().compress(msgpack.packb(tree))
        except (ValueError, msgpack.UnpackException, zstandard.ZstdError, OverflowError):
            return zstandard.ZstdCompressor().compress(flip(raw, rnd))
    return flip(raw, rnd)


def change(at, key, rnd):
    other = rnd.choice(list(at) if isinstance(at, dict) else range(len(at)))
    how = rnd.randrange(4)
    if how == 0:
        del at[key]
    elif how == 1 and isinstance(at, list):
        at.insert(key, at[key])
    elif how == 2:
        at[key], at[other] = at[other], at[key]
    else:
        at[key] = rnd.choice([None, -1, 2**63, "", "x" * 5000, [], {}, [[]], 1.5, True])


def flip(d, rnd):
    d = bytearray(d)
    for _ in range(rnd.choice([1, 1, 8, 64])):
        if d:
            d[rnd.randrange(len(d))] ^= 1 << rnd.randrange(8)
    return bytes(d)


def damage_file(path, rnd, strangers):
    how = rnd.randrange(7)
    d = path.read_bytes()
    if how == 0:
        d = d[: rnd.randrange(len(d) + 1)]
    elif how == 1:
        d = flip(d, rnd)
    elif how == 2:
        first = rnd.randrange(len(d) // PAGE + 1) * PAGE
        d = d[:first] + bytes(len(d[first : first + PAGE])) + d[first + PAGE :]
    elif how == 3:
        d += d
    elif how == 4:
        d += rnd.choice(strangers).read_bytes()
    elif how == 5:
        d = rnd.choice([b"\n", b"\0" * 8, b"\x80"]) + d
    else:
        path.unlink()
        return
    path.write_bytes(d)


def limit():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def look(options, mode, directory):
    """(what was wrong or "", report)"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    try:
        got = subprocess.run(
            [options.frtrace, *(f"{directory}.html" if m == HTML else m for m in mode), directory],
            capture_output=True,
            timeout=options.longest,
            preexec_fn=limit,
        )
    except subprocess.TimeoutExpired:
        return "hangs", {}
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    # a sanitizer's status is 1, like that of a fault found
    reported = b"runtime error:" in got.stderr or b"Sanitizer" in got.stderr
    if got.returncode not in (0, 1, 3, 4) or reported:
        return "crashes", {"stderr": got.stderr[-2000:].decode(errors="replace")}
    if most > options.most_mib << 10 and most > before:
        return "memory", {}
    try:
        report = json.loads(got.stdout) if mode == ["--json"] and got.stdout else {}
    except ValueError:
        return "no JSON", {}
    return "", report


def blames(report):
    """Ranks by whether they are blamed for certain, of all jobs in it."""
    all_of = report if isinstance(report, list) else report.get("jobs") or [report]
    said = [r.get("verdict", {}) for r in all_of]
    return [(v.get("confidence"), set(v.get("ranks", []))) for v in said]


def one_run(rnd, directories, options, scratch):
    seed = rnd.choice(directories)
    target = scratch / "set"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(seed, target)
    paths = [p for p in sorted(target.iterdir()) if p.is_file()]
    strangers = [p for p in sorted(rnd.choice(directories).iterdir()) if p.is_file()]
    files_only = rnd.random() < 0.5
    for path in rnd.sample(paths, rnd.randint(1, min(3, len(paths)))):
        if files_only:
            damage_file(path, rnd, [seed / p.name for p in paths])
        else:
            path.write_bytes(content(path.read_bytes(), rnd))
    if not files_only and rnd.random() < 0.2:
        shutil.copy(rnd.choice(strangers), target / "stranger")
    mode = MODES[0] if files_only else rnd.choice(MODES)
    wrong, report = look(options, mode, target)
    if not wrong and files_only and report:
        sound = {r for _, ranks in blames(look(options, MODES[0], seed)[1]) for r in ranks}
        if any(how == "certain" and ranks - sound for how, ranks in blames(report)):
            wrong = "wrong certain"
    return files_only, wrong, f"{seed.relative_to(DATA)} {' '.join(mode)}", report


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frtrace", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--runs", type=int, default=1 << 62)
    parser.add_argument("--longest", type=float, default=10, help="seconds of one run")
    parser.add_argument("--most-mib", type=int, default=2048)
    parser.add_argument("--keep", type=Path, help="copy of each set that was counted")
    options = parser.parse_args()
    directories, counts, end = seeds(), Counter(), time.monotonic() + options.seconds
    n = options.first
    with tempfile.TemporaryDirectory(prefix="fr-fuzz-") as scratch:
        while time.monotonic() < end and n < options.first + options.runs:
            rnd = random.Random(f"{options.seed}.{n}")
            files_only, wrong, what, report = one_run(rnd, directories, options, Path(scratch))
            counts["files" if files_only else "content"] += 1
            if wrong:
                counts[wrong] += 1
                said = report.get("stderr") or report.get("verdict", {}).get("summary", "")
                print(f"{wrong}: --seed {options.seed} --first {n} --runs 1: {what}\n    {said}")
                if options.keep:
                    shutil.copytree(Path(scratch) / "set", options.keep / str(n))
            n += 1
    kinds = ("crashes", "hangs", "memory", "no JSON", "wrong certain")
    print(
        f"seed {options.seed}: {counts['content']} runs with damaged content, {counts['files']} "
        f"with damaged files; " + ", ".join(f"{k} {counts[k]}" for k in kinds)
    )
    return 1 if any(counts[k] for k in kinds) else 0


if __name__ == "__main__":
    sys.exit(main())
