"""Hangs below the host: real processes over the stand-in for NCCL, verdicts by frtrace."""

import json
import os
import re
import shutil
import socketserver
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import pytest
from conftest import QUIET, frtrace, wait_until

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).parent / "nccl_job.py"
CALLER = """
#include <stddef.h>
extern "C" int ncclAllReduce(const void*, void*, size_t, int, int, void*, void*);
extern "C" int caller_all_reduce(const void* s, void* r, size_t n, int t, int o, void* c, void* x) {
  return ncclAllReduce(s, r, n, t, o, c, x);
}
"""

CUDA_CALLER = """
#include <stddef.h>
extern "C" {
int ncclCommDestroy(void*);
int ncclAllReduce(const void*, void*, size_t, int, int, void*, void*);
int cudaStreamSynchronize(void*);
int cudaEventRecord(void*, void*);
int cudaEventQuery(void*);
int caller_destroy(void* c) { return ncclCommDestroy(c); }
int caller_all_reduce(void* b, size_t n, int t, int o, void* c, void* s) {
  return ncclAllReduce(b, b, n, t, o, c, s);
}
int caller_synchronize(void* s) { return cudaStreamSynchronize(s); }
int caller_record(void* e, void* s) { return cudaEventRecord(e, s); }
int caller_query(void* e) { return cudaEventQuery(e); }
}
"""


PROGRAM = """
extern "C" int ncclGetUniqueId(void*);
struct Id { char bytes[128]; };
extern "C" int ncclCommInitRank(void**, int, Id, int);
int main() {
  Id id;
  void* comm = nullptr;
  ncclGetUniqueId(&id);
  return ncclCommInitRank(&comm, 2, id, 0);
}
"""


@pytest.fixture(scope="session")
def compiler():
    found = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if found is None:
        pytest.skip("no C++ compiler")
    return found


SHARED = ["-std=c++20", "-O1", "-shared", "-fPIC", "-pthread"]


@pytest.fixture(scope="session")
def standin(made_once, compiler):
    """The stand-in libnccl.so.2 and a library that is linked against it."""

    def make(home):
        library = home / "libnccl.so.2"
        subprocess.run(
            [compiler, *SHARED, "-I", ROOT / "libfr", "-I", ROOT / "libfr" / "include",
             ROOT / "tests" / "nccl" / "standin_nccl.cpp", "-o", library,
             "-Wl,-soname,libnccl.so.2", "-ldl"],
            check=True,
        )  # fmt: skip
        source = home / "caller.cpp"
        source.write_text(CALLER)
        for name, extra in (("lazy", "-Wl,-z,lazy"), ("now", "-Wl,-z,now,-z,relro")):
            subprocess.run(
                [compiler, *SHARED, source, "-o", home / f"lib{name}.so", extra,
                 f"-Wl,-rpath,{home}", library],
                check=True,
            )  # fmt: skip
        (home / "program.cpp").write_text(PROGRAM)
        subprocess.run(
            [compiler, home / "program.cpp", "-o", home / "program", f"-Wl,-rpath,{home}", library],
            check=True,
        )

    return made_once("nccl", make)


@pytest.fixture
def run(launch, standin):
    def start(fault, ranks, standin_fault="", api=6, caller="", **env):
        env = {
            "NCCL_JOB_LIBRARY": str(standin / "libnccl.so.2"),
            "NCCL_JOB_CALLER": str(standin / f"lib{caller}.so") if caller else "",
            "STANDIN_NCCL_API": str(api),
            "STANDIN_NCCL_FAULT": standin_fault,
            "NCCL_PROFILER_PLUGIN": "",
        } | env
        return launch(fault, ranks, env=env, script=SCRIPT)

    return start


def status_of(scratch, rank):
    path = scratch / f"status.{rank}"
    wait_until(f"{path}", lambda: path.exists() and path.read_text().endswith("}"))
    return json.loads(path.read_text())


@pytest.mark.parametrize("api,background", [(4, ""), (5, ""), (6, ""), (6, "1"), (7, "")])
def test_a_run_without_fault_leaves_nothing(run, scratch, api, background):
    job = run("none", 3, api=api, NCCL_JOB_IN_BACKGROUND=background, **QUIET)
    assert job.await_exit() == {0: 0, 1: 0, 2: 0}, job.log()
    assert job.evidence() == {}, job.log()
    for rank in range(3):
        (comm,) = [g for g in status_of(scratch, rank)["groups"] if g["name"].startswith("nccl:")]
        assert comm["enqueued"] == 3, comm
        assert comm["completed"] == 3, comm
        assert comm["p2p"] == 6, comm
        assert comm["lost"] == 0, comm
    assert "mismatch" not in job.log()


