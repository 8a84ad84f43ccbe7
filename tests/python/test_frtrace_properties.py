"""What must hold of any set: losing evidence never makes another rank guilty, order means nothing.

The sets: real dumps (tests/data/torch), made ones (tests/bench/make_torch_set.py), and simulated
ones where hangsim is built (or $FR_HANGSIM names it).
"""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys

import pytest
from test_torch_dumps import DATA, EXPECTED, frtrace_program

FRTRACE = os.environ.get("FR_FRTRACE")
ROOT = pathlib.Path(__file__).parents[2]
BUILT = sorted(ROOT.glob("build/*/tools/hangsim/hangsim"), key=lambda p: p.stat().st_mtime)
HANGSIM = os.environ.get("FR_HANGSIM") or (BUILT[-1] if BUILT else None)
SEEDS = range(int(os.environ.get("FR_PROPERTY_SEEDS", "4")))


def report(*args):
    done = subprocess.run(
        [FRTRACE or frtrace_program(), "--json", *map(str, args)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode in (0, 1, 3, 4), done.stderr
    out = json.loads(done.stdout)
    return out if done.returncode != 3 else None


def answer(out):
    return (out["verdict"]["kind"], out["verdict"]["ranks"]) if out else ("nothing", [])


def torch_set(name, where):
    """A copy of one set; its files by rank."""
    if name.startswith("made"):
        ranks = name.removeprefix("made")
        script = ROOT / "tests" / "bench" / "make_torch_set.py"
        subprocess.run(
            [sys.executable, script, where, "--ranks", ranks, "--entries", "60", "--frames", "3"],
            check=True,
        )
    else:
        where.mkdir(parents=True)
        for file in (DATA / name).glob("trace_rank_?"):
            shutil.copy2(file, where / file.name)
    return {int(f.name.rsplit("_", 1)[1]): f for f in where.iterdir()}


def cut(file, rng):
    """As a full disk or a kill leaves it: its time stays that of the dump."""
    stat = file.stat()
    os.truncate(file, rng.randrange(stat.st_size))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


NAMES = [*sorted(EXPECTED), "made8"]


@pytest.mark.parametrize("name", NAMES)
def test_order_and_threads(name, tmp_path):
    files = torch_set(name, tmp_path / "set")
    whole = answer(report(tmp_path / "set"))
    for seed in SEEDS:
        shuffled = list(files.values())
        random.Random(seed).shuffle(shuffled)
        assert answer(report("--threads", 1 + seed % 4, *shuffled)) == whole


def test_renamed(tmp_path):
    """Other names, with the same ranks in them, in another order of the alphabet."""
    files = torch_set("skip", tmp_path / "set")
    whole = answer(report(tmp_path / "set"))
    for pattern in ("rank_{}.json", "trace_r{}.pkl", "_dump_{}", "x_rank_10-0-0-5_{}", "r{}_1787"):
        for rank, file in files.items():
            file = file.rename(file.with_name(pattern.format(rank)))
            files[rank] = file
        assert answer(report(tmp_path / "set")) == whole, pattern


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", NAMES)
def test_lost_and_cut_files_make_nobody_guilty(name, seed, tmp_path):
    rng = random.Random(f"{name} {seed}")
    files = torch_set(name, tmp_path / "set")
    guilty = set(report(tmp_path / "set")["verdict"]["ranks"])
    lost = set(rng.sample(sorted(files), rng.randint(0, len(files) - 1)))
    for rank in lost:
        files[rank].unlink()
    for rank in sorted(set(files) - lost):
        if rng.random() < 0.3:
            cut(files[rank], rng)
    out = report(tmp_path / "set")
    read = {r["rank"] for r in out["ranks"]} if out else set()
    kind, ranks = answer(out)
    # The verdict may also name a rank without evidence, as the rank where all waits end.
    assert set(ranks) <= guilty | (set(files) - read), (kind, ranks, sorted(read))


@pytest.mark.parametrize("ranks", [16, 32])
def test_more_healthy_ranks_change_nothing(ranks, tmp_path):
    torch_set("made8", tmp_path / "few")
    torch_set(f"made{ranks}", tmp_path / "many")
    assert answer(report(tmp_path / "few")) == answer(report(tmp_path / "many"))


def test_a_healthy_job_beside(tmp_path):
    torch_set("skip", tmp_path / "both" / "a")
    alone = answer(report(tmp_path / "both"))
    torch_set("healthy", tmp_path / "both" / "b")
    assert answer(report(tmp_path / "both")) == alone


@pytest.mark.skipif(HANGSIM is None, reason="hangsim is not built")
@pytest.mark.parametrize("seed", range(1, 1 + 10 * len(SEEDS)))
def test_simulated(seed, tmp_path):
    subprocess.run(
        [HANGSIM, "--seed", str(seed), "--count", "1", "--format", "both", "-o", tmp_path / "sim"],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    rng = random.Random(seed)
    for form in ("fr", "torch"):
        for where in (tmp_path / "sim").rglob(form):
            guilty = set(report(where)["verdict"]["ranks"])
            files = sorted(f for f in where.iterdir() if f.is_file())
            for file in files:
                if rng.random() < 0.15:
                    file.unlink()
                elif rng.random() < 0.15:
                    cut(file, rng)
            out = report(where)
            read = {r["rank"] for r in out["ranks"]} if out else set()
            kind, ranks = answer(out)
            assert not (set(ranks) & read) - guilty, (form, kind, ranks, sorted(guilty))
