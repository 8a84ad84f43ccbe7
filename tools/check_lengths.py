"""Fails where a function of frtrace has over 80 lines or a file over 600: what nobody reads in one
go. Tables are no functions.

Sources are formatted, so that a function starts and ends in the first column.
"""

import subprocess
import sys
from pathlib import Path

FUNCTION_LINES = 80
FILE_LINES = 600
FOLDER = "tools/frtrace"
NO_FUNCTION = ("namespace", "struct", "class", "enum", "#", "//", "}")


def too_long(path: Path):
    lines = path.read_text().splitlines()
    if len(lines) > FILE_LINES:
        yield f"{path}: {len(lines)} lines, {FILE_LINES} at most"
    start = None  # of what is at the first column
    for n, line in enumerate(lines, 1):
        if line.startswith("}"):
            if start is not None and n - start + 1 > FUNCTION_LINES:
                name = lines[start - 1]
                yield f"{path}:{start}: {n - start + 1} lines, {FUNCTION_LINES} at most: {name}"
            start = None
        elif line and not line.startswith(" "):
            is_head = not line.startswith(NO_FUNCTION) and not line.endswith((";", "= {"))
            start = n if is_head else None


def main():
    listed = subprocess.run(
        ["git", "ls-files", FOLDER], capture_output=True, text=True, check=True
    ).stdout.split()
    sources = [Path(name) for name in listed if name.endswith((".cpp", ".hpp"))]
    assert sources, "no sources: run it in the repository"
    found = [line for path in sources if path.exists() for line in too_long(path)]
    print("\n".join(found) if found else f"{len(sources)} files, none too long")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
