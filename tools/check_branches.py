"""Fails where a function of C++ has more than 15 branches, by lizard's cyclomatic complexity.

tools/many_branches.txt lists the functions that had more when this check began, with their count: a
function in it may lose branches, never gain any. `--write` writes the file anew, from the sources.
"""

import subprocess
import sys
from pathlib import Path

import lizard

MOST = 15
FOLDERS = ("libfr", "python/src", "tools/frtrace", "tools/hangsim")
KNOWN = Path(__file__).with_name("many_branches.txt")


def branches() -> dict[str, int]:
    """Most branches of the functions of that name, by "file name"; those over the limit."""
    found: dict[str, int] = {}
    listed = subprocess.run(
        ["git", "ls-files", *FOLDERS], capture_output=True, text=True, check=True
    ).stdout.split()
    sources = [name for name in listed if name.endswith((".cpp", ".hpp")) and Path(name).exists()]
    assert sources, "no sources: run it in the repository"
    for file in lizard.analyze_files(sources, threads=4):
        for function in file.function_list:
            if function.cyclomatic_complexity > MOST:
                key = f"{file.filename} {function.name}"
                found[key] = max(found.get(key, 0), function.cyclomatic_complexity)
    return found


def main() -> int:
    found = branches()
    if sys.argv[1:] == ["--write"]:
        KNOWN.write_text("".join(f"{key} {found[key]}\n" for key in sorted(found)))
    lines = [line.rsplit(" ", 1) for line in KNOWN.read_text().splitlines()]
    known = {key: int(count) for key, count in lines}
    worse = [
        f"{key}: {count} branches, {known.get(key, MOST)} at most"
        for key, count in sorted(found.items())
        if count > known.get(key, MOST)
    ]
    if worse:
        print("\n".join(worse))
        return 1
    better = sum(count > found.get(key, 0) for key, count in known.items())
    print(f"{len(found)} functions have over {MOST} branches, none more than is known")
    if better:
        print(f"{better} have fewer than is known: tools/check_branches.py --write")
    return 0


if __name__ == "__main__":
    sys.exit(main())
