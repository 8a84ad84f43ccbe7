"""What fr and frtrace write where a terminal may be: text of others is only text."""

import subprocess

import pytest
from test_torch_dumps import frtrace_program

HOSTILE = "\x1b]0;x\x07\n[fr n0:9] forged\x9b31m\u202e\udcff"


def is_plain(text: str) -> bool:
    return all(c == "\n" or c.isprintable() for c in text) and "\n[fr n0:9] forged" not in text


def test_lines_of_the_recorder(launch):
    (ran,) = launch(
        """
        import fr
        from fr import _fr
        _fr.start()
        _fr.log(1, "caught \\x1b]0;x\\x07 and\\n[fr n0:9] forged\\x9b31m \\u202e")
        """,
        env={"FR_JOB": HOSTILE.replace("\n", "\\"), "FR_LOG": "debug", "FR_TIMEOUT_S": HOSTILE},
    )
    assert "caught \\x1b]0;x\\x07 and [fr n0:9] forged\\xc2\\x9b31m \\xe2\\x80\\xae" in ran.err
    assert "FR_TIMEOUT_S" in ran.err
    assert is_plain(ran.err), ran.err


@pytest.mark.parametrize("options", [[], ["-v"], ["--json"], ["-j"], ["--stacks"]])
def test_names_of_files(tmp_path, options):
    directory = tmp_path / HOSTILE
    directory.mkdir()
    (directory / (HOSTILE + ".fr")).write_bytes(b"\x28\xb5\x2f\xfd damaged")
    (directory / (HOSTILE + ".json")).write_text('{"version": "2.10", "entries": []}')
    for path in (directory, directory / "absent"):
        got = subprocess.run(
            [frtrace_program(), *options, path], capture_output=True, timeout=60, check=False
        )
        assert is_plain((got.stdout + got.stderr).decode()), got
        assert got.stdout + got.stderr
