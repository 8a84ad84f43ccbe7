"""frtrace on real dumps of PyTorch's own recorder (tests/data/make_torch_dumps.py made them)."""

import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys

import pytest

DATA = pathlib.Path(__file__).parents[1] / "data" / "torch"

EXPECTED = {
    "healthy": ("ok", []),
    "skip": ("missing", [2]),
    "tp_skip": ("missing", [0]),
    "mismatch": ("mismatch", [1]),
    "wrong_op": ("mismatch", [3]),
    "crash": ("exited", [1]),  # it left nothing, all others stopped with it in mid-iteration
}


def frtrace_program():
    beside = pathlib.Path(sys.executable).parent / "frtrace"
    found = str(beside) if beside.exists() else shutil.which("frtrace")
    if found is None:
        pytest.skip("frtrace is not installed")
    return found


def frtrace(*args):
    return subprocess.run(
        [frtrace_program(), "--json", *map(str, args)], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("case", sorted(EXPECTED))
def test_verdict(case):
    kind, ranks = EXPECTED[case]
    files = sorted(p for p in (DATA / case).iterdir() if p.suffix != ".json")
    done = frtrace(*files)
    verdict = json.loads(done.stdout)["verdict"]
    assert (verdict["kind"], verdict["ranks"]) == (kind, ranks), verdict
    assert done.returncode == {"ok": 0, "undecided": 4}.get(kind, 1)


@pytest.mark.parametrize(
    ("case", "age_s", "kind", "ranks"),
    [
        ("hook_gloo_skip", 600, "missing", [2]),
        ("hook_fake_skip", 600, "missing", [2]),
        ("hook_fake_healthy", 600, "undecided", []),  # all rest: in the last operation, or after
        ("hook_fake_healthy", 0.2, "ok", []),
        ("hook_fake_skip", 0.2, "ok", []),  # the rank is on its way
    ],
)
def test_hook_recorder(case, age_s, kind, ranks, tmp_path):
    """PyTorch 2.14's hook recorder, which marks each operation as retired when it is issued."""
    for file in sorted((DATA / case).iterdir()):
        copy = tmp_path / file.name
        shutil.copy(file, copy)
        newest_ns = max(e["time_created_ns"] for e in pickle.loads(file.read_bytes())["entries"])
        os.utime(copy, ns=(newest_ns + int(age_s * 1e9),) * 2)
    done = frtrace(tmp_path)
    verdict = json.loads(done.stdout)["verdict"]
    assert (verdict["kind"], verdict["ranks"]) == (kind, ranks), verdict
    assert verdict["confidence"] != "certain" or "gloo" in case, verdict
    assert done.returncode == {"ok": 0, "undecided": 4}.get(kind, 1)


def test_json_among_pickles():
    files = [
        DATA / "healthy" / name
        for name in ("trace_rank_0.json", "trace_rank_1", "trace_rank_2", "trace_rank_3")
    ]
    report = json.loads(frtrace(*files).stdout)
    assert report["verdict"]["kind"] == "ok"
    assert report["input"]["read"] == 4


@pytest.mark.parametrize("case", ["skip", "tp_skip", "wrong_op"])
def test_names_do_not_matter(case, tmp_path):
    """The files of two directories, named as NVRx and as a wrapper with hosts name them."""
    kind, ranks = EXPECTED[case]
    for pattern in ("_dump_{}", "nccl_trace_rank_node-a{}_{}", "rank{}.pkl"):
        out = tmp_path / pattern.replace("{}", "N")
        out.mkdir()
        for rank in range(4):
            name = pattern.format(*([rank // 2, rank] if pattern.count("{}") == 2 else [rank]))
            shutil.copy2(DATA / case / f"trace_rank_{rank}", out / name)
        verdict = json.loads(frtrace(out).stdout)["verdict"]
        assert (verdict["kind"], verdict["ranks"]) == (kind, ranks), pattern


def test_site_is_named():
    report = json.loads(frtrace(DATA / "skip").stdout)
    waiting = report["verdict"]["waiting"][0]
    assert waiting["ranks"] == [0, 1, 3]
    assert waiting["site"]["function"] == "train_step"


@pytest.mark.parametrize("case", ["skip", "wrong_op"])
def test_to_torch(case, tmp_path):
    """What --to-torch writes says the same, to frtrace and to PyTorch's own analyzer."""
    kind, ranks = EXPECTED[case]
    assert frtrace("--to-torch", tmp_path / "out", DATA / case).returncode == 1
    verdict = json.loads(frtrace(tmp_path / "out").stdout)["verdict"]
    assert (verdict["kind"], verdict["ranks"]) == (kind, ranks)
    pytest.importorskip("torch.distributed.flight_recorder.fr_trace")
    pytest.importorskip("tabulate")
    module = "torch.distributed.flight_recorder.fr_trace"
    done = subprocess.run(
        [sys.executable, "-m", module, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "all_reduce" in done.stdout + done.stderr
