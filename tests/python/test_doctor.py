"""Each check of `frtrace doctor` on a machine made of files: fine on a healthy one, not on a sick
one. What is no file (addresses, free space, output of programs) lies below answers/."""

import json
import subprocess

import pytest
from test_golden import frtrace_program

PID, OTHER = "4242", "5151"
PORT = "/sys/class/infiniband/mlx5_0/ports/1"
HCA2 = "/sys/class/infiniband/mlx5_1/ports/1"
CGROUP = "/sys/fs/cgroup/job"
SMI = "/answers/nvidia-smi "
COMMON = SMI + "persistence_mode,memory.used,ecc.errors.uncorrected.volatile.total"
GIB = 1 << 30


def environ(**more):
    values = {
        "MASTER_ADDR": "n0", "MASTER_PORT": "29500", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "2",
        "NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0", "HOME": "/home/u",
        "NCCL_IB_HCA": "mlx5", "NCCL_IB_GID_INDEX": "3", "NCCL_NET_PLUGIN": "ofi",
    } | more  # fmt: skip
    return "".join(f"{k}={v}\0" for k, v in values.items() if v is not None)


def limits(memlock="unlimited", files="1048576", core="0"):
    return (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        f"Max core file size        {core}                    unlimited            bytes     \n"
        f"Max open files            {files}              1048576              files     \n"
        f"Max locked memory         {memlock}            unlimited            bytes     \n"
    )


def status(cpus="0-15", swap="0", parent="4000", uid="1000", **more):
    fields = {
        "Name": "python", "PPid": parent, "Uid": f"{uid} {uid} {uid} {uid}", "VmRSS": "4000000 kB",
        "VmSwap": f"{swap} kB", "CapEff": "0000000000000000", "Cpus_allowed_list": cpus,
    } | more  # fmt: skip
    return "".join(f"{k}:\t{v}\n" for k, v in fields.items())


def process(pid, rank):
    base = f"/proc/{pid}"
    return {
        f"{base}/environ": environ(RANK=str(rank)),
        f"{base}/limits": limits(),
        f"{base}/status": status(),
        f"{base}/cgroup": "0::/job\n",
        f"{base}/comm": "python\n",
        f"{base}/cmdline": "python\0/home/user/train.py\0",
        f"{base}/exe": ("link", "/usr/bin/python3.11"),
        f"{base}/maps": "7f00 r-xp 0 08:01 1 /env/torch/lib/libtorch_cpu.so\n"
        "7f01 r-xp 0 08:01 2 /env/nvidia/lib/libcudart.so.12\n",
        f"{base}/mountinfo": "27 1 8:1 / / rw - ext4 /dev/sda rw\n"
        "30 27 0:50 / /data rw - nfs4 filer:/data rw\n",
        f"{base}/net/tcp": "  sl  local_address rem_address   st\n"
        "   0: 00000000:733C 00000000:0000 0A 0:0 00:0 0 1000 0 77777 1\n",
        f"{base}/task/{pid}/stat": f"{pid} (python) S 1 1\n",
        f"{base}/ns/net": ("link", "net:[1]"),
        f"{base}/fd/0": "",
    }


def ranks(timeout=600, fr_timeout=60, world=16, adapt=1):
    return "".join(
        f"{pid}\t{rank}\t{rank}\t2\t{world}\tdemo\t/dumps\t{timeout}\t{fr_timeout}\t{adapt}\n"
        for rank, pid in enumerate([PID, OTHER])
    )


def learned(timeout_set=0, warn_set=0, age=7200, visits=5000, longest=2.1, dumps=0, warnings=0):
    return {
        "/answers/learned": f"timeout_is_set: {timeout_set}\nwarn_is_set: {warn_set}\nwarn_s: 10\n"
        f"age_s: {age}\nvisits: {visits}\nlongest_s: {longest}\nsite: train.py:91 barrier of dp\n"
        f"false_warnings: {warnings}\nfalse_dumps: {dumps}\n"
    }