def test_another_size_is_told_of_before_it_hangs(run):
    job = run("wrong_op", 3, **QUIET)
    wait_until("a word of it", lambda: "mismatch" in job.log())
    place = r"all_reduce #4{} at nccl_job.py:\d+ \(main\), {} elements"
    wrong, right = place.format(r" of nccl:\w+", 4096), place.format("", 1024)
    assert re.search(f"mismatch: rank 2 issued {wrong}; ranks 0,1 issued {right}", job.log())
    assert not job.incidents()


@pytest.mark.parametrize("caller", ["", "lazy", "now"])
def test_a_rank_that_does_not_come(run, scratch, caller):
    """Three ways to call: looked up by ctypes; linked, bound late; linked, bound early."""
    job = run("skip", 3, caller=caller).await_evidence()
    trace = job.trace()
    trace.expect("missing", [2], op="all_reduce", seq=4)
    (waiting,) = trace.verdict["waiting"]
    assert sorted(waiting["ranks"]) == [0, 1]
    assert waiting["site"]["function"] == "all_reduce", waiting
    hooked = status_of(scratch, 0)["layers"]["nccl"]
    assert "version 6" in hooked
    assert int(hooked.split("; ")[1].split()[0]) >= (2 if caller else 1)


def blamed(trace, why):
    """Why the only one is blamed, and all that is said of it."""
    (entry,) = trace.verdict["blamed"]
    assert entry["why"] == why, entry
    return "\n".join(entry["evidence"])


def found(trace, key):
    return "\n".join(f["text"] for f in trace.report["findings"] if f["id"] == key)


@pytest.mark.parametrize("api", [4, 6])
def test_a_device_that_does_not_start(run, api):
    trace = run("none", 3, "device:1:4", api=api).await_evidence().trace()
    trace.expect("device", [1], op="all_reduce", seq=4)
    said = blamed(trace, "not_started")
    assert "never started on its device; before it on" in said
    assert "is a kernel that is no recorded operation" in said
    stuck = "send to rank 1: no free buffer at the receiver for step 0 of 4 (channel 0)"
    assert stuck in found(trace, "device")
    states = {d["rank"]: d["state"] for d in trace.report["devices"]}
    assert states == {0: "started", 1: "launched", 2: "started"}


def test_a_launch_that_does_not_return(run):
    trace = run("none", 3, "launch:1:4").await_evidence().trace()
    trace.expect("device", [1], op="all_reduce", seq=4)
    assert "the host has been inside its launch" in blamed(trace, "in_launch")


@pytest.mark.parametrize("version", ["", "23102"])
def test_a_network_that_loses(run, version):
    """Also where kernels are not told of: 2.31."""
    job = run("none", 3, "transport:1:4", STANDIN_NCCL_VERSION=version).await_evidence()
    trace = job.trace()
    trace.expect("transport", [])
    assert "all_reduce #4" in trace.verdict["summary"]


def test_a_network_that_loses_between_two(run, scratch):
    """The link is named; from the live rings as from the dumps."""
    trace = run("none", 4, "lost:1:4").await_evidence().trace()
    for said in (trace, frtrace(scratch / "shm")):
        said.expect("transport", [])
        assert [(k["from"], k["to"]) for k in said.report["links"]] == [(1, 2)], said.report
        assert "suspect the network from rank 1" in found(said, "link")
        assert said.verdict["confidence"] == "certain"


def test_a_network_thread_that_does_not_begin(run):
    trace = run("none", 3, "credit:1:4").await_evidence().trace()
    trace.expect("device", [1], op="all_reduce", seq=4)
    assert "not begun" in blamed(trace, "network_thread")


def test_a_kernel_that_takes_nothing(run):
    trace = run("none", 3, "kernel:1:4", STANDIN_NCCL_NODES="3").await_evidence().trace()
    trace.expect("device", [1], op="all_reduce", seq=4)
    assert "the kernel here does not consume it" in blamed(trace, "kernel_stands")


def test_a_kernel_that_takes_nothing_beside_others(run):
    """Others are on its node, but both neighbours of its ring are beyond the network."""
    trace = run("none", 3, "kernel:1:4").await_evidence().trace()
    trace.expect("device", [1], op="all_reduce", seq=4)
    assert "the kernel here does not consume it" in blamed(trace, "kernel_stands")


def test_a_stream_that_is_busy_with_another_communicator(run):
    """Ranks 0 and 1 wait for rank 2, whose stream waits for rank 3, whose device does not start."""
    trace = run("behind", 4, "device:1:2:2").await_evidence().trace()
    trace.expect("device", [3], op="all_reduce", seq=2)
    blamed(trace, "not_started")
    said = found(trace, "device")
    assert "send to rank 3: no free buffer at the receiver for step 0 of 4" in said
    assert "never started on its device; stream 0x7000 is busy with all_reduce #2 of nccl:" in said
    assert trace.report["links"] == []


