"""Ranks that work and destroy their groups; something keeps rank 2 until the file `go` exists.

FR_TEST_EXIT: thread (not a daemon), atexit, queue (the feeder of a multiprocessing.Queue whose
pipe nobody drains), logging (a handler's close), del (a __del__ method of a global), alive
(atexit, without destroy_process_group), thread_runs (a daemon thread of every rank still issues
operations when the script ends, at sys.exit on rank 2).
"""

import atexit
import logging
import multiprocessing
import os
import sys
import threading
import time

import torch
import torch.distributed as dist

import fr  # noqa: F401

HOW = os.environ.get("FR_TEST_EXIT", "thread")


def upload(exists=os.path.exists, sleep=time.sleep):  # globals are gone in a late __del__
    while not exists("go"):
        sleep(0.05)  # @upload


class Handler(logging.Handler):
    def close(self):
        upload()
        super().close()


class Run:
    def __del__(self):
        upload()


def drain_later(queue):
    upload()
    queue.get()


def work():
    while True:
        dist.all_reduce(torch.ones(4))


def keep():
    global run
    if HOW == "thread":
        threading.Thread(target=upload).start()
    elif HOW == "queue":
        queue = multiprocessing.get_context("fork").Queue()
        multiprocessing.get_context("fork").Process(target=drain_later, args=(queue,)).start()
        queue.put(b"x" * (1 << 20))  # @put
    elif HOW == "logging":
        logging.getLogger("run").addHandler(Handler())
    elif HOW == "del":
        run = Run()
    else:
        atexit.register(upload)


dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if HOW == "thread_runs":
    threading.Thread(target=work, daemon=True).start()
    time.sleep(0.5)
    if os.environ["RANK"] == "2":
        sys.exit("no data left")  # @sys_exit
    time.sleep(60)
if os.environ["RANK"] == "2":
    keep()
if HOW != "alive":
    dist.destroy_process_group()