def port(dir, state="4: ACTIVE", rate="400 Gb/sec (4X NDR)", layer="Ethernet", downed="0"):
    return {
        f"{dir}/state": state,
        f"{dir}/rate": rate,
        f"{dir}/link_layer": layer,
        f"{dir}/counters/link_downed": downed,
        f"{dir}/gid_attrs/types/3": "RoCE v2",
        f"{dir}/gid_attrs/types/1": "IB/RoCE v1",
    }


def gpu(n):
    return {
        f"/sys/bus/pci/devices/0000:0{n}:00.0/vendor": "0x10de",
        f"/sys/bus/pci/devices/0000:0{n}:00.0/class": "0x030200",
    }


def interface(name, mtu="9000"):
    return {f"/sys/class/net/{name}/operstate": "up", f"/sys/class/net/{name}/mtu": mtu}


def kmsg(text, seconds_ago=60):
    return f"4,1,{(7200 - seconds_ago) * 1_000_000},-;{text}\n"


# A node with two GPUs, RoCE and a job of 16 ranks, two of them here: every check finds its thing.
HEALTHY = (
    process(PID, 0)
    | process(OTHER, 1)
    | port(PORT)
    | port(HCA2)
    | gpu(1)
    | gpu(2)
    | interface("eth0")
    | interface("eth1")
    | {
        "/proc/self/ns/net": ("link", "net:[1]"),
        "/proc/self/status": status(),
        "/proc/4000/comm": "torchrun\n",
        "/proc/4000/fd/7": ("link", "socket:[77777]"),
        "/proc/cpuinfo": "flags : fpu tsc\n",
        "/proc/cmdline": "quiet intel_iommu=on iommu=pt\n",
        "/proc/uptime": "7200.0 1000.0\n",
        "/proc/loadavg": "1.0 1.0 1.0 2/900 77\n",
        "/proc/meminfo": "MemTotal: 1000000 kB\nMemAvailable: 900000 kB\n",
        "/proc/driver/nvidia/gpus/0000:01:00.0/information": "",
        "/proc/driver/nvidia/gpus/0000:02:00.0/information": "",
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module 570.86.15\n",
        "/proc/sys/kernel/hostname": "n1\n",
        "/proc/sys/kernel/osrelease": "6.1.0\n",
        "/proc/sys/kernel/core_pattern": "core\n",
        "/proc/sys/kernel/threads-max": "100000\n",
        "/proc/sys/kernel/pid_max": "100000\n",
        "/proc/sys/kernel/yama/ptrace_scope": "1\n",
        "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
        "/proc/sys/net/ipv4/conf/all/arp_filter": "0\n",
        "/proc/sys/net/ipv4/conf/all/arp_ignore": "0\n",
        "/proc/sys/net/ipv4/conf/eth1/arp_filter": "0\n",
        "/proc/sys/net/ipv4/conf/eth1/arp_ignore": "0\n",
        "/proc/sys/vm/zone_reclaim_mode": "0\n",
        "/sys/class/iommu/dmar0/x": "",
        "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
        f"{CGROUP}/memory.max": str(100 * GIB),
        f"{CGROUP}/memory.current": str(95 * GIB),
        f"{CGROUP}/memory.stat": f"anon 1\ninactive_file {30 * GIB}\n",
        f"{CGROUP}/memory.events": "low 0\noom 0\noom_kill 0\n",
        f"{CGROUP}/cpu.max": "max 100000\n",
        f"{CGROUP}/cpu.stat": "nr_throttled 0\n",
        f"{CGROUP}/pids.max": "10000\n",
        f"{CGROUP}/pids.current": "500\n",
        "/dev/kmsg": kmsg("eth0: renamed"),
        "/dev/nvidiactl": "",
        "/dev/nvidia-nvswitchctl": "",
        "/dev/infiniband/uverbs0": "",
        "/usr/lib/libibverbs.so.1": "",
        "/usr/lib/libnccl-net-ofi.so": "",
        "/env/torch/version.py": "__version__ = '2.13.0'\ncuda: Optional[str] = '12.8'\n",
        "/home/user/train.py": "import torch\n",
        "/run/systemd/system/x": "",
        "/run/systemd/users/0": "",
        "/etc/systemd/logind.conf": "[Login]\n#RemoveIPC=yes\nRemoveIPC=no\n",
        "/answers/ranks": ranks(),
        "/answers/addresses": "lo 127.0.0.1 8\neth0 10.0.0.1 24\neth1 10.1.0.1 24\n",
        **learned(),
        "/answers/own addresses": "n1\n10.0.0.1\n",
        "/answers/connect n0:29500": "connected",
        "/answers/statvfs:_dev_shm": f"{64 * GIB} {60 * GIB} 0 0",
        "/answers/statvfs:_dumps": f"{1000 * GIB} {500 * GIB} 1000 900",
        "/answers/writable:_dumps": "writable /dumps",
        "/answers/mount:_data": "answers",
        "/answers/adjtimex": "0 1500",
        "/answers/nft": "table inet filter {\n chain input {\n  type filter hook input priority 0;"
        " policy accept;\n }\n}\n",
        "/answers/lspci": "00:01.0 PCI bridge: x\n\t\tACSCtl: SrcValid- TransBlk-\n",
        "/answers/systemctl fabricmanager": "active\n",
        SMI + "nvlink": "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n",
        SMI + "gpu_recovery_action": "None\nNone\n",
        SMI + "remapped_rows.pending,remapped_rows.failure": "No, No\nNo, No\n",
        SMI + "clocks_event_reasons.active": "0x0000000000000001\n0x0000000000000004\n",
        SMI + "pid,used_memory": f"{PID}, 4000\n",
        COMMON: "Enabled, 4, 0\nEnabled, 4, 0\n",
        SMI + "fabric.state,fabric.status": "Completed, Success\nCompleted, Success\n",
    }
)