def test_a_stream_that_is_busy_with_what_the_network_lost(run):
    trace = run("behind", 4, "lost:0:2:2").await_evidence().trace()
    trace.expect("transport", [])
    assert [(k["from"], k["to"]) for k in trace.report["links"]] == [(2, 3)], trace.report
    assert {w["seq"] for w in trace.verdict["waiting"]} == {2, 4}


def test_a_rank_that_does_not_join_the_communicator(run):
    job = run("init", 3).await_evidence()
    trace = job.trace()
    trace.expect("missing", [2], op="ncclCommInitRank")


def test_a_communicator_that_is_made_in_the_background_and_never_is(run):
    """ncclCommInitRankConfig has returned long ago; the ranks poll ncclCommGetAsyncError."""
    job = run("init", 3, NCCL_JOB_IN_BACKGROUND="1").await_evidence()
    trace = job.trace()
    trace.expect("missing", [2], op="ncclCommInitRankConfig")


def test_a_rank_that_does_not_register_its_window(run):
    trace = run("window", 3, "window").await_evidence().trace()
    trace.expect("missing", [2], op="ncclCommWindowRegister")
    (waiting,) = trace.verdict["waiting"]
    assert sorted(waiting["ranks"]) == [0, 1]
    assert waiting["site"]["function"] == "main", waiting


def test_a_split_communicator(run):
    """No call names the group's ranks: they are the ranks with its communicator."""
    job = run("skip_split", 4).await_evidence([1, 3])
    job.trace().expect("missing", [3], op="all_reduce", seq=1)


def test_an_asynchronous_error(run):
    job = run("async", 2, "async:1:4", **QUIET).await_evidence()
    said = json.dumps(job.trace().report)
    assert "remote process exited or there was a network error" in said


def test_an_asynchronous_error_of_its_own(run):
    trace = run("async", 2, "broken:1:4", **QUIET).await_evidence().trace()
    trace.expect("device", [1], op="all_reduce", seq=4)
    assert "asynchronous error: unhandled error (1)" in blamed(trace, "nccl_error")


