"""The man page has every option that frtrace has."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_golden import frtrace_program

PAGE = Path(__file__).resolve().parents[2] / "tools" / "frtrace" / "frtrace.1"
OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")


def options(text):
    return set(OPTION.findall(text))


def test_the_man_page_names_all_options():
    help_text = subprocess.run([frtrace_program(), "--help"], capture_output=True, text=True).stdout
    columns = "\n".join(line[:32] for line in help_text.splitlines() if line.startswith("  "))
    names = options(re.sub(r"  .*", "", "\n".join(c.strip() for c in columns.split("\n"))))
    assert {"--json", "-j", "--clean"} <= names, help_text
    assert names <= options(PAGE.read_text().replace("\\-", "-"))


def test_the_man_page_is_well_formed():
    if shutil.which("man") is None:
        pytest.skip("needs man")
    got = subprocess.run(
        ["man", "--warnings", "-l", PAGE], capture_output=True, text=True, env={"MANWIDTH": "100"}
    )
    assert got.returncode == 0 and not got.stderr, got.stderr