def env_of(**more):
    """The same in both ranks."""
    return {f"/proc/{p}/environ": environ(RANK=str(r), **more) for r, p in enumerate([PID, OTHER])}


def of_ranks(file, text):
    return {f"/proc/{pid}/{file}": text for pid in (PID, OTHER)}


# id: state, what is said, what is other than on the healthy machine (None: not there)
SICK = {
    "interface": ("bad", "eth7", env_of(NCCL_SOCKET_IFNAME="eth7")),
    "interfaces_agree": ("warn", "GLOO_SOCKET_IFNAME=eth1", env_of(GLOO_SOCKET_IFNAME="eth1")),
    "host_name": (
        "bad",
        "n1 is 127.0.1.1",
        {"/answers/own addresses": "n1\n127.0.1.1\n"} | env_of(GLOO_SOCKET_IFNAME=None),
    ),
    "firewall": (
        "warn",
        "nftables drops",
        {"/answers/nft": "chain input {\n type filter hook input priority 0; policy drop;\n"},
    ),
    "shm": ("bad", "64 MiB", {"/answers/statvfs:_dev_shm": f"{64 << 20} {50 << 20} 0 0"}),
    "memlock": ("bad", "8 MiB", of_ranks("limits", limits(memlock="8388608"))),
    "open_files": (
        "bad",
        "1024, 1 in use; 1024 ranks",
        of_ranks("limits", limits(files="1024")) | {"/answers/ranks": ranks(world=1024)},
    ),
    "acs": (
        "bad",
        "1 bridges (00:01.0",
        {"/answers/lspci": "00:01.0 PCI bridge: x\n\t\tACSCtl: SrcValid+ TransBlk-\n"},
    ),
    "iommu": ("warn", "not in passthrough", {"/proc/cmdline": "quiet intel_iommu=on\n"}),
    "xid": (
        "bad",
        "1 min ago: NVRM: Xid (PCI:0000:01:00): 79",
        {"/dev/kmsg": kmsg("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.")},
    ),
    "recovery": ("bad", "GPU 1: Reset", {SMI + "gpu_recovery_action": "None\nReset\n"}),
    "row_remap": (
        "bad",
        "pending: GPU 0",
        {SMI + "remapped_rows.pending,remapped_rows.failure": "Yes, No\nNo, No\n"},
    ),
    "ecc": ("bad", "GPU 1: 2", {COMMON: "Enabled, 4, 0\nEnabled, 4, 2\n"}),
    "gpu_count": (
        "bad",
        "2 on the PCI bus, 1 known",
        {"/proc/driver/nvidia/gpus/0000:02:00.0/information": None},
    ),
    "nvlink": ("bad", "GPU 0 Link 1", {SMI + "nvlink": "GPU 0: x\n Link 1: <inactive>\n"}),
    "fabric_manager": (
        "bad",
        "GPU 0: In Progress",
        {SMI + "fabric.state,fabric.status": "In Progress, N/A\n"},
    ),
    "throttling": (
        "warn",
        "GPU 1: too hot",
        {SMI + "clocks_event_reasons.active": "0x0000000000000000\n0x0000000000000040\n"},
    ),
    "gpu_empty": (
        "warn",
        "process 999 (old)",
        {
            SMI + "pid,used_memory": "999, 4000\n",
            "/proc/999/status": status(Name="old", parent="1"),
        },
    ),
    "persistence": ("warn", "off: GPU 0", {COMMON: "Disabled, 4, 0\nEnabled, 4, 0\n"}),
    "ports": ("bad", "mlx5_1 DOWN", port(HCA2, state="1: DOWN")),
    "link_flaps": ("warn", "mlx5_1 3 times", port(HCA2, downed="3")),
    "gid": ("bad", "IB/RoCE v1", env_of(NCCL_IB_GID_INDEX="1")),
    "extra_hca": ("warn", "mlx5_1 (25 Gb/s)", port(HCA2, rate="25 Gb/sec (1X EDR)")),
    "gpudirect": (
        "warn",
        "closed kernel module",
        {"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module 570.1\n"},
    ),
    "userland": ("bad", "no uverbs", {"/dev/infiniband/uverbs0": None}),
    "versions": (
        "bad",
        "torch: 2.12.0 of rank 1, 2.13.0 of rank 0",
        {
            f"/proc/{OTHER}/maps": "7f00 r-xp 0 08:01 1 /old/torch/lib/libtorch_cpu.so\n",
            "/old/torch/version.py": "__version__ = '2.12.0'\n",
        },
    ),
    "environment": (
        "warn",
        "NCCL_IB_TIMEOUT: unset of rank 0, 22 of rank 1",
        {f"/proc/{OTHER}/environ": environ(NCCL_IB_TIMEOUT="22")},
    ),
    "debugging": ("warn", "NCCL_P2P_DISABLE=1", env_of(NCCL_P2P_DISABLE="1")),
    "watchdogs": (
        "bad",
        "FR_TIMEOUT_S is 900 s and FR_ADAPT 0, torch ends the job after 600 s",
        {"/answers/ranks": ranks(fr_timeout=900, adapt=0)},
    ),
    "deadlines": (
        "warn",
        "FR_TIMEOUT_S is 60 s: 2 dumps at what went on; train.py:91 barrier of dp took 90.0 s",
        learned(timeout_set=1, longest=90, dumps=2),
    ),
    "plugins": ("bad", "NCCL_NET_PLUGIN=ofi", {"/usr/lib/libnccl-net-ofi.so": None}),
    "master_port": (
        "bad",
        "process 6000 (python) listens at port 29500",
        {
            "/proc/4000/fd/7": None,
            "/proc/6000/fd/3": ("link", "socket:[77777]"),
            "/proc/6000/comm": "python\n",
        },
    ),
    "master_reached": (
        "bad",
        "n0:29500: Connection refused",
        {"/answers/connect n0:29500": "Connection refused"},
    ),
    "clock_source": (
        "warn",
        "hpet",
        {"/sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n"},
    ),
    "ntp": ("warn", "not synchronised", {"/answers/adjtimex": "5 16000000"}),
    "memory": ("bad", "has ended 2 processes", {f"{CGROUP}/memory.events": "oom_kill 2\n"}),
    "processors": ("bad", "1 CPU for 2 ranks", of_ranks("status", status(cpus="3"))),
    "swap": ("warn", "195 MiB", of_ranks("status", status(swap="100000"))),
    "dump_dir": (
        "bad",
        "/dumps is not writable",
        {"/answers/writable:_dumps": "not writable /dumps"},
    ),
    "mounts": ("bad", "/data (nfs4 from filer:/data)", {"/answers/mount:_data": None}),
    "stuck_threads": (
        "bad",
        "1: process 4242 thread 4243 in rpc_wait",
        {
            f"/proc/{PID}/task/4243/stat": "4243 (pt_data) D 1 1\n",
            f"/proc/{PID}/task/4243/wchan": "rpc_wait",
        },
    ),
    "ptrace": ("warn", "ptrace_scope 3", {"/proc/sys/kernel/yama/ptrace_scope": "3\n"}),
    "core_dumps": (
        "bad",
        "a core of 3.8 GiB goes to /cores/core",
        of_ranks("limits", limits(core="unlimited"))
        | {
            "/proc/sys/kernel/core_pattern": "/cores/core\n",
            "/answers/statvfs:_cores_": f"{GIB} {GIB} 0 0",
        },
    ),
    "pids": ("bad", "9500 of 10000", {f"{CGROUP}/pids.current": "9500\n"}),
    "port_range": (
        "bad",
        "5001 ports",
        {
            "/proc/sys/net/ipv4/ip_local_port_range": "60000\t65000\n",
            "/answers/ranks": ranks(world=2048),
        },
    ),
    "mtu": (
        "bad",
        "eth0 has 9000, eth5 below it 1500",
        {"/sys/class/net/eth0/lower_eth5/mtu": "1500"},
    ),
    "subnets": (
        "warn",
        "eth0 and eth1 are both in the network",
        {"/answers/addresses": "eth0 10.0.0.1 24\neth1 10.0.0.2 24\n"},
    ),
    "remove_ipc": ("warn", "its default is yes", {"/etc/systemd/logind.conf": "#RemoveIPC=yes\n"}),
    "restart": ("warn", "booted 5 min ago", {"/proc/uptime": "300.0 1.0\n", "/dev/kmsg": ""}),
}


