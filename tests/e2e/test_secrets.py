"""Secrets planted wherever a process keeps text: none in its dump, none in its ring."""

import os
import re
import subprocess
import sys

import zstandard

SECRET = "hunter2"  # in every planted value
KEY = "Q1w2E3r4T5y6U7i8O9p0"  # behind the prefixes of well-known keys

ARGUMENTS = [
    "--password",
    "argv hunter2",
    "--token=hunter2",
    "--db=postgres://me:hunter2@db.local/runs",
    "--header",
    "Authorization: Bearer hunter2",
    "--key=" + "AKIA" + KEY,
    "--data=/data/imagenet/shard-00017.tar",
]

SCRIPT = f"""
import sys
import fr
from fr import _fr
_fr.start()

class Client:
    def __init__(self):
        self.password, self.apiKey, self.session_cookie = "hunter2", "hunter2", b"hunter2"
        self.endpoint = "https://me:hunter2@api.local/v1"

    def connect(self):
        passphrase, pwd, pw, bearer = "hunter2", "hunter2", "hunter2", "hunter2"
        jwt, gh_pat, dsn, my_credentials = "hunter2", "hunter2", "hunter2", "hunter2"
        secret_pin, secret_ratio, db_pass = 4711471147114711, 0.4711471147, "hunter2"
        rank_hosts = ["node-1.local", "node-2.local"]
        shape, path = (32, 4096), "/data/run-3f786850e387550fdab836ed7e6dc881de23001b/x.pt"
        return inner()

def inner():
    url, query = "redis://:hunter2@10.0.0.3/0", "https://h/x?a=1&token=hunter2"
    ado, libpq = "Server=db;Password=hunter2;", "host=db password='hunter2' user=me"
    curl, header = "curl -u me:hunter2 https://h", "Authorization: Basic hunter2=="
    headers, pair = ["Accept: */*", "X-Api-Key: hunter2"], ("password", "hunter2")
    argv, command = ["--passwd", "hunter2"], "run --api-key hunter2 --lr 0.1"
    config, environment = '{{"client_secret": "hunter2"}}', "HF_TOKEN=hunter2 python x.py"
    HF, AWS, slack = "hf_{KEY}", b"AKIA{KEY}", "xoxb-1-{KEY}"
    openai, github = "use sk-proj-{KEY} here", "ghp_{KEY}"
    long = "x" * 100 + " password=" + "hunter2" * 9
    fr.note("connecting with token=hunter2")
    fr.note("x" * 190 + " password=hunter2")
    span = fr.span("login of https://me:hunter2@h/")
    span.__enter__()
    group = fr.group("default", [0, 1])
    fr.end(fr.begin(group, "all_reduce"), _fr.FAILED, "connect postgres://me:hunter2@db failed")
    print(fr.dump("because secret=hunter2"), flush=True)
    sys.stdin.readline()
    raise RuntimeError("cannot log in: password=hunter2 at https://me:hunter2@h/")

Client().connect()
"""


def test_no_secret_in_dump_or_ring(scratch):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("FR_", "TORCH_"))}
    env |= {"FR_DUMP_DIR": str(scratch / "dumps"), "FR_SHM_DIR": str(scratch / "shm")}
    (scratch / "target.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "target.py", *ARGUMENTS],
        cwd=scratch,
        env=env | {"FR_JOB": "job", "RANK": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline().strip().endswith(".fr"), process.communicate()[1]
    (ring,) = (scratch / "shm").glob("*/*.ring")
    kept = {"ring": ring.read_bytes()}
    told = process.communicate("\n", timeout=60)[1]
    dumps = sorted((scratch / "dumps").glob("*.fr"))
    assert len(dumps) == 2, told
    for path in dumps:
        kept[path.name] = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    for name, content in kept.items():
        text = re.sub(rb"[0-9a-f]{40}", b"", content)  # build IDs, which may hold any four digits
        for secret in (SECRET, KEY[4:12], "4711"):
            at = text.find(secret.encode())
            assert at < 0, (name, text[max(at - 60, 0) : at + 40])
        assert b"--data=/data/imagenet/shard-00017.tar" in content
    first = kept[dumps[0].name]
    for shown in (
        b"node-2.local",
        b"(32, 4096)",
        b"/data/run-3f786850e387550fdab836ed7e6dc881de23001b/x.pt",
        b"redis://:***@10.0.0.3/0",
        b"X-Api-Key: ***",
        b"connecting with token=***",
        b"login of https://me:***@h/",
        b"connect postgres://me:***@db failed",
        b"--token=***",
    ):
        assert shown in first or shown in kept["ring"], shown
    assert b"cannot log in: password=*** at https://me:***@h/" in kept[dumps[1].name]
    # the fr lines; Python's own traceback is the program's affair
    said = "\n".join(line for line in told.splitlines() if line.startswith("[fr"))
    assert SECRET not in said
