"""Fails where a comment or a document uses a pattern that a newcomer stumbles over.

Patterns: a sentence that begins with "Of", "What", "Who", "Whose", "Whom", "Likewise", "Where one"
or "One that"; a rank, file or operation that is called "who", "whom" or "whose". It reads comments
of C++, Python and CMake, and documents outside of pasted output.

    check_prose.py [PATH...]    list them, below these paths or in the whole tree
"""

import re
import subprocess
import sys
from pathlib import Path

START = r"(?:^|[.;:!?)] +)"
PATTERNS = (
    re.compile(START + r"(?:Of|What|Who|Whose|Whom|Likewise|Those who|Where one)\b"),
    re.compile(START + r"One (?:that|of|which)\b"),
    re.compile(r"\b(?:who|whom|whose)\b"),
)
# A question is no statement, and a person is a "who".
ALLOWED = re.compile(
    r"\?|\b(?:user|users|people|person|author|anybody|somebody) who\b|who-|\"[^\"]*who[^\"]*\""
)
CPP = re.compile(r"(?:^|[\s;{}(,])(?://+|/\*+)\s?(.*?)(?:\*/)?$")
CPP_BLOCK = re.compile(r"^\s*\*?\s?(.*?)(?:\*/.*)?$")  # a further line of /* ... */
HASH = re.compile(r"(?:^|\s)#(?!!)\s?(.*)$")


def comments(path: Path):
    """Line number and text of each comment line, or of each line of a document."""
    fenced = in_block = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if path.suffix == ".md":
            fenced ^= line.lstrip().startswith("```")
            if not fenced and not line.startswith("    "):
                yield number, re.sub(r"^[\s*|#>0-9.]+|`[^`]*`|\"[^\"]*\"", "", line)
            continue
        is_cpp = path.suffix in (".cpp", ".hpp", ".h")
        found = (CPP_BLOCK if in_block else CPP if is_cpp else HASH).search(line)
        if is_cpp:
            in_block = "*/" not in line if in_block or "/*" in line else False
        if found:
            yield number, re.sub(r"\"[^\"]*\"|'[^']*'", "", found[1])


def main() -> int:
    paths = sys.argv[1:] or [
        "libfr",
        "python",
        "tools",
        "tests",
        "examples",
        "README.md",
        "CMakeLists.txt",
    ]
    listed = subprocess.run(
        ["git", "ls-files", *paths], capture_output=True, text=True, check=True
    ).stdout.split()
    suffixes = (".cpp", ".hpp", ".h", ".py", ".md", ".cmake")
    count = 0
    for name in listed:
        path = Path(name)
        if path == Path("tools/check_prose.py") or not path.exists():
            continue
        if path.suffix not in suffixes and path.name != "CMakeLists.txt":
            continue
        for number, text in comments(path):
            if any(p.search(text) for p in PATTERNS) and not ALLOWED.search(text):
                print(f"{name}:{number}: {text.strip()}")
                count += 1
    print(f"{count} lines")
    return count != 0


if __name__ == "__main__":
    sys.exit(main())