def machine(root, files):
    for path, content in files.items():
        file = root / path.lstrip("/")
        if content is None:
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, tuple):
            file.symlink_to(content[1])
        else:
            file.write_text(content)
    return root


def doctor(*args):
    return subprocess.run(
        [frtrace_program(), "doctor", *map(str, args)], capture_output=True, text=True, timeout=60
    )


def examined(root, *args):
    got = doctor("--root", root, "--job", "demo", "--json", *args)
    assert got.stdout, got.stderr
    report = json.loads(got.stdout)
    assert report["schema"] == "frtrace.doctor/1"
    return {c["id"]: c for c in report["checks"]}, got


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return examined(machine(tmp_path_factory.mktemp("healthy"), HEALTHY))


def test_every_check_is_fine_on_the_healthy_machine_and_looked_at_something(healthy):
    checks, got = healthy
    assert {i: c["value"] for i, c in checks.items() if c["state"] != "ok" or not c["here"]} == {}
    assert got.returncode == 0


def test_every_check_has_a_machine_that_it_finds_sick(healthy):
    assert set(SICK) == set(healthy[0])
    assert len(SICK) == 49


@pytest.mark.parametrize("check", SICK)
def test_a_sick_machine(check, tmp_path, healthy):
    state, says, files = SICK[check]
    checks, got = examined(machine(tmp_path, HEALTHY | files))
    found = checks[check]
    assert (found["state"], says in found["value"]) == (state, True), found
    assert found["why"] and found["remedy"]
    others = {i for i, c in checks.items() if c["state"] != "ok"} - {check}
    assert not others, {i: checks[i] for i in others}
    assert got.returncode == (1 if state == "bad" else 0)


