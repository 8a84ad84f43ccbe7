"""Copies the sources with a switch in each function of the engine that decides something.

A switch replaces the function by a constant: a rule proposes nothing, a predicate is always false,
or always true. The sources themselves have no hooks: `instrument` edits a copy.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = ("causes", "facts", "judge")
# Results for "nothing found", by the type that a function returns.
NOTHING = (
    (re.compile(r"bool$"), ("false", "true")),
    (re.compile(r"int$"), ("-1",)),
    (re.compile(r"std::vector<.*>$"), ("{}",)),
    (re.compile(r"std::optional<.*>$"), ("std::nullopt",)),
    (re.compile(r"const [\w:]+\*$"), ("nullptr",)),
)
FUNCTION = re.compile(
    r"^(?P<type>(?:const )?[\w:]+(?:<[^;{}()]*>)?\*?) "
    r"(?P<name>[\w:]+)\((?P<args>[^;{}]*?)\)(?P<tail>(?: const)?(?: noexcept)?) \{$",
    re.MULTILINE,
)
LAMBDA = re.compile(
    r"^(?P<indent> +)const auto (?P<name>\w+) = \[(?P<captured>[^\]]*)\]\((?P<args>[^;{}]*?)\)"
    r"(?P<tail>) \{$",
    re.MULTILINE,
)


@dataclasses.dataclass
class Switch:
    number: int
    file: str
    line: int
    name: str
    value: str
    lines: int  # of the function

    @property
    def title(self) -> str:
        return f"{self.file}:{self.line} {self.name} = {self.value}"


def end_of(text: str, match: re.Match) -> int:
    """Where the function ends: at a brace in the column of its first line."""
    indent = match.groupdict().get("indent", "")
    found = re.compile(rf"^{indent}\}}", re.MULTILINE).search(text, match.end())
    return found.end() if found else match.end()


LOGICAL = re.compile(
    r"^!|==|!=|<=|>=|&&|\|\|| < | > |^(?:true|false)$"
    r"|^[\w.>:()-]*\b(?:contains|(?:any|all|none)_of)\b"
)


def is_predicate(body: str) -> bool:
    """A lambda whose results are all of type bool, as far as its text tells."""
    results = re.findall(r"\breturn ([^;]*);", body)
    return bool(results) and all(
        LOGICAL.search(outer_of(result)) and "?" not in outer_of(result) for result in results
    )


def outer_of(expression: str) -> str:
    """Without what stands in brackets."""
    out, depth = [], 0
    for letter in expression:
        depth -= letter in ")]}"
        if depth == 0:
            out.append(letter)
        depth += letter in "([{"
    return "".join(out)


def instrument(text: str, file: str, first: int) -> tuple[str, list[Switch]]:
    found = []
    for match in [*FUNCTION.finditer(text), *LAMBDA.finditer(text)]:
        end = end_of(text, match)
        body = text[match.end() : end]
        if "indent" in match.groupdict():
            values = ("false", "true") if is_predicate(body) else ()
        else:
            values = next((v for kind, v in NOTHING if kind.match(match["type"])), ())
        line = text.count("\n", 0, match.start()) + 1
        found += [(match.end(), line, match["name"], v, body.count("\n") + 1) for v in values]
    switches, out, at = [], [], 0
    for number, (place, line, name, value, lines) in enumerate(sorted(found), first):
        switches.append(Switch(number, file, line, name, value, lines))
        out += [text[at:place], f" if (fr_ablate::is_off({number})) return {value};"]
        at = place
    return "".join([*out, text[at:]]), switches


def copy_with_switches(to: pathlib.Path) -> list[Switch]:
    """Tracked files, into a folder that keeps what is equal, so that builds stay short."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "CMakeLists.txt", "cmake", "libfr", "tools"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    switches = []
    for name in filter(None, listed.stdout.split("\0")):
        source = ROOT / name
        room = name.removeprefix("tools/frtrace/").split("/")[0]
        data = source.read_bytes()
        if room in ROOMS and name.endswith(".cpp"):
            text, more = instrument(data.decode(), name, len(switches))
            switches += more
            data = ('#include "ablate/switch.hpp"\n' + text).encode()
        elif name == "tools/frtrace/CMakeLists.txt":
            data += b"\nadd_executable(ablate ablate/ablate.cpp)\n"
            data += b"target_link_libraries(ablate PRIVATE frtrace_core)\n"
        write_if_new(to / name, data)
    here = pathlib.Path(__file__).parent
    for name in ("switch.hpp", "ablate.cpp"):
        write_if_new(to / "tools/frtrace/ablate" / name, (here / name).read_bytes())
    return switches


def write_if_new(path: pathlib.Path, data: bytes) -> None:
    if not path.exists() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def build(where: pathlib.Path) -> tuple[pathlib.Path, list[Switch]]:
    """The program, and the switches that it has."""
    switches = copy_with_switches(where / "src")
    if shutil.which("cmake") is None:
        raise SystemExit("ablate: no cmake")
    subprocess.run(
        ["cmake", "-S", where / "src", "-B", where / "build", "-G", "Ninja",
         "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1", "-DFR_UNITY=ON"],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    subprocess.run(["cmake", "--build", where / "build", "--target", "ablate", "-j2"], check=True)
    return where / "build" / "tools" / "frtrace" / "ablate", switches
