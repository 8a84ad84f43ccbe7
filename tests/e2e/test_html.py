"""The page of `frtrace -o FILE.html` in a real browser: what it says, asks for and does."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import browser
import pytest
from conftest import FRTRACE, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools" / "hangsim"))
import score  # noqa: E402

HANGSIM = os.environ.get("FR_HANGSIM") or score.default_tool("hangsim")
pytestmark = [
    pytest.mark.skipif(
        browser.find() is None,
        reason="no browser: apt-get install chromium-headless-shell, or chromium",
    ),
    pytest.mark.skipif(not Path(HANGSIM).is_file(), reason="hangsim is not built"),
]

# Four ranks with plain variables in their stacks; rank 2 has not issued the last operation.
SCRIPT = """
import sys
import fr
from fr import _fr
_fr.start()

def step(group, rank):
    learning_rate = "variable-4711"
    for n in range(12):
        fr.end(fr.begin(group, "all_reduce"))
    if rank != 2:
        fr.begin(group, "all_reduce")
    sys.stdin.readline()
    print(fr.dump("timeout"), flush=True)
    sys.stdin.readline()

step(fr.group("default", range(4), desc="default_pg"), int(sys.argv[1]))
"""

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\"&"
HOSTILE += "\u202e\u0000\u001b[31m" + "long " * 2000


def render(out, *arguments):
    done = subprocess.run(
        [FRTRACE, "-o", out, *map(str, arguments)],
        env=os.environ | {"COLUMNS": "120"},  # of text; a page has no terminal's width
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1, 4) and out.exists(), done
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("html")


@pytest.fixture(scope="module")
def chromium(folder):
    one = browser.Browser(folder / "profile")
    yield one
    one.close()


@pytest.fixture
def show(chromium):
    """show(path, link, ...) -> the page, once it is whole. At the end it has said nothing, and
    asked for nothing but itself."""
    pages = []

    def get(path, link="", **how):
        page = browser.Page(chromium, path, link, **how)
        if how.get("scripts", True):
            page.await_that("document.documentElement.dataset.ready")
        pages.append(page)
        return page

    yield get
    for page in pages:
        page.js("0")
        assert page.said() == []
        assert {url.split("#")[0] for url in page.requests()} == {page.url.split("#")[0]}
        page.close()


@pytest.fixture(scope="module")
def large(made_once):
    """1,024 ranks of a 3-D mesh; one left an all_reduce out."""

    def make(home):
        command = [HANGSIM, "--class", "skip", "--job", "3d", "--world", "1024", "--seed", "7"]
        subprocess.run([*command, "--format", "fr", "-o", home / "dumps"], check=True)
        render(home / "page.html", next(home.rglob("fr")))

    home = made_once("html-large", make)
    return next(home.rglob("fr")), home / "page.html"


@pytest.fixture(scope="module")
def recorded(folder):
    """Dumps of real processes, which go on."""
    (folder / "script.py").write_text(SCRIPT)
    dumps = folder / "dumps"
    env = {k: v for k, v in os.environ.items() if not k.startswith("FR_")}
    env |= {"FR_DUMP_DIR": str(dumps), "FR_SHM_DIR": str(folder), "FR_JOB": "j", "WORLD_SIZE": "4"}
    with (folder / "log").open("w") as log:
        ranks = [
            subprocess.Popen(
                [sys.executable, str(folder / "script.py"), str(r)],
                env=env | {"RANK": str(r), "FR_WARN_S": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            for r in range(4)
        ]
    wait_until("a warning", lambda: "no progress" in (folder / "log").read_text())
    for r in ranks:
        r.stdin.write("dump\n")
        r.stdin.flush()
        assert r.stdout.readline().strip().endswith(".fr")
    yield dumps
    for r in ranks:
        r.kill()
        r.communicate()


def test_a_large_page_is_small_fast_and_says_what_the_text_says(large, show, folder):
    dumps, path = large
    assert path.stat().st_size < 5_000_000
    page = show(path)
    ready_ms = int(page.js("document.documentElement.dataset.ready"))
    assert ready_ms < 2000
    text = render(folder / "large.txt", dumps).read_text()
    assert page.text("#text") == re.sub(r" \([^()]* ago\)", "", text)
    assert json.loads(page.text("#report")) == json.loads(
        render(folder / "large.json", dumps).read_text()
    )
    assert page.text("h1") == page.js("REPORT.verdict.summary")
    for section in ("ranks", "frontiers", "history", "waits", "timeline", "stacks", "stragglers",
                    "devices", "input"):  # fmt: skip
        assert page.js(f"document.getElementById('{section}').innerText.length") > 20, section


def test_the_verdict_needs_no_scripts(large, show):
    page = show(large[1], scripts=False)
    assert "rank 106 skipped all_reduce #10" in page.text("h1")
    assert page.js("document.querySelector('#verdict').innerText.includes('optimizer.py:57')")
    assert page.js("document.querySelector('noscript p').innerText.includes('Scripts are off')")


def cell(page, rank):
    """Where a rank's cell is on the canvas, by the layout that draws it."""
    width = "document.querySelector('#ranks canvas').clientWidth"
    return page.js(
        f"(() => {{ const p = layOut(hostBlocks(), {width});"
        f"const c = p.cells.find((c) => c.rank === {rank});"
        "return [c.x + p.size / 2, c.y + p.size / 2]; })()"
    )