def lines(*args):
    got = doctor(*args)
    shown = got.stdout.splitlines()
    assert all(len(line) <= 120 for line in shown) and len(shown) <= 24, got.stdout
    return shown, got.returncode


def test_the_worst_comes_first_and_fits_on_a_screen(tmp_path):
    everything = {}
    for state in ("warn", "bad"):
        for its, _, files in SICK.values():
            everything |= files if its == state else {}
    shown, status = lines("--root", machine(tmp_path, HEALTHY | everything), "--job", "demo")
    assert status == 1
    words = [line.split()[0] for line in shown[1:]]
    assert words[0] == "BAD" and words[-2] == "and" and " more: -v" in shown[-2]
    full = doctor("--root", tmp_path, "--job", "demo", "-v").stdout
    told = [line for line in full.splitlines() if line.startswith(("BAD ", "WARN "))]
    assert len(told) > 30 and full.count("Remedy:") == len(told)


def test_a_check_that_matters_and_is_unknown(tmp_path):
    files = HEALTHY | {"/dev/kmsg": None, SMI + "gpu_recovery_action": None, "/answers/nft": None}
    shown, status = lines("--root", machine(tmp_path, files), "--job", "demo")
    assert status == 4
    assert shown[1].startswith("unknown: firewall (needs root") and "Xid" in shown[1]
    assert shown[-1].startswith("46 checks fine")


