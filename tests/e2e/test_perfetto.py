"""A trace for ui.perfetto.dev, as Perfetto's parser and its trace processor read it."""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest
import zstandard
from perfetto_query import parsed, query, unknown_fields

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "hangsim"))
import score  # noqa: E402

HANGSIM = os.environ.get("FR_HANGSIM") or score.default_tool("hangsim")
FRTRACE = os.environ.get("FR_FRTRACE") or score.default_tool("frtrace")

pytestmark = pytest.mark.skipif(not Path(HANGSIM).is_file(), reason="hangsim is not built")

IN_FLIGHT = {"enqueued", "started", "waiting", "idle"}
ERRORS = "select name, value from stats where severity != 'info' and value > 0"


def simulate(tmp_path, *args):
    done = subprocess.run([HANGSIM, *map(str, args), "--format", "fr", "-o", tmp_path / "set"])
    assert done.returncode == 0
    return next((tmp_path / "set").rglob("*.fr")).parent


def trace_of(dumps, *args):
    path = dumps.parent / "job.perfetto-trace"
    got = subprocess.run(
        [FRTRACE, dumps, "-o", path, *map(str, args)], capture_output=True, text=True, timeout=60
    )
    assert got.returncode in (0, 1, 4) and not got.stdout, got
    return path


def dump(path):
    data = zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=1 << 28)
    whole = msgpack.unpackb(data, strict_map_key=False)
    fields = whole["records"]["fields"]
    return whole, [dict(zip(fields, row, strict=False)) for row in whole["records"]["rows"] if row]


def operations(dumps):
    """(rank, record) of all of them, told by another reader than frtrace."""
    for path in sorted(dumps.glob("*.fr")):
        whole, records = dump(path)
        for record in records:
            if record["kind"] in ("collective", "send", "recv", "lifecycle"):
                yield whole["identity"]["rank"], record


def verdict(dumps):
    got = subprocess.run([FRTRACE, "--json", dumps], capture_output=True, text=True)
    return json.loads(got.stdout)["verdict"]


def test_the_parser_knows_every_field(tmp_path):
    dumps = simulate(tmp_path, "--class", "skip", "--job", "3d", "--seed", 3)
    trace = parsed(trace_of(dumps))
    assert not unknown_fields(trace)
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet
              if p.HasField("track_descriptor")}  # fmt: skip
    for packet in trace.packet:
        if packet.HasField("track_event"):
            assert packet.track_event.track_uuid in tracks
            assert packet.trusted_packet_sequence_id == 1 and packet.sequence_flags == 2
    # blamed ranks come first
    said = verdict(dumps)
    roots = [t for t in tracks.values() if not t.parent_uuid]
    assert [t.sibling_order_rank for t in roots] == list(range(len(roots)))
    assert roots[0].name == "verdict" and roots[0].description == said["summary"]
    first = [int(t.name.split()[1]) for t in roots[1 : 1 + len(said["ranks"])]]
    assert sorted(first) == sorted(said["ranks"])


@pytest.mark.parametrize("kind", ["skip/3d/3", "skip/ddp/1", "exception/fsdp/2", "no_device/ddp/5"])
def test_slices_are_the_operations(tmp_path, kind):
    cls, job, seed = kind.split("/")
    dumps = simulate(tmp_path, "--class", cls, "--job", job, "--seed", seed)
    told = list(operations(dumps))
    slices, open_, errors, alike, inner = query(
        trace_of(dumps),
        "select count(*) from slice where category glob '*collective*' or category glob '*send*'"
        " or category glob '*recv*' or category glob '*lifecycle*'",
        "select name, extract_arg(arg_set_id, 'debug.state') from slice"
        " where dur = -1 and extract_arg(arg_set_id, 'debug.seq') is not null",
        ERRORS,
        # one slot has one number and one sequence number
        "select count(distinct extract_arg(arg_set_id, 'debug.seq')) as n from slice"
        " where extract_arg(arg_set_id, 'correlation_id') is not null"
        " group by extract_arg(arg_set_id, 'correlation_id') having n != 1",
        "select count(*) from slice c join slice p on c.parent_id = p.id where c.name = 'runs'"
        " and (c.ts < p.ts or (p.dur >= 0 and c.ts + c.dur > p.ts + p.dur))",
    )
    assert slices == [(len(told),)]
    in_flight = [r for _, r in told if r["state"] in IN_FLIGHT]
    assert collections.Counter(s for _, s in open_) == collections.Counter(
        r["state"] for r in in_flight
    )
    assert not errors and not alike and inner == [(0,)]