def test_clicks_keys_and_links_select_a_rank_and_a_group(large, show):
    page = show(large[1], height=1600)
    page.click_on("#ranks canvas", *cell(page, 106))
    assert page.js("location.hash") == "#rank=106"
    assert page.text("#rank-line").startswith("rank 106, host node013")
    assert page.text("#rank-card h3").startswith("rank 106")
    page.js("document.querySelector('#ranks canvas').focus()")
    page.press("ArrowRight", 39)
    page.press("Enter", 13)
    assert page.js("location.hash") == "#rank=107"
    page.press("Escape", 27)
    assert page.js("location.hash") == ""
    page.click_on("#frontiers button.link")
    assert page.js("location.hash").startswith("#group=")
    page.click_on(".hist td button.odd")
    assert "#10: never issued" in page.text("#history .said")

    page = show(large[1], "#rank=42&group=mesh_dp")
    assert page.text("#rank-card h3").startswith("rank 42")
    assert page.js("report().groups[view.group].desc") == "mesh_dp"
    assert page.js("document.querySelector('#history').getBoundingClientRect().top < 900")


def test_a_filter_takes_ranks_and_hosts(large, show):
    page = show(large[1])
    page.js(
        "(() => { const f = document.getElementById('filter'); f.value = '3,17-20,node013';"
        "f.dispatchEvent(new Event('input')); })()"
    )
    assert page.js("[...view.filter].sort((a, b) => a - b).join()") == (
        "3,17,18,19,20,104,105,106,107,108,109,110,111"
    )


