"""Jobs of tests/real on NCCL, with faults by chance: what frtrace says of their dumps.

    python tests/gpu/drawn.py --wheel fr-*.whl OUT [--workers 3] [--for-s 300] [--first-seed 0] ...

Needs what run.py needs. All ranks share one device. OUT/sites/*.json, made by make_real_dumps.py on
gloo, save a run of each job. Prints the score of fr's dumps and of PyTorch's.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from run import HERE, own_environment, unpacked

REAL = HERE.parent / "real"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--wheel", required=True)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--workers", type=int, default=3)
    arguments.add_argument("--first-seed", type=int, default=0)
    arguments.add_argument("--for-s", type=float, default=300)
    arguments.add_argument("--faults")
    arguments.add_argument("--jobs")
    options = arguments.parse_args()
    env = own_environment()
    frtrace = unpacked(options.wheel, env)
    workers = []
    options.out.mkdir(parents=True, exist_ok=True)
    for n in range(options.workers):
        made = [sys.executable, REAL / "make_real_dumps.py", options.out, "--shuffled"]
        made += ["--seeds", str(options.first_seed + n), "--for-s", str(options.for_s)]
        for name in ("faults", "jobs"):
            if getattr(options, name):
                made += [f"--{name}", getattr(options, name)]
        if not options.jobs:
            made += ["--per-fault", "2"]
        log = (options.out / f"log.{n}").open("w")
        workers.append(subprocess.Popen(made, env=env | {"REAL_DEVICE": "cuda"}, stdout=log,
                                        stderr=log))  # fmt: skip
    for worker in workers:
        worker.wait()
    for n in range(options.workers):
        print((options.out / f"log.{n}").read_text(), end="")
    score = [sys.executable, REAL / "score_real.py", options.out, "--frtrace", frtrace]
    return subprocess.run([*score, "--failing"]).returncode


if __name__ == "__main__":
    sys.exit(main())
