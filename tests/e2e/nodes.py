"""Nodes of a cluster on one machine, as namespaces: each has its own network address on a common
link, host name, /dev/shm and disk, and shares no directory that it could meet others in.

    with Cluster(2) as cluster:
        cluster[0].start(["python", "train.py"], env=...)
        cluster[1].link(False)

Inside, a node sees its disk at `cluster.disk`, the same path on all; from outside it is
`node.disk`. Process numbers are the machine's, so that a test can signal any process of a node.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

NEEDS = ("unshare", "nsenter", "ip", "mount", "hostname")
HOLD = ["sh", "-c", "echo ready; exec sleep infinity"]
ADDRESS = "10.77.{}.{}"


def missing():
    """Why there can be no such nodes here; "" where there can."""
    if os.geteuid() != 0:
        return "namespaces with their own network need root"
    without = [tool for tool in NEEDS if shutil.which(tool) is None]
    if without:
        return f"without {', '.join(without)}"
    pair = "ip link add br0 type bridge && ip link add name v0 type veth peer name v1"
    tried = subprocess.run(
        ["unshare", "-n", "-m", "-u", "sh", "-c", pair], capture_output=True, text=True, check=False
    )
    lines = tried.stderr.strip().splitlines() or ["no message"]
    return "" if tried.returncode == 0 else f"namespaces are refused: {lines[0]}"


def _hold(*namespaces):
    """A process that keeps new namespaces alive."""
    # its own session: a Ctrl-C at the tests is not for it
    holder = subprocess.Popen(
        ["unshare", *namespaces, *HOLD], stdout=subprocess.PIPE, start_new_session=True
    )
    assert holder.stdout.readline() == b"ready\n"
    holder.stdout.close()
    return holder


def _inside(holder, command, cwd=None):
    at = ["nsenter", "--target", str(holder.pid), "--net", "--mount", "--uts", "--"]
    # env(1) changes the directory once inside: the path may mean another one there
    return [*at, "env", f"--chdir={cwd or os.getcwd()}", *map(str, command)]


class Node:
    def __init__(self, name, address, disk, holder):
        self.name = name
        self.address = address
        self.disk = disk
        self._holder = holder
        self._started = []

    def start(self, command, **how):
        """Popen of the command, which is the process itself; cwd is a path inside."""
        command = _inside(self._holder, command, how.pop("cwd", None))
        self._started.append(subprocess.Popen(command, **how))
        return self._started[-1]

    def run(self, command, **how):
        how = {"check": True, "capture_output": True, "text": True} | how
        return subprocess.run(_inside(self._holder, command), **how)

    def link(self, up):
        """Cuts the node off the others, or connects it again."""
        self.run(["ip", "link", "set", "eth0", "up" if up else "down"])

    def pids(self):
        """All processes of the node but the one that keeps its namespaces."""
        own = os.readlink(f"/proc/{self._holder.pid}/ns/net")
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self._holder.pid:
                with contextlib.suppress(OSError):
                    if os.readlink(entry / "ns" / "net") == own:
                        found.append(int(entry.name))
        return found

    def signal(self, number):
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self):
        """Stops all first, so that none sees another one die."""
        if self._holder.returncode is not None:
            return
        self.signal(signal.SIGSTOP)
        end = time.monotonic() + 10
        while self.pids() and time.monotonic() < end:
            self.signal(signal.SIGKILL)
            time.sleep(0.01)
        self._holder.kill()
        for process in (*self._started, self._holder):
            process.wait(timeout=10)


class Cluster:
    """A list of nodes. Their disks are removed with them."""

    def __init__(self, n, names="n{}"):
        self.disk = Path(tempfile.mkdtemp(prefix="fr-nodes-"))
        self._nodes = []
        self._closing = contextlib.ExitStack()
        try:
            self._make(n, names)
        except BaseException:
            self.close()
            raise

    def _make(self, n, names):
        link = _hold("-n", "-m", "-u")  # where the nodes' network cables end
        self._closing.callback(lambda: (link.kill(), link.wait(timeout=10)))
        subprocess.run(
            _inside(link, ["sh", "-c", "ip link add br0 type bridge && ip link set br0 up"]),
            check=True,
        )
        known = ["127.0.0.1 localhost"]
        for i in range(n):
            known.append(f"{ADDRESS.format(i // 250, i % 250 + 1)} {names.format(i)}")
        hosts = self.disk / "hosts"
        hosts.write_text("\n".join(known) + "\n")
        for i in range(n):
            address, name = known[i + 1].split()
            disk = self.disk / name
            disk.mkdir()
            holder = _hold("-n", "-m", "-u")
            node = Node(name, address, disk, holder)
            self._nodes.append(node)
            self._closing.callback(node.close)
            cable = f"ip link add name v{i} type veth peer name eth0 netns {holder.pid}"
            cable += f" && ip link set v{i} master br0 up"
            subprocess.run(_inside(link, ["sh", "-c", cable]), check=True)
            # A node's disk hides those of the others.
            node.run(["sh", "-e", "-c", SETUP, name, disk, self.disk, hosts, address])

    def __getitem__(self, i):
        return self._nodes[i]

    def __len__(self):
        return len(self._nodes)

    def __iter__(self):
        return iter(self._nodes)

    def close(self):
        self._closing.close()
        shutil.rmtree(self.disk, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


SETUP = """
hostname "$0"
mount --make-rprivate /
mount -t tmpfs tmpfs /dev/shm
mount --bind "$3" /etc/hosts
mount --bind "$1" "$2"
ip link set lo up
ip address add "$4/16" dev eth0
ip link set eth0 up
"""
