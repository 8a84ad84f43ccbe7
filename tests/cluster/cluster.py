"""Two "nodes" on one machine: namespaces with a /dev/shm, a host name and processes of their own.
On them a real Slurm (munged, slurmctld, two slurmd) or an sshd each. All of it lives below one
temporary directory and dies with its Cluster.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

FRTRACE = Path(sys.executable).parent / "frtrace"
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
PATIENCE_S = 90  # of one event on a busy machine


def find(program):
    return shutil.which(program, path=os.environ["PATH"] + ":" + SBIN)


def wait_until(what, condition, timeout=PATIENCE_S):
    end = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {timeout} s for: {what}"
        time.sleep(0.05)
    return value


def free_ports(n):
    held = [socket.socket() for _ in range(n)]
    for s in held:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


def outside(**more):
    """The environment without what a launcher or fr left in it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "FR_", "TORCH_"))}
    return kept | {"PATH": f"{kept['PATH']}:{SBIN}"} | more


class Cluster:
    def __init__(self, scratch, names=("n1", "n2")):
        self.scratch = scratch
        self.daemons = []
        self.homes = {name: self._make_node(name) for name in names}  # pids of their holders

    def _make_node(self, name):
        """A process that holds the node's namespaces, once they are made; number 1 of its own."""
        made = self.scratch / f"{name}.made"
        script = f"mount -t tmpfs tmpfs /dev/shm && hostname {name} && : >{made} && exec sleep inf"
        own = ["--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        process = self.daemon(f"node-{name}", ["unshare", *own, "sh", "-c", script])
        wait_until(f"namespaces of {name}", made.exists)
        return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())

    def on(self, name, *command):
        """The command line that runs a command on a node."""
        spaces = ["--mount", "--uts", "--pid"]
        return ["nsenter", "--target", str(self.homes[name]), *spaces, "--", *command]

    def daemon(self, log, command, **kwargs):
        """Starts it in a session of its own, so that what it started can be ended with it."""
        with (self.scratch / f"{log}.log").open("w") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=kwargs.pop("env", outside()),
                **kwargs,
            )
        self.daemons.append(process)
        return process

    def logs(self):
        return "\n".join(f"--- {p.name}\n{p.read_text()}" for p in self.scratch.glob("*.log"))

    def close(self):
        for process in reversed(self.daemons):
            try:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(timeout=10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        # Slurm's step daemons have sessions of their own; whatever names our directory is ours.
        for pid in left_below(self.scratch):
            os.kill(pid, signal.SIGKILL)


def left_below(directory):
    """Processes that name the directory on their command line, or in their Slurm's."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(directory) in text and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


class Slurm(Cluster):
    """What a site has: a partition of two nodes, proctrack and munge."""

    def __init__(self, scratch, names=("n1", "n2")):
        super().__init__(scratch, names)
        self.conf = scratch / "slurm.conf"
        self.env = outside(SLURM_CONF=str(self.conf))
        munge = self._start_munge()
        control, *ports = free_ports(1 + len(names))
        self._configure(munge, control, dict(zip(names, ports, strict=True)))
        self.daemon("slurmctld", ["slurmctld", "-D", "-f", str(self.conf)], env=self.env)
        for name in names:
            self.daemon(
                f"slurmd-{name}",
                self.on(name, find("slurmd"), "-D", "-N", name, "-f", str(self.conf)),
                env=self.env,
            )
        try:
            wait_until("nodes idle", lambda: self.states() == {"idle": len(names)})
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def _start_munge(self):
        home = self.scratch / "munge"
        home.mkdir(mode=0o755)
        key = home / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        place = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={home / name}" for option, name in place.items()]
        self.daemon("munged", [find("munged"), "-F", "--force", f"--key-file={key}", *options])
        wait_until("munged", (home / "socket").exists)
        return home / "socket"

    def _configure(self, munge, control, ports):
        host = socket.gethostname()
        spool = self.scratch / "spool"
        spool.mkdir()
        lines = f"""
            ClusterName=test
            SlurmctldHost={host}(127.0.0.1)
            SlurmctldPort={control}
            AuthType=auth/munge
            AuthInfo=socket={munge}
            CryptoType=crypto/munge
            ProctrackType=proctrack/linuxproc
            TaskPlugin=task/none
            JobAcctGatherType=jobacct_gather/none
            MpiDefault=none
            ReturnToService=2
            SelectType=select/cons_tres
            SelectTypeParameters=CR_CPU
            SlurmUser=root
            SlurmdUser=root
            SlurmdParameters=config_overrides
            KillWait=2
            MessageTimeout=10
            StateSaveLocation={spool}/state
            SlurmdSpoolDir={spool}/%n
            SlurmctldPidFile={spool}/slurmctld.pid
            SlurmdPidFile={spool}/slurmd.%n.pid
            SlurmctldLogFile={self.scratch}/slurmctld.own.log
            SlurmdLogFile={self.scratch}/slurmd.%n.own.log
            Prolog={self.scratch}/prolog
            Epilog={self.scratch}/epilog
        """
        text = "".join(f"{line.strip()}\n" for line in lines.strip().splitlines())
        for name, port in ports.items():
            text += f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4\n"
        nodes = ",".join(ports)
        text += f"PartitionName=all Nodes={nodes} Default=YES OverSubscribe=YES State=UP\n"
        self.conf.write_text(text)
        for hook in ("prolog", "epilog"):
            self.set_hook(hook, "#!/bin/sh\n")

    def set_hook(self, hook, text):
        path = self.scratch / hook
        path.write_text(text)
        path.chmod(0o755)

    def ask(self, *command):
        got = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60)
        assert got.returncode == 0, f"{command}: {got.stderr}\n{self.logs()}"
        return got.stdout

    def states(self):
        got = subprocess.run(
            ["sinfo", "-h", "-N", "-o", "%T"], env=self.env, capture_output=True, text=True
        )
        words = got.stdout.split()
        return {w: words.count(w) for w in set(words)}

    def close(self):
        subprocess.run(["scancel", "-u", "root", "--full"], env=self.env, capture_output=True)
        super().close()


class Sshds(Cluster):
    """An sshd on each node, on a port of its own, and a configuration file that leads there."""

    def __init__(self, scratch, names=("n1", "n2")):
        super().__init__(scratch, names)
        for key in ("host", "user"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", scratch / key], check=True
            )
        (scratch / "authorized").write_bytes((scratch / "user.pub").read_bytes())
        self.config = scratch / "ssh_config"
        with self.config.open("w") as config:
            for name, port in zip(names, free_ports(len(names)), strict=True):
                self._start(name, port)
                config.write(
                    f"Host {name}\n HostName 127.0.0.1\n Port {port}\n HostKeyAlias {name}\n"
                    f" IdentityFile {scratch}/user\n UserKnownHostsFile {scratch}/known\n"
                    " StrictHostKeyChecking accept-new\n LogLevel ERROR\n"
                )

    def _start(self, name, port):
        settings = {
            "ListenAddress": f"127.0.0.1:{port}",
            "HostKey": self.scratch / "host",
            "AuthorizedKeysFile": self.scratch / "authorized",
            "PidFile": "none",
            "PermitRootLogin": "yes",
            "StrictModes": "no",
            "UsePAM": "no",
        }
        path = self.scratch / f"sshd.{name}"
        path.write_text("".join(f"{k} {v}\n" for k, v in settings.items()))
        separation = "mkdir -p /run/sshd && exec "  # a directory that Debian's service makes
        self.daemon(
            f"sshd-{name}",
            self.on(name, "sh", "-c", f"{separation} {find('sshd')} -D -e -f {path}"),
        )
        wait_until(f"sshd of {name}", lambda: answers(port))


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
