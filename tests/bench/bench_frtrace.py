#!/usr/bin/env python3
"""Times frtrace on large sets, and torchfrtrace on the same PyTorch dumps; prints Markdown.

    bench_frtrace.py --frtrace PATH --hangsim PATH [--torch-python PYTHON] [--most RANKS]

Sets are made in a temporary directory and removed. The better of two runs counts;
torchfrtrace runs once.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
TORCH_LIMIT_S = 300
LIMIT_S = 180


def timed(command, runs=2, limit_s=LIMIT_S):
    """(seconds, peak MiB, output, CPU seconds) of the fastest run; None when it takes too long."""
    best = None
    for _ in range(runs):
        with tempfile.TemporaryFile() as out:
            begin = time.monotonic()
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
            # wait4 gives this child's own peak; a timer ends what takes too long.
            timer = subprocess.Popen(["sleep", str(limit_s)])
            pid = 0
            while pid != process.pid:
                pid, status, usage = os.wait4(-1, 0)
                if pid == timer.pid:
                    process.kill()
                    process.wait()
                    return None
            timer.kill()
            timer.wait()
            process.returncode = os.waitstatus_to_exitcode(status)
            seconds = time.monotonic() - begin
            out.seek(0)
            if best is None or seconds < best[0]:
                cpu = usage.ru_utime + usage.ru_stime
                best = (seconds, usage.ru_maxrss / 1024, out.read().decode(errors="replace"), cpu)
    return best


def size_mb(where):
    return sum(f.stat().st_size for f in where.iterdir()) / 1e6


def row(*cells):
    print("| " + " | ".join(str(c) for c in cells) + " |", flush=True)


def verdict(output):
    """The answer all these sets have."""
    return "ok" if re.search(r"^MISSING +rank 5 never", output, re.M) else "WRONG ANSWER"


def torch_sets(args, work):
    print("PyTorch pickles, 2,000 entries with 12 frames per rank:\n")
    row(
        "ranks",
        "MB",
        "frtrace s",
        "frtrace MiB",
        "torchfrtrace s",
        "torchfrtrace MiB",
        "ratio",
        "answer",
    )
    row(*["---"] * 8)
    for ranks in (64, 256, 1024):
        if ranks > args.most:
            break
        where = work / "torch"
        subprocess.run(
            [sys.executable, HERE / "make_torch_set.py", where, "--ranks", str(ranks)], check=True
        )
        mine = timed([args.frtrace, where])
        theirs = None
        if args.torch_python:
            theirs = timed(
                [args.torch_python, "-m", "torch.distributed.flight_recorder.fr_trace", where,
                 "-p", "nccl_trace_rank_"], 1, TORCH_LIMIT_S,
            )  # fmt: skip
        row(
            f"{ranks:,}",
            f"{size_mb(where):.0f}",
            f"{mine[0]:.2f}",
            f"{mine[1]:.0f}",
            f"{theirs[0]:.1f}" if theirs else "-",
            f"{theirs[1]:.0f}" if theirs else "-",
            f"{theirs[0] / mine[0]:.0f}x" if theirs else "-",
            verdict(mine[2]),
        )
        if ranks == min(256, args.most):
            # Nothing but the reading: no such job, no diagnosis.
            alone = timed([args.frtrace, "--threads", "1", "--job", "none", where], 3)
            speed = f"{size_mb(where) / alone[3]:.0f} MB/s per core (256 ranks, CPU time)"
        shutil.rmtree(where)
    print(f"\nReading pickles: {speed}\n")


def fr_sets(args, work):
    print("fr dumps:\n")
    row("ranks", "records each", "MB", "reading s", "all s", "MiB", "KiB per rank", "answer")
    row(*["---"] * 8)
    for ranks, records in ((1024, 2000), (4096, 2000), (16384, 2000), (100_000, 500)):
        if ranks > args.most:
            break
        where = work / "sim"
        subprocess.run(
            [args.hangsim, "--world", str(ranks), "--records", str(records), "--format", "fr",
             "-o", where], check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        dumps = where / "fr"
        got = timed([args.frtrace, "-v", dumps], 2 if ranks <= 16384 else 1, LIMIT_S)
        # Where the diagnosis takes too long, only the reading is measured.
        shown = got or timed([args.frtrace, "--job", "none", dumps], 1)
        reading = re.search(r"time: reading ([\d.]+) s", shown[2])
        row(
            f"{ranks:,}",
            f"{records:,}",
            f"{size_mb(dumps):.0f}",
            f"{float(reading[1]):.2f}" if reading else f"{shown[0]:.2f}",
            f"{got[0]:.2f}" if got else f"over {LIMIT_S}",
            f"{shown[1]:.0f}",
            f"{shown[1] * 1024 / ranks:.0f}",
            verdict(got[2]) if got else "-",
        )
        shutil.rmtree(where)
    print()


def kinds_sets(args, work):
    """Many ranks wait in many groups: comparing takes longer than reading."""
    print("Hangs of a job of 1,024 ranks with tensor and pipeline groups:\n")
    row("fault", "format", "reading s", "diagnosis s", "MiB", "answer")
    row(*["---"] * 6)
    faults = ("missing", "lone_send", "inversion", "circle", "killed", "device", "two_faults")
    for fault in faults if args.most >= 1024 else ():
        where = work / "3d"
        subprocess.run(
            [args.hangsim, "--job", "3d", "--world", "1024", "--seed", "7", "--count", "1",
             "--class", fault, "--format", "both", "-o", where],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        (case,) = where.iterdir()
        for kind in ("fr", "torch"):
            got = timed([args.frtrace, "-v", case / kind])
            spent = re.search(r"time: reading ([\d.]+) s, diagnosis ([\d.]+) s", got[2])
            said = re.search(r"^[A-Z]+ ", got[2], re.M)
            row(fault, kind, *spent.groups(), f"{got[1]:.0f}", said[0].strip().lower())
        shutil.rmtree(where)
    print()


def summary_sets(args, work):
    print("Summaries of nodes of 8 ranks, 500 records each before they were reduced:\n")
    row("ranks", "nodes", "MB", "reading s", "all s", "CPU s", "MiB", "answer")
    row(*["---"] * 8)
    pattern = work / "pattern"
    subprocess.run(
        [args.hangsim, "--world", "16", "--records", "500", "--format", "fr", "-o", pattern],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    for ranks in (1000, 10_000, 100_000):
        if ranks > args.most:
            break
        where = work / "nodes"
        where.mkdir()
        subprocess.run([args.node_summaries, pattern / "fr", str(ranks), where], check=True)
        got = timed([args.frtrace, "-v", where])
        row(
            f"{ranks:,}",
            f"{ranks // 8:,}",
            f"{size_mb(where):.1f}",
            re.search(r"time: reading ([\d.]+) s", got[2])[1],
            f"{got[0]:.2f}",
            f"{got[3]:.2f}",
            f"{got[1]:.0f}",
            verdict(got[2]),
        )
        shutil.rmtree(where)
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frtrace", type=pathlib.Path, required=True)
    parser.add_argument("--hangsim", type=pathlib.Path, required=True)
    parser.add_argument("--node-summaries", type=pathlib.Path, help="program; none: not measured")
    parser.add_argument("--torch-python", help="interpreter with torch, for torchfrtrace")
    parser.add_argument("--most", type=int, default=100_000, help="no larger sets")
    parser.add_argument(
        "--only", choices=("torch", "fr", "kinds", "summaries"), help="of the tables"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="frtrace-bench-") as work:
        if args.only in (None, "torch"):
            torch_sets(args, pathlib.Path(work))
        if args.only in (None, "fr"):
            fr_sets(args, pathlib.Path(work))
        if args.only in (None, "kinds"):
            kinds_sets(args, pathlib.Path(work))
        if args.only in (None, "summaries") and args.node_summaries:
            summary_sets(args, pathlib.Path(work))


if __name__ == "__main__":
    main()
