"""`frtrace reduce`: a verdict on summaries is the verdict on all files, however they were made.

Cases of hangsim are cut at random into nodes, each node is reduced, and the summaries are merged
by a random tree. `python tests/e2e/test_reduce.py --seeds 1 400 [--half all] [--below]` tries many
cases and counts by class what differs.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "hangsim"))
import score  # noqa: E402

HANGSIM = os.environ.get("FR_HANGSIM") or score.default_tool("hangsim")
FRTRACE = os.environ.get("FR_FRTRACE") or score.default_tool("frtrace")
REAL = ROOT / "tests" / "data" / "real"

pytestmark = pytest.mark.skipif(not pathlib.Path(HANGSIM).is_file(), reason="hangsim is not built")


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode >= 0, done.stderr
    return done


def reduce(out, paths):
    done = run(FRTRACE, "reduce", "-o", out, *paths)
    assert done.returncode == 0, done.stderr
    return out


def nodes_of(files, rng):
    """The files in random parts, as nodes would have them."""
    files = list(files)
    rng.shuffle(files)
    n = rng.randint(1, max(1, min(6, len(files))))
    parts = [files[i::n] for i in range(n)]
    return [part for part in parts if part]


def merged(summaries, rng, folder):
    """One file, by a tree of any shape; or several that were not merged."""
    n = 0
    while len(summaries) > 1:
        rng.shuffle(summaries)
        k = rng.randint(2, len(summaries))
        n += 1
        summaries = [reduce(folder / f"m{n}.frsum", summaries[:k]), *summaries[k:]]
    return summaries[0]


def answer(*paths):
    """What a verdict says, without the evidence behind it."""
    report = json.loads(run(FRTRACE, "--json", *paths).stdout)
    verdict = report["verdict"]
    blamed = [
        [b["rank"], b.get("why"), b.get("op"), b.get("seq"), b.get("site")]
        for b in verdict.get("blamed", [])
    ]
    links = [(link["from"], link["to"]) for link in report.get("links", ())]
    return {
        "kind": verdict["kind"],
        "ranks": sorted(verdict["ranks"]),
        "confidence": verdict.get("confidence"),
        "blamed": sorted(blamed, key=str),
        "links": sorted(links),
    }


def differences(case, files, seed, folder):
    """(what all files say, what their summaries say), where these differ."""
    rng = random.Random(f"{case}{seed}")
    summaries = [folder / f"n{i}-1.frsum" for i in range(6)]
    for path, part in zip(summaries, nodes_of(files, rng), strict=False):
        run(FRTRACE, "reduce", "-o", path, *part)
    summaries = [path for path in summaries if path.exists()]  # of a node, all may be unreadable
    whole, apart = answer(*files), answer(*summaries)
    one = merged(list(summaries), rng, folder)
    other = (
        merged(list(summaries), rng, folder / "other") if (folder / "other").mkdir() is None else 0
    )
    assert one.read_bytes() == other.read_bytes(), f"{case}, seed {seed}: order of merging"
    together = answer(one)
    assert apart == together, f"{case}, seed {seed}: merged summaries say other than apart"
    return None if whole == together else (whole, together)


def is_weaker(whole, reduced):
    """Less is named, and nobody else."""
    return reduced["kind"] in ("undecided", "ok", whole["kind"]) and (
        set(reduced["ranks"]) <= set(whole["ranks"])
    )


def hangsim_cases(folder, *options):
    run(HANGSIM, "-o", folder, *options)
    return sorted(p for p in folder.iterdir() if p.is_dir())


def check(directory, seed, folder):
    """Per format: None, or what differs."""
    for form in ("fr", "torch"):
        files = sorted((directory / form).glob("*")) if (directory / form).is_dir() else []
        if files:
            work = folder / f"{directory.name}-{form}-{seed}"
            work.mkdir()
            yield form, differences(f"{directory.name}/{form}", files, seed, work)


@pytest.mark.parametrize("case", sorted(p.name for p in REAL.iterdir()))
def test_real_dumps(case, tmp_path):
    assert differences(case, sorted((REAL / case).glob("trace_rank_*")), 1, tmp_path) is None


@pytest.mark.parametrize(
    ("options", "seeds"),
    [((), range(1, 7)), (("--half", "all"), range(7, 13)), (("--below",), range(13, 17))],
)
def test_simulated_jobs(options, seeds, tmp_path):
    for seed in seeds:
        (directory,) = hangsim_cases(tmp_path / str(seed), "--seed", seed, *options)
        for form, found in check(directory, seed, tmp_path):
            assert found is None, f"{directory.name}/{form}, seed {seed}: {found}"


@pytest.fixture
def skipped(tmp_path):
    (directory,) = hangsim_cases(tmp_path / "cases", "--class", "skip", "--job", "3d", "--seed", 7)
    return sorted((directory / "fr").glob("*.fr"))


def report_on(*paths):
    return json.loads(run(FRTRACE, "--json", *paths).stdout)


def test_whole_dumps_replace_summaries(skipped, tmp_path):
    summary = reduce(tmp_path / "n-1.frsum", skipped)
    size = summary.stat().st_size
    assert size < 16_000, size
    report = report_on(summary)
    question = report["input"]["in_question"]
    assert report["input"]["reduced"] == len(skipped) == report["input"]["read"]
    assert question[: len(report["verdict"]["ranks"])] == report["verdict"]["ranks"]
    assert len(question) <= 64
    named = [f for f in skipped if any(f".r{rank}." in f.name for rank in question)]
    again = report_on(summary, *named)
    assert again["input"]["read"] == len(skipped)
    assert again["input"]["reduced"] == len(skipped) - len(named)
    assert again["verdict"]["ranks"] == report["verdict"]["ranks"]
    assert again["input"]["in_question"] == []


def test_what_is_left_out_is_said(skipped, tmp_path):
    texts = [f["text"] for f in report_on(reduce(tmp_path / "x.frsum", skipped))["findings"]]
    assert any("read from summaries" in text for text in texts)
    assert not any("summaries" in f["text"] for f in report_on(*skipped)["findings"])


def test_a_directory_gets_a_file_named_after_the_node(skipped, tmp_path):
    done = run(FRTRACE, "reduce", "-o", tmp_path, *skipped)
    assert done.returncode == 0
    path = pathlib.Path(done.stdout.strip())
    assert path.is_file() and path.parent == tmp_path
    assert path.name.startswith(os.uname().nodename + "-") and path.name.endswith(".frsum")
    assert run(FRTRACE, "reduce", "-o", tmp_path / "no" / "x", *skipped).returncode == 2
    assert run(FRTRACE, "reduce", "-o", tmp_path / "x", tmp_path / "no").returncode == 3
    assert run(FRTRACE, "reduce", "-o", tmp_path / "x", "--job", "no", *skipped).returncode == 3


def test_a_damaged_summary_is_named_and_left_out(skipped, tmp_path):
    half = reduce(tmp_path / "a.frsum", skipped[: len(skipped) // 2])
    rest = reduce(tmp_path / "b.frsum", skipped[len(skipped) // 2 :])
    rest.write_bytes(rest.read_bytes()[:-100])
    report = report_on(half, rest)
    assert [u["file"] for u in report["input"]["unreadable"]] == [str(rest)]
    assert report["input"]["read"] == len(skipped) // 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs=2, default=(1, 50))
    parser.add_argument("--half")
    parser.add_argument("--below", action="store_true")
    parser.add_argument("--class", dest="cls")
    parser.add_argument("-v", action="store_true")
    a = parser.parse_args()
    options = ["--half", a.half] if a.half else ["--below"] if a.below else []
    options += ["--class", a.cls] if a.cls else []
    done, differ, wrong = collections.Counter(), collections.Counter(), []
    for seed in range(*a.seeds):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (directory,) = hangsim_cases(folder / "cases", "--seed", seed, *options)
            cls = json.loads((directory / "truth.json").read_text()).get("class", directory.name)
            for form, found in check(directory, seed, folder):
                done[cls, form] += 1
                if found is not None:
                    weaker = is_weaker(*found)
                    differ[cls, form, "weaker" if weaker else "OTHER"] += 1
                    if a.v or not weaker:
                        wrong.append((directory.name, form, seed, *found))
    for entry in wrong:
        print(*entry, sep="\n   ")
    print("cases:", sum(done.values()), "differ:", dict(differ))
    return 1 if any(key[2] == "OTHER" for key in differ) else 0


if __name__ == "__main__":
    sys.exit(main())
