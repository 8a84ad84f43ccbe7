"""One rank of a small job with a bug as users make them. A bug is a function of that name.

Lines marked `# @name` are looked up by test_user_bugs.py.
"""

import atexit
import fcntl
import itertools
import os
import queue
import signal
import struct
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import fr

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
GUILTY = RANK == WORLD - 1
SCRATCH = Path(os.environ["E2E_SCRATCH"])


def done(what, rank=RANK):
    (SCRATCH / f"{what}.{rank}").touch()


def await_done(what, *ranks):
    while not all((SCRATCH / f"{what}.{r}").exists() for r in ranks):
        time.sleep(0.01)


def take_flock(file):
    fcntl.flock(file, fcntl.LOCK_EX)  # @take_flock


def take_fcntl(file):
    fcntl.lockf(file, fcntl.LOCK_EX)  # @take_fcntl


def take_ofd(file):
    lock = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0)
    fcntl.fcntl(file, fcntl.F_OFD_SETLKW, lock)  # @take_ofd


def prepare(take):
    """Rank 0 has the lock first and meets the others inside."""
    with (SCRATCH / "dataset.lock").open("w") as file:
        if RANK != 0:
            await_done("locked", 0)
        take(file)
        done("locked")
        dist.barrier()  # @locked_barrier


def flock_barrier():
    prepare(take_flock)


def fcntl_barrier():
    prepare(take_fcntl)


def ofd_barrier():
    prepare(take_ofd)


def filelock_barrier():
    from filelock import FileLock

    if RANK != 0:
        await_done("locked", 0)
    with FileLock(SCRATCH / "dataset.lock"):  # @take_filelock
        done("locked")
        dist.barrier()  # @filelock_barrier


def flock_of_idle():
    """Rank 0 keeps the lock and stops; rank 3 waits for all, 1 and 2 for the lock."""
    with (SCRATCH / "dataset.lock").open("w") as file:
        if RANK == 0:
            fcntl.flock(file, fcntl.LOCK_EX)
            done("locked")
            while True:
                signal.pause()  # @keeps_lock
        await_done("locked", 0)
        if RANK != 3:
            fcntl.flock(file, fcntl.LOCK_EX)  # @waits_for_idle
        dist.barrier()  # @awaits_all


def uneven_loader():
    for _ in range(8 if GUILTY else 9):
        dist.all_reduce(torch.ones(1348))  # @train
    dist.all_reduce(torch.ones(2))  # @evaluate


def more_steps():
    for _ in range(4 if RANK else 5):
        dist.all_reduce(torch.ones(16))  # @more_steps
    dist.barrier()  # @fewer_steps


def async_missing():
    works = [
        dist.all_reduce(torch.ones(4), async_op=True)  # @async
        for _ in range(7 if RANK == 1 else 8)
    ]
    for work in works:
        work.wait()
    dist.barrier()


def mesh_skip():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for step in range(10):
        fr.step(step)
        if not (GUILTY and step == 6):
            dist.all_reduce(torch.ones(4), group=mesh.get_group("tp"))  # @tensor_parallel
        dist.all_reduce(torch.ones(8), group=mesh.get_group("dp"))
    while True:
        signal.pause()


def broadcast_root():
    dist.broadcast(torch.ones(16, 16), src=2 if RANK == 2 else 0)
    dist.barrier()


def pipeline_extra():
    """Four stages, a loss every fifth step; one stage issues an all_reduce between two steps."""
    before, after = RANK - 1, RANK + 1
    for step in range(12):
        if step == 7 and RANK == 1:
            dist.all_reduce(torch.ones(1))  # @pipeline_extra
        for _ in range(4):
            if RANK:
                dist.recv(torch.ones(16), before)
            if after < WORLD:
                dist.send(torch.ones(16), after)
        for _ in range(4):
            if after < WORLD:
                dist.recv(torch.ones(16), after)
            if RANK:
                dist.send(torch.ones(16), before)
        if step % 5 == 0:
            dist.all_reduce(torch.ones(1))


def longer_sequence():
    """Keys go round a ring, whose length one rank has got wrong: gloo aborts its neighbour."""
    after, before = (RANK + 1) % WORLD, (RANK - 1) % WORLD
    for step in range(8):
        length = 24 if step == 5 and RANK == 1 else 16
        keys, got = torch.ones(length, 64), torch.ones(length, 64)
        ops = [dist.P2POp(dist.isend, keys, after), dist.P2POp(dist.irecv, got, before)]
        for work in dist.batch_isend_irecv(ops):  # @longer_sequence
            work.wait()
        dist.all_reduce(torch.ones(4))