def test_the_verdicts_slot_is_a_chain(tmp_path):
    dumps = simulate(tmp_path, "--class", "skip", "--job", "ddp", "--seed", 1)
    said = verdict(dumps)
    waiting = said["waiting"]
    chains, lags, first = query(
        trace_of(dumps),
        "select extract_arg(o.arg_set_id, 'debug.seq'), extract_arg(i.arg_set_id, 'debug.seq'),"
        " o.ts <= i.ts, o.track_id != i.track_id from flow join slice o on o.id = slice_out"
        " join slice i on i.id = slice_in",
        "select count(*) from counter where value < 0",
        "select count(*) from track where name glob 'arrival lag*'",
    )
    assert chains and all(a == b and ordered and apart for a, b, ordered, apart in chains)
    assert {a for a, *_ in chains} >= {w["seq"] for w in waiting if len(w["ranks"]) > 1}
    assert lags == [(0,)] and first[0][0] > 0


def test_the_counter_is_the_lag(tmp_path):
    dumps = simulate(tmp_path, "--class", "skip", "--job", "ddp", "--seed", 1)
    calls = collections.defaultdict(dict)
    for rank, record in operations(dumps):
        calls[record["group"], record["seq"]][rank] = record["time"]
    most = collections.Counter()
    for times in calls.values():
        for rank, time in times.items():
            most[rank] = max(most[rank], time - min(times.values()))
    ((*rows,),) = query(
        trace_of(dumps),
        "select r.name, max(c.value) from counter c join track t on t.id = c.track_id"
        " join track r on r.id = t.parent_id where t.name glob 'arrival lag*' group by 1",
    )
    told = {int(name.split()[1]): value for name, value in rows}
    assert told.keys() == most.keys()
    # what clocks of hosts are apart is corrected in the trace
    assert all(abs(told[rank] - most[rank]) < 500_000 for rank in told), (told, most)


def test_sends_lead_to_their_receives(tmp_path):
    dumps = simulate(tmp_path, "--class", "missing", "--job", "ring", "--seed", 2)
    pairs, sends, errors = query(
        trace_of(dumps),
        "select o.name, i.name, extract_arg(o.arg_set_id, 'correlation_id') ="
        " extract_arg(i.arg_set_id, 'correlation_id') from flow join slice o on o.id = slice_out"
        " join slice i on i.id = slice_in where o.category glob '*send*'"
        " or o.category glob '*recv*'",
        "select count(*) from slice where category glob '*send*'",
        ERRORS,
    )
    assert len(pairs) > 0.5 * sends[0][0] > 0 and not errors
    for a, b, alike in pairs:
        assert {a.split()[0], b.split()[0]} == {"send", "recv"} and alike == 1


def test_ranks_and_groups_are_chosen(tmp_path):
    dumps = simulate(tmp_path, "--class", "skip", "--job", "3d", "--seed", 3)
    names = "select distinct t.name from slice s join track t on t.id = s.track_id"
    roots = "select name from track where parent_id is null and name glob 'rank *'"
    groups = [g["desc"] or g["name"] for g in report_groups(dumps)]
    ((_, few),) = [query(trace_of(dumps, "--ranks", "1,2"), names, roots)]
    assert sorted(name.split()[1] for (name,) in few) == ["1", "2"]
    tracks, ranks = query(trace_of(dumps, "--groups", groups[0]), names, roots)
    assert len(ranks) > 2
    others = {name for (name,) in tracks if not name.startswith(("rank ", "verdict"))}
    assert others and all(groups[0] in name or "sends" in name for name in others), others


def report_groups(dumps):
    got = subprocess.run([FRTRACE, "--json", dumps], capture_output=True, text=True)
    return json.loads(got.stdout)["groups"]


def test_a_thousand_ranks_stay_small(tmp_path):
    dumps = simulate(tmp_path, "--world", 1024, "--records", 250)
    path = trace_of(dumps)
    assert path.stat().st_size < 20_000_000
