"""PyTorch dumps of a folder, read, changed and written back: what a property of an analyzer needs.

Simulated cases are told otherwise by hangsim itself (--rename, --shift, --ring, --faults).
"""

import json
import os
import pathlib
import pickle
import re

TIMES = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")


def rank_of(path):
    """The rank in a file's name, of either format; None for others."""
    found = re.search(r"\.r(\d+)\.\d+\.fr$", path.name) or re.search(r"(\d+)(\.json)?$", path.name)
    return int(found[1]) if found else None


def by_rank(folder):
    """The files of each rank: there are two after an elastic restart."""
    out = {}
    for path in sorted(pathlib.Path(folder).iterdir()):
        if rank_of(path) is not None:
            out.setdefault(rank_of(path), []).append(path)
    return out


def load(path):
    data = path.read_bytes()
    return json.loads(data) if path.suffix == ".json" else pickle.loads(data)


def change(path, function, seconds=0):
    """Rewrites one dump in place; its time is that of before, shifted."""
    status = path.stat()
    dump = function(load(path))
    path.write_bytes(json.dumps(dump).encode() if path.suffix == ".json" else pickle.dumps(dump, 2))
    shift = seconds * 10**9
    os.utime(path, ns=(status.st_atime_ns + shift, status.st_mtime_ns + shift))


def shifted(dump, seconds):
    for entry in dump["entries"]:
        for key in TIMES:
            if entry.get(key):
                entry[key] += seconds * 10**9
    return dump


def cut(dump, keep):
    """The last records, as a smaller ring would have kept."""
    dump["entries"] = dump["entries"][len(dump["entries"]) - min(keep, len(dump["entries"])) :]
    return dump


def is_pending(entry):
    done = entry["state"] == "completed" or entry.get("retired")
    return not done


def pending(dump):
    """Entries in flight that stand for an operation of their own: members of a batch or of a
    coalesced collective stay 'scheduled' for ever, whatever becomes of them."""
    batches = set()
    for e in dump["entries"]:
        if e["profiling_name"].endswith(":coalesced"):
            lane = "p2p_seq_id" if e.get("is_p2p") else "collective_seq_id"
            batches.add((e["process_group"][0], bool(e.get("is_p2p")), e[lane]))
    out = []
    for e in dump["entries"]:
        lane = "p2p_seq_id" if e.get("is_p2p") else "collective_seq_id"
        member = (e["process_group"][0], bool(e.get("is_p2p")), e[lane]) in batches
        if is_pending(e) and (not member or e["profiling_name"].endswith(":coalesced")):
            out.append(e)
    return out
