#!/usr/bin/env python3
"""Copies PyTorch dumps of chosen cases into the tree, without this machine's paths.

keep.py TO CASE...      # CASE: a directory that make_real_dumps.py made
"""

import json
import pathlib
import pickletools
import shutil
import struct
import sys
import sysconfig

from score_real import torch_accepted

SENDS = ("mesh3d", "pipeline4", "torchpipe", "ring")
HERE = pathlib.Path(__file__).resolve().parent
PLACES = {
    sysconfig.get_paths()["stdlib"]: "/usr/lib/python3",
    str(HERE): "/job",
}


def neutral(path):
    _, found, rest = path.partition("/site-packages/")
    if found:
        return f"/venv/site-packages/{rest}"
    for place, name in PLACES.items():
        if path.startswith(place):
            return name + path[len(place) :]
    return path


def scrub(data):
    """The same pickle: strings changed in place, opcodes kept."""
    out, end = b"", 0
    for op, text, at in pickletools.genops(data):
        if op.name == "BINUNICODE" and neutral(text) != text:
            other = neutral(text).encode()
            out += data[end:at] + b"X" + struct.pack("<I", len(other)) + other
            end = at + 5 + len(text.encode())
    return out + data[end:]


def main():
    root = pathlib.Path(sys.argv[1])
    for case in map(pathlib.Path, sys.argv[2:]):
        where = root / case.name
        shutil.rmtree(where, ignore_errors=True)
        where.mkdir(parents=True)
        for dump in (case / "torch").iterdir():
            (where / dump.name).write_bytes(scrub(dump.read_bytes()))
        truth = json.loads((case / "truth.json").read_text())
        short = {k: truth[k] for k in ("job", "fault", "mode", "plan", "ends")}
        short["accept"] = torch_accepted(truth, case / "torch")
        # Gloo's sends and receives are not recorded, failed operations look like finished ones.
        ended = len(list((case / "torch").iterdir())) < truth["world"]
        if truth["job"] in SENDS or ended:
            short["accept"].append(["undecided", []])
        (where / "truth.json").write_text(json.dumps(short) + "\n")


if __name__ == "__main__":
    main()