def test_a_machine_without_anything_and_without_a_job(tmp_path):
    got = doctor("--root", machine(tmp_path, {}), "--json")
    checks = {c["id"]: c for c in json.loads(got.stdout)["checks"]}
    assert checks["shm"]["state"] == "bad"  # there is none
    for absent in ("xid", "ports", "nvlink", "master_port"):
        assert checks[absent]["state"] == "ok" and not checks[absent]["here"]


@pytest.mark.parametrize(
    ("ranks_say", "says"),
    [
        (
            ranks(),
            "fr dumps after 60 s, at call sites that took longer later, 540 s at most; "
            "torch ends the job after 600 s",
        ),
        (
            ranks(fr_timeout=900),
            "fr dumps after 540 s (FR_TIMEOUT_S is 900 s); torch ends the job after 600 s",
        ),
        (ranks(timeout=0), "fr dumps after 60 s, at call sites that took longer later"),
        (ranks(adapt=0), "fr dumps after 60 s; torch ends the job after 600 s"),
    ],
)
def test_when_a_dump_comes_beside_torchs_own_timeout(tmp_path, ranks_say, says):
    checks, _ = examined(machine(tmp_path, HEALTHY | {"/answers/ranks": ranks_say}))
    assert (checks["watchdogs"]["state"], checks["watchdogs"]["value"]) == ("ok", says)


TOOK = "train.py:91 barrier of dp took"


@pytest.mark.parametrize(
    ("ranks_say", "files", "says"),
    [
        # shorter than what went on
        (ranks(adapt=0), learned(longest=0, dumps=3), "and FR_ADAPT 0: 3 dumps at what went on"),
        (ranks(), learned(warn_set=1, longest=14), f"FR_WARN_S is 10 s: {TOOK} 14.0 s"),
        (ranks(), learned(timeout_set=1, longest=60), f"FR_TIMEOUT_S is 60 s: {TOOK} 60.0 s"),
        # twice what is learned, or more; torch's timeout may be sooner
        (
            ranks(fr_timeout=1800, timeout=0),
            learned(timeout_set=1),
            f"FR_TIMEOUT_S is 1800 s: in 2.0 h, {TOOK} 2.1 s at most",
        ),
        (ranks(fr_timeout=1800), learned(timeout_set=1, longest=28), None),
        (ranks(fr_timeout=1800), learned(timeout_set=1, longest=26), f"{TOOK} 26.0 s at most"),
        (ranks(fr_timeout=110), learned(timeout_set=1), None),
        # fr's own, too little time, too few operations
        (ranks(), learned(longest=300, dumps=1, warnings=1), None),
        (ranks(fr_timeout=1800), learned(timeout_set=1, age=3000), None),
        (ranks(fr_timeout=1800), learned(timeout_set=1, visits=900), None),
        (ranks(fr_timeout=1800), {"/answers/learned": None}, None),
        (ranks(adapt=0), learned(timeout_set=1, visits=0, longest=0), None),
    ],
)
def test_what_is_set_beside_what_the_job_learned(tmp_path, ranks_say, files, says):
    root = machine(tmp_path, HEALTHY | {"/answers/ranks": ranks_say} | files)
    found = examined(root)[0]["deadlines"]
    assert found["state"] == ("warn" if says else "ok"), found
    assert says is None or (says in found["value"] and found["why"] and found["remedy"]), found