def test_a_program_that_is_not_python(scratch, standin):
    """LD_PRELOAD=libfr.so, and the program hangs in ncclCommInitRank: nobody else comes."""
    libfr = subprocess.run(
        [sys.executable, "-c", "import fr; print(fr._fr.library_path())"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    env = {k: v for k, v in os.environ.items() if not k.startswith(("FR_", "NCCL_"))}
    env |= {"LD_PRELOAD": libfr, "RANK": "0", "WORLD_SIZE": "2", "FR_JOB": "c", "FR_TIMEOUT_S": "1"}
    env |= {"FR_SHM_DIR": str(scratch / "shm"), "FR_DUMP_DIR": str(scratch / "dumps")}
    program = subprocess.Popen([standin / "program"], env=env, stderr=subprocess.DEVNULL)
    try:
        dump = scratch / "dumps" / "c.a0.r0.1.fr"
        wait_until(f"{dump}", dump.exists)
        said = json.dumps(frtrace(scratch / "dumps").report)
        assert "ncclCommInitRank" in said, said
    finally:
        program.kill()
        program.wait()


class RasService(socketserver.ThreadingTCPServer):
    """NCCL's RAS service, or something that listens in its place."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, answer):
        self.asked = []
        self.answer = answer
        super().__init__(("127.0.0.1", 0), self.Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"localhost:{self.server_address[1]}"

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            for line in self.rfile:
                self.server.asked.append(line.decode().strip())
                if line.startswith(b"CLIENT"):
                    self.wfile.write(b"SERVER PROTOCOL 2\n")
                elif b"STATUS" not in line:
                    self.wfile.write(b"OK\n")
                elif self.server.answer is not None:  # None: says nothing, for ever
                    self.wfile.write(self.server.answer.encode())
                    break


def ras_rank(rank, count):
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "abort_flag": False}
    return {"rank": rank, "status": status, "collective_counts": {"AllReduce": count}}


def ras_findings(trace):
    return [f["text"] for f in trace.report["findings"] if f["id"] == "ras"]


def test_nccl_ras_is_a_witness(run):
    comm = {"hash": "0xabc", "ranks": [ras_rank(0, 4), ras_rank(1, 4), ras_rank(2, 3)]}
    with RasService(json.dumps({"communicators": [comm]})) as service:
        job = run("skip", 3, NCCL_RAS_ADDR=service.address).await_evidence()
        service.shutdown()
    trace = job.trace()
    trace.expect("missing", [2], op="all_reduce", seq=4)
    assert ras_findings(trace) == [
        "NCCL's RAS: communicator abc: AllReduce operations launched: ranks 0,1: 4; rank 2: 3"
    ]
    # the first rank of each node asks
    assert service.asked.count("VERBOSE STATUS") == 1, service.asked


def test_a_ras_that_does_not_answer_holds_no_dump_up(run):
    with RasService(None) as service:
        job = run("skip", 3, FR_RAS=service.address).await_evidence()
        service.shutdown()
    trace = job.trace()
    trace.expect("missing", [2], op="all_reduce", seq=4)
    (said,) = ras_findings(trace)
    assert (
        "did not answer: no answer" in said or "did not end in time" in said
    )  # what came was a part


def test_ras_is_not_asked_when_nobody_wants_it(run):
    with RasService("") as service:
        job = run("skip", 2, NCCL_RAS_ADDR=service.address, NCCL_RAS_ENABLE="0").await_evidence()
        service.shutdown()
    assert service.asked == []
    assert ras_findings(job.trace()) == []


@pytest.fixture(scope="session")
def cuda_standin(made_once, compiler, standin):
    """The stand-ins for CUDA beside that for NCCL, and a library that is linked against all."""

    def make(home):
        flags = [*SHARED, f"-Wl,-rpath,{home}"]
        source = ROOT / "tests" / "cuda" / "standin_cuda.cpp"
        cuda, runtime = home / "libcuda.so.1", home / "libcudart.so.12"
        (home / "cuda_caller.cpp").write_text(CUDA_CALLER)
        for inputs, output in (
            ([source], cuda),
            (["-DSTANDIN_CUDART", source, cuda], runtime),
            ([home / "cuda_caller.cpp", home / "libnccl.so.2", runtime, cuda], "libcaller.so"),
        ):
            name = Path(output).name
            command = [compiler, *flags, *inputs, f"-Wl,-soname,{name}", "-o", home / name]
            subprocess.run(command, check=True)

    return made_once("nccl", make, "cuda")


@pytest.fixture(scope="session")
def torch_backend(made_once, compiler, standin):
    """A backend of torch over the stand-in. Half a minute to compile."""
    torch = pytest.importorskip("torch")
    import pybind11

    from fr import adapter

    def make(home):
        includes, lib_dir = adapter._torch_paths(torch)
        subprocess.run(
            [compiler, ROOT / "tests" / "nccl" / "standin_backend.cpp", "-o",
             home / "standin_backend.so", "-shared",
             "-fPIC", "-O0", "-std=c++20", "-w", "-DTORCH_EXTENSION_NAME=standin_backend",
             f"-D_GLIBCXX_USE_CXX11_ABI={adapter._abi(torch)}",
             *(flag for i in includes for flag in ("-isystem", i)),
             "-isystem", pybind11.get_include(), "-isystem", sysconfig.get_paths()["include"],
             f"-L{lib_dir}", "-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10",
             home / "libnccl.so.2", f"-Wl,-rpath,{home}"],
            check=True,
        )  # fmt: skip

    return made_once("nccl", make, "backend") / "standin_backend.so"


def test_torch_and_nccl_make_one_record(launch, scratch, torch_backend, standin):
    """torch's adapter, the wrappers and the plugin see each operation: all say the same record."""
    env = {
        "NCCL_JOB_BACKEND": str(torch_backend),
        "STANDIN_NCCL_FAULT": "device:1:4",
        "NCCL_PROFILER_PLUGIN": "",
    }
    job = launch("device", 3, env=env, script=SCRIPT.with_name("torch_nccl_job.py"))
    trace = job.await_evidence().trace()
    trace.expect("device", [1], op="all_reduce", seq=4, desc="default_pg")
    site = trace.verdict["blamed"][0]["site"]
    assert Path(site["file"]).name == "torch_nccl_job.py", site
    groups = status_of(scratch, 0)["groups"]
    assert [g["enqueued"] for g in groups if g["desc"] == "default_pg"] == [3]
    assert sum(g["enqueued"] for g in groups) == 3, groups


def test_torch_without_the_plugin(launch, scratch, torch_backend, cuda_standin):
    """NCCL reports nothing; the thread that polls the events of all operations shows their ends."""
    env = {
        "NCCL_JOB_BACKEND": str(torch_backend),
        "CUDA_JOB_HOME": str(cuda_standin),
        "STANDIN_NCCL_API": "0",
        "NCCL_PROFILER_PLUGIN": "",
        "FR_TIMING": "auto",
    }
    job = launch("skip", 3, env=env, script=SCRIPT.with_name("torch_nccl_job.py"))
    trace = job.await_evidence().trace()
    trace.expect("missing", [2], op="all_reduce", seq=4, desc="default_pg")
    status = status_of(scratch, 0)
    assert [g["enqueued"] for g in status["groups"] if g["desc"] == "default_pg"] == [3]
    assert sum(g["enqueued"] for g in status["groups"]) == 3, status["groups"]
    assert status["device"]["followed"] == 3, status["device"]
    assert not any(status["device"]["losses"].values()), status["device"]
