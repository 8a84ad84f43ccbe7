"""One rank of torch.distributed over the stand-in for NCCL; argv: what goes wrong."""

import ctypes
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import fr

FAULT = sys.argv[1]
RANK = int(os.environ["RANK"])
SCRATCH = Path(os.environ["E2E_SCRATCH"])


def step(x):
    dist.all_reduce(x)  # @torch-meet


def new_stream(home):
    cuda = ctypes.CDLL(str(home / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(home / "libcaller.so"), mode=ctypes.RTLD_GLOBAL)
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
    return stream.value


def main():
    spec = importlib.util.spec_from_file_location("standin_backend", os.environ["NCCL_JOB_BACKEND"])
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    if "CUDA_JOB_HOME" in os.environ:
        backend.use_stream(new_stream(Path(os.environ["CUDA_JOB_HOME"])))
    dist.Backend.register_backend("standin", backend.create, devices=["cpu"])
    (SCRATCH / f"imported.{RANK}").touch()
    for rank in range(int(os.environ["WORLD_SIZE"])):  # importing torch takes unequal times
        while not (SCRATCH / f"imported.{rank}").exists():
            time.sleep(0.02)
    dist.init_process_group("standin")
    x = torch.ones(1024)
    for _ in range(3):
        step(x)
    (SCRATCH / f"status.{RANK}").write_text(json.dumps(fr.status()))
    if FAULT == "skip" and RANK == 2:
        time.sleep(600)
    step(x)
    time.sleep(0 if FAULT == "none" else 600)


main()