def any_source():
    """Rank 0 receives from any rank; one worker stops sending, the others have done their part."""
    if RANK == 0:
        for _ in range(8 * (WORLD - 1)):
            dist.recv(torch.ones(4))
    for step in range(8 if RANK else 0):
        while GUILTY and step == 3:
            signal.pause()  # @any_source
        dist.send(torch.ones(4), 0)
    dist.barrier()


def other_tag():
    if RANK == 0:
        dist.send(torch.ones(4096), 1, tag=3)
    elif RANK == 1:
        dist.recv(torch.ones(4096), 0, tag=2)
    dist.barrier()


def other_buckets():
    """One rank reduces two buckets in the other order: gloo aborts a neighbour, and all fail."""
    sizes = [64, 32, 48, 16]
    for step in range(12):
        if GUILTY and step == 8:
            sizes[1], sizes[2] = sizes[2], sizes[1]
        works = [dist.all_reduce(torch.ones(n), async_op=True) for n in sizes]  # @other_buckets
        for work in works:
            work.wait()


def barrier_at_exit():
    """One process ends without a word; the others fail, and meet in what runs when they exit."""
    atexit.register(dist.barrier)
    for step in range(12):
        dist.all_reduce(torch.ones(4))
        if GUILTY and step == 8:
            os._exit(0)
        dist.broadcast(torch.ones(3), 0)


def shard_not_sent():
    """Every fourth step the ranks send rank 0 their shards; one leaves that out once."""
    for step in range(12):
        dist.all_reduce(torch.ones(64))  # @after_shards
        if step % 4 or (GUILTY and step == 8):
            continue
        for peer in range(1, WORLD) if RANK == 0 else ():
            dist.recv(torch.ones(100), peer)
        if RANK:
            dist.send(torch.ones(100), 0)  # @sends_shard
            dist.recv(torch.ones(1), 0)
        for peer in range(1, WORLD) if RANK == 0 else ():
            dist.send(torch.ones(1), peer)


def chain_left():
    """The first stage leaves the loop two steps early and waits for all at the end."""
    for _ in range(6 if RANK == 0 else 8):
        if RANK > 0:
            dist.recv(torch.ones(8), RANK - 1)  # @chain_recv
        if RANK < WORLD - 1:
            dist.send(torch.ones(8), RANK + 1)  # @chain_send
        dist.all_reduce(torch.ones(3))
    dist.barrier()  # @chain_end


def one_tag():
    """Rank 0 collects the messages of all ranks; one rank uses another tag."""
    for source in range(WORLD - 1, 0, -1) if RANK == 0 else ():
        dist.recv(torch.ones(4096), source)
    if RANK != 0:
        dist.send(torch.ones(4096), 0, tag=5 if GUILTY else 0)  # @one_tag
    dist.barrier()


def uneven_split():
    """The splits are the same in every step; one rank sends a peer more for once."""
    for step in range(8):
        send = [4] * WORLD
        send[1] += 2 * (GUILTY and step == 5)
        out, rows = torch.ones(4 * WORLD, 4), torch.ones(sum(send), 4)
        dist.all_to_all_single(out, rows, [4] * WORLD, send)  # @uneven_split
        dist.all_reduce(torch.ones(4))


def once_more():
    """A barrier now and then; one rank calls it once more."""
    for step in range(8):
        dist.all_reduce(torch.ones(8))
        for _ in range((step % 3 == 0) + (GUILTY and step == 6)):
            dist.barrier()  # @once_more
        dist.reduce(torch.ones(4), 0)


