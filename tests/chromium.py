"""A headless Chromium, spoken to over a pipe: loads a page, runs scripts in it, and hears its console and its network.

Nothing of the page is changed for that, so that its own policy on scripts stays in force.
"""

from __future__ import annotations

import base64
import json
import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_PATIENCE = 120.0
# The browser reads the pipe as 3 and writes it as 4, whatever numbers these are here.
_AS_THREE_AND_FOUR = """
import os, sys
ends = [os.dup(int(number)) for number in sys.argv[1:3]]
for number, end in zip((3, 4), ends):
    os.dup2(end, number)
    os.set_inheritable(number, True)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One page that is loaded.

    Attributes:
        complaints: What the console says of errors, and exceptions.
        requests: The address of everything that was asked for.
    """

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._number = 0
        self._buffer = b""
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def load(self, path: Path) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._take()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._take()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, dark: bool = False) -> bytes:
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        data = base64.b64decode(taken["data"])
        path.write_bytes(data)
        return data

    def _take(self) -> dict[str, Any]:
        deadline = time.monotonic() + _PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            while b"\0" not in self._buffer:
                assert selector.select(deadline - time.monotonic()), "Chromium does not answer"
                data = os.read(self._read, 1 << 20)
                assert data, "Chromium has left"
                self._buffer += data
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        if "method" in message:
            self._events.append(message)
            self._hear(message["method"], message["params"])
        return message

    def _hear(self, method: str, told: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in {"warning", "error"}:
            self.complaints.append(told["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(told["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])


@contextmanager
def chromium(directory: Path) -> Iterator[Page]:
    """A browser with a profile of its own in `directory`; it ends with the block."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium on PATH, which looks at the report; on Debian: apt-get install chromium")
    directory.mkdir(exist_ok=True)
    theirs, write = os.pipe()
    read, answers = os.pipe()
    arguments = ["--headless", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars"]
    arguments += ["--window-size=1280,900", f"--user-data-dir={directory}", "--remote-debugging-pipe"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")  # it refuses to be root in one; what it loads is a page of ours
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _AS_THREE_AND_FOUR, str(theirs), str(answers), found, *arguments],
            pass_fds=(theirs, answers),
            stdout=log,
            stderr=log,
        )
    os.close(theirs)
    os.close(answers)
    try:
        yield Page(write, read)
    finally:
        os.close(write)
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(read)
