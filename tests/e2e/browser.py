"""A headless Chromium, driven over its debugging pipe: no other package is needed.

Commands are JSON that ends with a NUL byte, on file descriptors 3 (to it) and 4 (from it).
"""

import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 60


def find():
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    def __init__(self, profile):
        to_child, self.out = os.pipe()
        self.source, from_child = os.pipe()
        # The ends may be 3 or 4 themselves: they move out of the way first.
        high = [os.dup2(fd, 60 + i) for i, fd in enumerate((to_child, from_child))]

        def place():
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [
                find(),
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            preexec_fn=place,
            pass_fds=(3, 4),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (to_child, from_child, *high):
            os.close(fd)
        self.number, self.rest, self.events = 0, b"", []

    def read(self, deadline):
        while b"\0" not in self.rest:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.source], [], [], left)[0], "no answer"
            data = os.read(self.source, 1 << 20)
            assert data, "the browser has ended"
            self.rest += data
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        message |= {"sessionId": session} if session else {}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self.read(deadline)
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.source)


class Page:
    """One file, open in a tab of its own."""

    def __init__(self, browser, path, link="", *, width=1280, height=900, scripts=True, dark=False):
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.target = target
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.size(width, height)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.url = path.as_uri() + link
        self.call("Page.navigate", url=self.url)
        self.await_that("document.readyState === 'complete'")

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def size(self, width, height=900):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def js(self, expression):
        got = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def await_that(self, condition):
        end = time.monotonic() + PATIENCE_S
        while not self.js(f"Boolean({condition})"):
            assert time.monotonic() < end, condition
            time.sleep(0.02)

    def text(self, selector):
        return self.js(f"document.querySelector({json.dumps(selector)}).textContent")

    def press(self, key, code=0):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    def click(self, x, y):
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def click_on(self, selector, dx=None, dy=None):
        """In the middle of it, or so far from its upper left corner."""
        at = self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            "return [b.left, b.top, b.width, b.height]; })()"
        )
        self.click(
            at[0] + (at[2] / 2 if dx is None else dx), at[1] + (at[3] / 2 if dy is None else dy)
        )

    def said(self):
        """Errors, warnings and exceptions of this page."""
        out = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            if event["method"] == "Runtime.exceptionThrown":
                out.append(event["params"]["exceptionDetails"])
            elif event["method"] == "Runtime.consoleAPICalled":
                out.append(event["params"]["args"])
            elif event["method"] == "Log.entryAdded":
                out.append(event["params"]["entry"])
        return out

    def requests(self):
        return [
            e["params"]["request"]["url"]
            for e in self.browser.events
            if e.get("sessionId") == self.session and e["method"] == "Network.requestWillBeSent"
        ]

    def shot(self, path):
        import base64

        got = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(got["data"]))

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
