"""A real browser for tests: Debian's Chromium without a window, asked over two pipes.

Chrome DevTools Protocol, messages ended by a zero byte: nothing to install beside Chromium.
`python tests/report/browser.py report.html picture.png` takes the picture in README.md.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 120  # until a browser that hangs is given up; nothing is measured
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


class Page:
    """One tab, with all that its console said and all that it asked the network for."""

    def __init__(self, to_browser: int, from_browser: int):
        self._to, self._from = to_browser, from_browser
        self._rest, self._number, self._session = b"", 0, ""
        self.said: list[str] = []
        self.requests: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events on the way are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, path: Path, width: int = 1280, dark: bool = False) -> None:
        """Open a report and wait until everything is drawn."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=scheme)
        self.size(width, 900)
        self.ask("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.documentElement?.dataset.ready === 'yes'")

    def size(self, width: int, height: int) -> None:
        """Give the window a size."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def run(self, script: str) -> Any:
        """Run JavaScript in the page, and wait for the value if it is a promise."""
        done = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript condition holds."""
        until = time.monotonic() + PATIENCE_S
        while not self.run(condition):
            assert time.monotonic() < until, f"never became true: {condition}; {self.said}"
            time.sleep(0.05)

    def picture(self, path: Path, whole: bool = True) -> None:
        """Write what is seen as PNG; with `whole` the whole length of the page."""
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], PATIENCE_S)
            assert ready, "the browser does not answer"
            more = os.read(self._from, 1 << 16)
            assert more, "the browser ended"
            self._rest += more
        raw, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(raw)
        self._keep(message.get("method"), message.get("params", {}))
        return message

    def _keep(self, event: str | None, params: dict[str, Any]) -> None:
        if event == "Runtime.consoleAPICalled":
            self.said.append(str([arg.get("value") for arg in params["args"]]))
        elif event == "Runtime.exceptionThrown":
            self.said.append(str(params["exceptionDetails"]))
        elif event == "Log.entryAdded":
            self.said.append(params["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


@contextmanager
def open_browser(chromium: str, folder: Path) -> Iterator[Page]:
    """Start Chromium with a profile of its own in `folder`, and end it afterwards."""
    to_child, to_browser = os.pipe()
    from_browser, from_child = os.pipe()

    def pipes() -> None:  # Chromium reads from 3 and writes to 4
        reading = fcntl.fcntl(to_child, fcntl.F_DUPFD, 10)
        writing = fcntl.fcntl(from_child, fcntl.F_DUPFD, 10)
        os.dup2(reading, 3)
        os.dup2(writing, 4)

    process = subprocess.Popen(
        [chromium, *FLAGS, f"--user-data-dir={folder / 'chromium'}"],
        preexec_fn=pipes,
        close_fds=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_child)
    os.close(from_child)
    try:
        yield Page(to_browser, from_browser)
    finally:
        os.close(to_browser)
        os.close(from_browser)
        process.terminate()
        process.wait()


def main() -> None:
    """Take a picture of the top of a report."""
    report, picture = map(Path, sys.argv[1:])
    with (
        tempfile.TemporaryDirectory() as folder,
        open_browser(shutil.which("chromium") or "chromium", Path(folder)) as page,
    ):
        page.open(report)
        page.size(1280, 1180)
        page.run("new Promise((done) => setTimeout(done, 500))")
        page.picture(picture, whole=False)


if __name__ == "__main__":
    main()
