"""Pastes the output of commands into documents, so that documents show only real output.

    tools/docs.py [--check] [--only WORD] [FILE...]     (`make docs`)

A document asks for it with a pair of markers; everything between them is replaced:

    <!-- run: frtrace --options -->     the command's output in a code block
    <!-- run table: ... -->             the output as it is: the command prints Markdown
    <!-- end -->

A code block is folded at 100 columns, as a terminal of that width shows it. A command of which a
run depends on machine or day (all that are not in STABLE) is followed by a line with date, machine
and command. Scores take long and are left out unless --scores is given. --check changes nothing and
fails where a stable block differs; tests/python/test_docs.py calls the same functions.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 100
BLOCK = re.compile(r"^<!-- run( table)?: (.+?) -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)
# The output of these is a property of the source: the same on every machine.
STABLE = ("frtrace --options", "frtrace --help", "make help")


def documents() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [ROOT / name for name in listed.stdout.split() if (ROOT / name).exists()]


def is_stable(command: str) -> bool:
    return command.startswith(STABLE)


def output_of(command: str) -> str:
    path = os.pathsep.join(
        map(str, (ROOT / ".venv/bin", Path(sys.executable).parent, os.environ["PATH"]))
    )
    env = os.environ | {"PATH": path, "COLUMNS": str(COLUMNS)}
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):  # they make make print directories
        env.pop(name, None)
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=env, capture_output=True, text=True
    )
    if done.returncode > 1 or not done.stdout.strip():  # 1: a verdict with a fault
        raise SystemExit(f"docs: {command!r} failed ({done.returncode}): {done.stderr}")
    return "".join(line.rstrip() + "\n" for line in done.stdout.splitlines())


def folded(line: str) -> str:
    """One line on a terminal of COLUMNS columns, further lines indented."""
    if len(line) <= COLUMNS:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.fill(
        line, COLUMNS, subsequent_indent=indent, drop_whitespace=False, break_on_hyphens=False
    )


def machine() -> str:
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    cores = len(os.sched_getaffinity(0))
    return f"{cores} core{'s' if cores != 1 else ''} of {model}"


def rendered(command: str, table: bool) -> str:
    text = output_of(command)
    if not table:
        text = "".join(folded(line) + "\n" for line in text.splitlines())
        text = "```\n" + re.sub(r" +\n", "\n", text) + "```\n"
    if is_stable(command):
        return text
    today = datetime.date.today().isoformat()
    return f"{text}\n{today}, {machine()}:\n`{command}`\n"


def pasted(document: str, wanted=lambda command: True) -> str:
    """The document with its wanted blocks made anew."""

    def block(found: re.Match) -> str:
        table, command, old = found.groups()
        new = rendered(command, bool(table)) if wanted(command) else old
        return f"<!-- run{table or ''}: {command} -->\n{new}<!-- end -->"

    return BLOCK.sub(block, document)


def main() -> int:
    parser = argparse.ArgumentParser(description="Paste output of runs into the documents.")
    parser.add_argument("--check", action="store_true", help="fail where a stable block differs")
    parser.add_argument("--only", default="", help="only commands that contain this word")
    parser.add_argument("--scores", action="store_true", help="run scores, too: many minutes")
    parser.add_argument("files", nargs="*", type=Path)
    args = parser.parse_args()
    differ = 0
    for path in args.files or documents():
        old = path.read_text()
        new = pasted(
            old,
            lambda c: (
                args.only in c
                and (is_stable(c) or not args.check)
                and (args.scores or "score.py" not in c)
            ),
        )
        if new != old:
            differ += 1
            name = path.resolve().relative_to(ROOT)
            print(f"docs: {name}: " + ("differs" if args.check else "new"))
            if not args.check:
                path.write_text(new)
    return 1 if args.check and differ else 0


if __name__ == "__main__":
    sys.exit(main())
