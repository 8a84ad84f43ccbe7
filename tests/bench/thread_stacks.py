"""Time from a trigger to the stacks of all threads: python tests/bench/thread_stacks.py [n...]

As the watchdog itself measured it; frtrace reads it from the dumps.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROUNDS = 7


def measure(threads: int) -> None:
    os.environ["FR_DUMP_DIR"] = where = tempfile.mkdtemp()
    os.environ["FR_KEEP_DUMPS"] = str(ROUNDS + 2)
    import fr
    from fr import _fr

    _fr.start()
    for _ in range(threads - 1):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    frtrace = Path(sys.executable).parent / "frtrace"
    rows = []
    for _ in range(ROUNDS):
        path = fr.dump("bench")
        got = subprocess.run(
            [frtrace, "--json", "--stacks", path], capture_output=True, text=True, check=False
        )
        facts = json.loads(got.stdout)["stacks"]["looks"][0]
        keys = ("took_ms", "asking_ms", "median_us", "slowest_us", "answered")
        rows.append([facts[key] for key in keys])
    took, asking, median, slowest, answered = sorted(rows)[ROUNDS // 2]
    print(
        f"{threads} threads: all {took:.1f} ms, asking {asking:.2f} ms, "
        f"answers: median {median} us, slowest {slowest} us, {answered} of {threads}"
    )
    subprocess.run(["rm", "-r", where], check=True)
    os._exit(0)


if __name__ == "__main__":
    counts = [int(a) for a in sys.argv[1:]] or [1, 20, 200]
    if len(counts) == 1:
        measure(counts[0])
    for count in counts:
        subprocess.run([sys.executable, __file__, str(count)], check=True)