def test_a_cuda_job_without_a_gpu(tmp_path):
    none = {f: None for f in HEALTHY if "nvidia" in f and not f.startswith(SMI)}
    none |= {f: None for f in HEALTHY if f.startswith("/sys/bus/pci")}
    checks, _ = examined(machine(tmp_path / "any", HEALTHY | none))
    assert checks["gpu_count"]["state"] == "warn", checks["gpu_count"]
    asked = none | env_of(CUDA_VISIBLE_DEVICES="0,1")
    checks, got = examined(machine(tmp_path / "asked", HEALTHY | asked))
    assert got.returncode == 1
    assert checks["gpu_count"]["value"] == "CUDA_VISIBLE_DEVICES=0,1, and no NVIDIA device"


def test_a_container_that_is_given_two_of_three_gpus(tmp_path):
    checks, _ = examined(machine(tmp_path / "all", HEALTHY | gpu(3)))
    assert checks["gpu_count"]["value"] == "3 on the PCI bus, 2 known to the driver"
    own = {"/proc/self/mountinfo": "80 70 0:60 / /proc/driver/nvidia rw - tmpfs tmpfs rw\n"}
    checks, _ = examined(machine(tmp_path / "some", HEALTHY | gpu(3) | own))
    assert (checks["gpu_count"]["state"], checks["gpu_count"]["value"]) == ("ok", "2")


def test_a_driver_that_does_not_answer(tmp_path):
    """What nvidia-smi says when it fails is the finding."""
    said = "Failed to initialize NVML: Driver/library version mismatch"
    files = HEALTHY | {COMMON: None, COMMON.replace("/nvidia", "/failed nvidia"): said}
    checks, _ = examined(machine(tmp_path, files))
    assert (checks["gpu_count"]["state"], checks["gpu_count"]["value"]) == ("bad", said)
    assert checks["ecc"]["state"] == "unknown"


@pytest.mark.parametrize(
    "spoil", [lambda text: text[: len(text) // 2], lambda text: "", lambda text: ":-,=;)\t\x1b" * 9]
)
def test_files_of_another_form_end_no_check(spoil, tmp_path):
    spoilt = {f: c if isinstance(c, tuple) else spoil(c) for f, c in HEALTHY.items()}
    spoilt["/answers/ranks"] = HEALTHY["/answers/ranks"]
    checks, _ = examined(machine(tmp_path, spoilt))
    assert len(checks) == 49
    assert not [i for i, c in checks.items() if "come to an end" in c["value"]], checks
    assert "\x1b" not in doctor("--root", tmp_path, "--job", "demo", "-v").stdout


def test_usage(tmp_path):
    assert doctor("--nonsense").returncode == 2
    got = doctor("--job", "no-such-job")
    assert got.returncode == 3 and "no running process of a job no-such-job" in got.stderr
    (tmp_path / "other.json").write_text("{}")
    assert doctor(tmp_path / "other.json").returncode == 3


def test_what_differs_between_nodes_is_a_finding(tmp_path):
    other = {
        "/proc/sys/kernel/hostname": "n2\n",
        "/sys/class/net/eth0/mtu": "1500",
        "/env/torch/version.py": "__version__ = '2.12.0'\n",
        "/answers/statvfs:_dev_shm": f"{64 << 20} {50 << 20} 0 0",
    }
    files = []
    for name, more in (("a", {}), ("b", {"/proc/sys/kernel/hostname": "n3\n"}), ("c", other)):
        root = tmp_path / name
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(examined(machine(root, HEALTHY | more))[1].stdout)
    same = doctor(*files[:2])
    assert same.returncode == 0 and "BAD" not in same.stdout, same.stdout
    shown, status = lines(*files)
    assert status == 1
    text = "\n".join(shown)
    assert "BAD   MTU differs: eth0: 9000 on n1, n3; 1500 on n2" in text
    assert "torch: 2.13.0 on n1, n3; 2.12.0 on n2" in text
    assert "BAD   /dev/shm (n2): 50 MiB free of 64 MiB" in text
    report = json.loads(doctor("--json", *files).stdout)
    assert report["nodes"] == ["n1", "n3", "n2"] and report["status"] == 1
    [mtu] = [c for c in report["checks"] if c["id"] == "mtu"]
    assert mtu["values"] == {"9000": ["n1", "n3"], "1500": ["n2"]}
