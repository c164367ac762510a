"""A headless browser that tests drive: Chromium by its DevTools protocol, on two pipes."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--remote-debugging-pipe",
]
PATIENCE = 120.0
"""Seconds: other work may keep the machine busy."""
_LINK = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3])
os.dup2(read, 3), os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The browser reads commands from descriptor 3, and writes to 4."""


class Tab:
    """A page that is open.

    Attributes:
        log: what the console has said, and exceptions.
        requests: addresses that were asked for.
    """

    def __init__(self, read: int, write: int):
        self._read, self._write, self._left = read, write, b""
        self._count, self._session = 0, ""
        self.log: list[str] = []
        self.requests: list[str] = []
        (target,) = self.send("Target.createTarget", url="about:blank").values()
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = session["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """A command and its answer; events before it are noted."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._note(answer)

    def open(self, page: Path, width: int = 1000, dark: bool = False) -> None:
        """Load a page from a file, in a window that wide."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=theme)
        self.requests.clear()
        self.send("Page.navigate", url=page.as_uri())
        self.wait("document.readyState === 'complete'")

    def run(self, expression: str) -> Any:
        """The value of an expression of JavaScript, which may be a promise."""
        given = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        answer = self.send("Runtime.evaluate", **given)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until an expression is true."""
        until = time.monotonic() + PATIENCE
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < until, (
                condition,
                self.log,
                self.run("document.body.innerText"),
            )
            time.sleep(0.02)

    def choose(self, selector: str, *files: Path) -> None:
        """Give files to an input element, as a reader does who chooses them."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(f) for f in files])

    def mouse(self, points: Sequence[tuple[float, float]]) -> None:
        """Draw a line with the button pressed."""
        kinds = ["mousePressed", *["mouseMoved"] * (len(points) - 2), "mouseReleased"]
        for kind, (x, y) in zip(kinds, points, strict=True):
            pressed = {"button": "left", "buttons": 1, "clickCount": 1}
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def picture(self, path: Path) -> None:
        """Save what is seen, for people."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def arrays(self, expression: str) -> list[np.ndarray[Any, Any]]:
        """Outputs of a program of a page, from an expression for the list of them."""
        text = (
            f"({expression}).map(({{dtype, shape, bytes}}) => ({{dtype, shape, "
            "text: Array.from(bytes, (b) => b.toString(16).padStart(2, '0')).join('')}))"
        )
        return [
            np.frombuffer(bytes.fromhex(o["text"]), o["dtype"]).reshape(o["shape"])
            for o in self.run(text)
        ]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._read], [], [], PATIENCE)
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._left += part
        message, _, self._left = self._left.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event["method"] == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event["method"] == "Runtime.exceptionThrown":
            self.log.append(json.dumps(params["exceptionDetails"]))
        elif event["method"] == "Log.entryAdded":
            self.log.append(params["entry"]["text"])
        elif event["method"] == "Runtime.consoleAPICalled":
            self.log.append(str([a.get("value") for a in params["args"]]))


@contextlib.contextmanager
def browser() -> Iterator[Tab]:
    """A browser with one page, which is ended in the end."""
    assert CHROMIUM is not None
    commands, to = os.pipe()
    answers, told = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        words = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}"]
        running = subprocess.Popen(
            [sys.executable, "-c", _LINK, str(commands), str(told), *words],
            pass_fds=(commands, told), stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(commands)
        os.close(told)
        try:
            tab = Tab(answers, to)
            yield tab
            with contextlib.suppress(OSError, AssertionError):
                tab._session = ""
                tab.send("Browser.close")
        finally:
            os.close(to)
            os.close(answers)
            try:
                running.wait(10)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()