def one_later():
    """One rank leaves out a reduction; its next one meets it instead, and so on to the end."""
    pairs = [dist.new_group([k, k + 2], group_desc="pairs") for k in (0, 1)]
    for step in range(9):
        for _ in range(4):
            ops = [dist.P2POp(dist.isend, torch.ones(4), RANK ^ 1)]
            ops += [dist.P2POp(dist.irecv, torch.ones(4), RANK ^ 1)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
        if not (GUILTY and step == 4):
            dist.all_reduce(torch.ones(2), group=pairs[RANK % 2])  # @one_later
    dist.barrier()


def skip_before_new_group():
    """What one rank leaves out others wait in, while it makes a group."""
    pairs = [dist.new_group([k, k + 1], group_desc="pairs") for k in range(0, WORLD, 2)]
    odd = [dist.new_group([k, k + 2], group_desc="odd") for k in (0, 1)]
    for step in range(6):
        if not (GUILTY and step == 4):
            dist.all_reduce(torch.ones(2), group=pairs[RANK // 2])  # @skip_before_new_group
        dist.all_reduce(torch.ones(3), group=odd[RANK % 2])
        if step == 4:
            dist.new_group(list(range(WORLD)))  # @makes_a_group


def train_beside(thread):
    thread.start()
    for _ in range(20):
        dist.all_reduce(torch.ones(4))
    thread.join()
    dist.barrier()


def checkpointer_ended():
    """Checkpoints come from a thread with a group of its own; on one rank it returns early."""
    group = dist.new_group(group_desc="checkpoints")

    def checkpoints():
        for n in range(8):
            if GUILTY and n == 5:
                return
            dist.all_reduce(torch.ones(2), group=group)  # @checkpoints

    train_beside(threading.Thread(target=checkpoints))


def saver_died():
    """The same where an exception ends that thread, before it has done much."""
    group = dist.new_group(group_desc="checkpoints")

    def save():
        for n in range(4):
            if GUILTY and n == 1:
                raise OSError(28, "No space left on device")  # @saver_dies
            dist.all_reduce(torch.ones(2), group=group)

    train_beside(threading.Thread(target=save, name="saver"))


def batch_swallowed():
    """One rank leaves a batch out, so its loop ends first, and it waits for its thread."""
    group = dist.new_group(group_desc="checkpoints")

    def save(n):
        dist.all_reduce(torch.ones(2), group=group)

    threads = []
    for step in range(20):
        if not (GUILTY and step == 6):
            dist.all_reduce(torch.ones(4))  # @batch
        if step % 4 == 3:
            threads.append(threading.Thread(target=save, args=(step,)))
            threads[-1].start()
    threads.append(threading.Thread(target=save, args=(20,)))
    threads[-1].start()
    for thread in threads:
        thread.join()


def no_new_group():
    """One rank does not make the group of which it is a member; the others go on."""
    if not GUILTY:
        dist.new_group([0, WORLD - 1], group_desc="ends")  # @no_new_group
    dist.all_reduce(torch.ones(4))  # @without_group


def thread_died():
    """The main thread of one rank waits for the answer of a thread that an exception has ended."""
    answers = queue.Queue()

    def fetch():
        if GUILTY:
            raise KeyError("layer.7")  # @thread_dies
        answers.put(RANK)

    threading.Thread(target=fetch, name="fetcher").start()
    answers.get()  # @waits_for_thread
    dist.all_reduce(torch.ones(4))


def failed_connection():
    """What gloo raises where it does not reach a peer, with nothing in flight."""
    if GUILTY:
        raise RuntimeError("Gloo connectFullMesh failed with timed out connecting: refused")


def straggler():
    """Rank 2 takes longer, until the test has seen that this was said."""
    stop = torch.zeros(1)
    while not stop:
        time.sleep(0.2 if RANK == 2 else 0)
        dist.all_reduce(torch.ones(4))  # @waits_for_late
        stop += (SCRATCH / "stop").exists()
        dist.broadcast(stop, src=0)


def all_slower():
    """From step 40 on all ranks take longer, until the test has seen that this was said."""
    stop = torch.zeros(1)
    for step in itertools.count():
        fr.step(step)
        time.sleep(0.01 if step < 40 else 0.15)  # @slower
        stop += (SCRATCH / "stop").exists()
        dist.all_reduce(stop)
        if stop:
            return


def slow_data():
    """From step 12 on rank 1 takes longer for its data."""
    for step in range(45):
        fr.step(step)
        time.sleep(0.002 if RANK != 1 or step < 12 else 0.04)
        dist.all_reduce(torch.ones(4))  # @slow_data
    done("slow_data")
    await_done("slow_data", *range(WORLD))
    fr.dump("slow")
    while True:
        signal.pause()


def main():
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(4))
    globals()[sys.argv[1]]()


if __name__ == "__main__":
    fr.status()
    main()