@pytest.mark.parametrize("width", (360, 1280))
def test_nothing_is_wider_than_the_window(large, recorded, show, folder, width):
    for path in (large[1], render(folder / "recorded.html", recorded)):
        page = show(path, width=width)
        page.js("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        assert page.js("document.documentElement.scrollWidth") <= width
        # Else what cannot be reached is cut: it stands in something that scrolls.
        wide = page.js(
            "[...document.querySelectorAll('main *')].filter((e) => !e.closest('.scroll') &&"
            "e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 90))"
        )
        assert wide == []


def test_stacks_are_searched_and_variables_left_out_on_request(recorded, show, folder):
    path = render(folder / "with.html", recorded)
    page = show(path)
    assert "variable-4711" in page.text("#stacks")
    page.js(
        "(() => { const f = document.getElementById('stack-search'); f.value = 'no such';"
        "f.dispatchEvent(new Event('input')); })()"
    )
    assert "Nothing of that kind" in page.text("#stacks .tree")
    page.js("document.getElementById('stack-search').value = 'STEP'")
    page.click_on("#only-blamed")  # rank 2, which waits in nothing
    assert page.text("#stacks .tree mark") == "step"
    assert "! rank 2" in page.text("#stacks .tree")
    assert "all_reduce #13" not in page.text("#stacks .tree")
    page.click_on("#only-blamed")
    assert page.text("#stacks .tree mark") == "step"
    assert "all_reduce #13" in page.text("#stacks .tree")
    page.js("select({rank: 2})")
    assert "all_reduce #13" not in page.text("#stacks .tree")
    assert "variable-4711" not in render(folder / "no.html", "--no-locals", recorded).read_text()


def test_the_timeline_marks_warnings_and_dumps(recorded, show, folder):
    page = show(render(folder / "marks.html", recorded))
    rows = page.js("data().waits.timeline.rows")
    alone, waiting = ([r for r in rows if (r["rank"] == 2) == is_2] for is_2 in (True, False))
    assert waiting and all(0 < r["ops"][-1][0] < r["warn"] < r["dump"] for r in waiting)
    assert all(r["warn"] == -1 for r in alone)
    assert "△ warned" in page.text("#timeline .note") and "▼ evidence" in page.text(
        "#timeline .note"
    )
    page.js("document.querySelectorAll('#timeline details').forEach((d) => { d.open = true; })")
    page.await_that("document.querySelectorAll('#timeline table').length === 2")
    assert "△ warned: no progress" in page.text("#timeline details:last-of-type table")
    page.js("[...document.querySelectorAll('#timeline button')][1].click()")  # all of the time
    x = page.js(
        "(() => { const w = document.querySelector('#timeline canvas').clientWidth - 150;"
        "const [from, to] = timeAll(data().waits.timeline.rows);"
        f"return 150 + ({waiting[0]['warn']} - from) / (to - from) * w; }})()"
    )
    page.click_on("#timeline canvas", x, 22 + 26 * rows.index(waiting[0]) + 13)
    assert "warned: no progress, after" in page.text("#timeline .said")
    drawn = "document.querySelector('#timeline canvas').toDataURL()"
    seen = [page.js(drawn)]
    page.js("document.querySelector('#timeline canvas').focus()")
    for key, code in (("+", 187), ("ArrowRight", 39), ("-", 189)):
        page.press(key, code)
        seen.append(page.js(drawn))
    assert len(set(seen)) == 4


def simulated(folder, kind, seed):
    """A page of a simulated job, and what --json says of it."""
    home = folder / f"{kind}-{seed}"
    command = [HANGSIM, "--class", kind, "--seed", str(seed), "--format", "fr", "-o", home]
    subprocess.run(list(map(str, command)), check=True)
    dumps = next(home.rglob("fr"))
    report = json.loads(render(home / "report.json", dumps).read_text())
    return render(home / "page.html", dumps), report


def test_stragglers_are_told_as_the_report_tells_them(show, folder, large):
    path, report = simulated(folder, "slow_drifting", 6)
    assert report["verdict"]["kind"] == "slow" and report["stragglers"]
    page = show(path)
    rows = page.js(
        "[...document.querySelectorAll('#late tbody tr')].map((r) => [...r.children].map("
        "(c) => c.textContent))"
    )
    told = [
        (s, place) for s in report["stragglers"] for place in (s, *s["also"])
    ]  # the call site where it loses most, and others
    assert any(s["also"] for s in report["stragglers"])
    for row, (whole, late) in zip(rows, told, strict=True):
        assert row[1].startswith(f"{late['op']} of {late['desc']} at ")
        assert row[2:4] == [f"{late['last']} of {late['of']}", f"{late['late']} of {late['of']}"]
        if late is whole:
            assert row[0].startswith(f"rank {late['rank']} ({late['host']})")
            assert str(late["since_step"] or late["since_seq"]) in row[7]
            assert late["cause"] in row[8]
    changes = [c for s in report["stragglers"] for c in s["step_time_changes"]]
    items = page.js("[...document.querySelectorAll('#late li')].map((l) => l.textContent)")
    assert changes and len(items) == len(changes)
    page = show(large[1])
    assert "Something is stuck" in page.text("#stragglers > p")


def test_who_came_with_another_operation_is_said_to(show, folder):
    path, report = simulated(folder, "branch", 1)
    assert report["verdict"]["kind"] == "mismatch"
    (rank,) = report["verdict"]["ranks"]
    page = show(path)
    page.js("document.querySelectorAll('#waits details').forEach((d) => { d.open = true; })")
    page.await_that("document.querySelectorAll('#waits li').length")
    said = page.js("[...document.querySelectorAll('#waits li')].map((l) => l.textContent)")
    assert any(line.startswith(f"rank {rank} issued something else as ") for line in said), said
    assert page.js("document.querySelectorAll('#waits .column').length") >= 2
    # every line between two boxes is within the drawing
    assert page.js(
        "[...document.querySelectorAll('#waits path')].every((p) => { const a = p.getBBox();"
        "return a.x >= 0 && a.x + a.width <= p.ownerSVGElement.clientWidth; })"
    )


def test_sends_of_a_pipeline_are_one_box(show, folder):
    path, _ = simulated(folder, "two_faults", 3)
    page = show(path)
    boxes = page.js("[...document.querySelectorAll('#waits .slot')].map((b) => b.textContent)")
    assert len([b for b in boxes if b.startswith("send #13-24 of mesh_pp (8 groups)")]) == 1, boxes
    assert not [b for b in boxes if b.startswith("send #") and "-" not in b.split(" of ")[0]]
    # a rank does not both wait in an operation and elsewhere before it
    lines = page.js(
        "(() => { const g = data().waits.graph; return g.edges.filter(([c, s, r]) => r === 0 &&"
        "g.slots[s].of === 1 && g.edges.some((e) => e[0] === c && e[1] === s && e[2] === 4)); })()"
    )
    assert lines == []


def test_the_policy_forbids_requests_and_scripts(recorded, chromium, folder):
    page = browser.Page(chromium, render(folder / "policy.html", recorded))
    page.await_that("document.documentElement.dataset.ready")
    tried = {
        "connect-src": "fetch('https://example.invalid/x').catch(() => 0)",
        "img-src": "new Image().src = 'https://example.invalid/x.png'",
        "script-src-elem": "document.body.append(Object.assign(document.createElement('script'),"
        "{textContent: 'window.hacked = 1'}))",
    }
    for directive, attempt in tried.items():
        forbidden = page.js(
            "new Promise((ok) => { addEventListener('securitypolicyviolation', (e) =>"
            f"ok(e.violatedDirective), {{once: true}}); {attempt}; }})"
        )
        assert forbidden == directive
    assert page.js("window.hacked") is None
    page.close()


def test_hostile_names_stay_text(show, folder):
    dumps = folder / "hostile"
    dumps.mkdir()
    for rank in range(3):
        entries = [
            {
                "process_group": ["0", HOSTILE],
                "profiling_name": f"nccl:all_reduce{HOSTILE}",
                "collective_seq_id": n,
                "state": "scheduled" if n == 4 else "completed",
                "frames": [{"name": HOSTILE, "filename": f"/home/{HOSTILE}.py", "line": 7}],
                "input_sizes": [[4]],
                "output_sizes": [[4]],
                "input_dtypes": ["Float"],
                "output_dtypes": ["Float"],
                "time_created_ns": 1_700_000_000_000_000_000 + n * 1000,
                "record_id": n,
                "is_p2p": False,
            }
            for n in range(1, 4 if rank == 2 else 5)
        ]
        dump = {
            "version": "2.10",
            "pg_config": {"0": {"name": "0", "desc": HOSTILE, "ranks": "[0, 1, 2]"}},
            "pg_status": {},
            "entries": entries,
        }
        (dumps / f"trace_{rank}.json").write_text(json.dumps(dump))
    page = show(render(folder / "hostile.html", dumps))
    assert page.js("window.hacked") is None
    assert page.js("document.images.length") == 0
    assert page.js("document.scripts.length") == 3
    assert "<img src=x" in page.js("document.body.innerText")
    visible = page.js("document.body.innerText")
    assert not re.search("[\u202e\u0000\u001b]", visible)


def test_dark_and_print(recorded, show, folder):
    path = render(folder / "recorded.html", recorded)
    page = show(path, dark=True)
    back = "getComputedStyle(document.body).backgroundColor"
    # light on paper, plots too
    drawn = "document.querySelector('#ranks canvas').toDataURL()"
    dark = page.js(drawn)
    page.js("dispatchEvent(new Event('beforeprint'))")
    assert page.js(drawn) != dark
    page.js("dispatchEvent(new Event('afterprint'))")
    assert page.js(drawn) == dark
    scheme = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.call("Emulation.setEmulatedMedia", media="print", features=scheme)
    assert page.js(back) == "rgb(255, 255, 255)"
    page.call("Emulation.setEmulatedMedia", media="", features=scheme)
    assert page.js(back) == "rgb(17, 22, 27)"
    page.click_on("#theme")
    assert page.js(back) == "rgb(255, 255, 255)"
    assert len(page.call("Page.printToPDF")["data"]) > 10_000


def test_what_cannot_be_written_is_said(recorded, folder):
    done = subprocess.run(
        [FRTRACE, "-o", folder / "none" / "x.html", recorded], capture_output=True, text=True
    )
    assert done.returncode == 2 and "cannot write" in done.stderr
