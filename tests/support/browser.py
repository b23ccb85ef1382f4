"""A headless Chromium, driven by its DevTools protocol over two pipes: no package and no driver in between."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Self

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 60


def browser_program() -> str:
    """The browser that is installed; skips the test without one, fails it in CI unless none can be installed there."""
    named = os.environ.get("TRUNCATE_KIT_BROWSER")
    found = next((path for path in map(shutil.which, (named,) if named else NAMES) if path), None)
    if found is None:
        why = f"needs a Chromium (one of {', '.join(NAMES)}, or its path in TRUNCATE_KIT_BROWSER)"
        if os.environ.get("CI") == "true" and "TRUNCATE_KIT_WITHOUT_BROWSER" not in os.environ:
            pytest.fail(f"{why}, and CI must run this test")
        pytest.skip(why)
    return found


class Browser:
    """One browser process, which ends with its block."""

    def __init__(self, folder: Path) -> None:
        """folder: of its profile, which is thrown away."""
        command = [browser_program(), "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        command += ["--no-first-run", "--disable-extensions", f"--user-data-dir={folder}", "about:blank"]
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The protocol is spoken on descriptors 3 and 4 of the browser: a shell puts them there, from others than those.
        high = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (theirs_in, theirs_out)]
        shell = ["bash", "-c", f'exec "$@" 3<&{high[0]} 4>&{high[1]}', "bash", *command]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(shell, pass_fds=high, **quiet)
        for one in (theirs_in, theirs_out, *high):
            os.close(one)
        self._buffer, self._number, self.events = b"", 0, list[dict[str, Any]]()

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result; events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self.receive()
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                result: dict[str, Any] = found["result"]
                return result
            self.events.append(found)

    def receive(self) -> dict[str, Any]:
        """The next message."""
        while b"\0" not in self._buffer:
            read = os.read(self._in, 1 << 20)
            assert read, "the browser has ended"
            self._buffer += read
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(SECONDS)
        os.close(self._out)
        os.close(self._in)


class Tab:
    """One page in a browser.

    Attributes:
        problems: What console and network reported: errors, warnings, exceptions, and requests but for the page itself.
    """

    def __init__(self, browser: Browser, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """scheme: What the reader prefers, `light` or `dark`."""
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A method of the protocol on this page."""
        return self._browser.call(method, self._session, **parameters)

    def open(self, file: Path) -> Self:
        """Load a file and wait until it has loaded."""
        self._browser.events.clear()
        self.call("Page.navigate", url=file.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self._browser.events):
            self._browser.events.append(self._browser.receive())
        return self

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression; waits for promises."""
        how = {"awaitPromise": True, "returnByValue": True, "userGesture": True}
        found = self.call("Runtime.evaluate", expression=script, **how)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press and release a key. code: as browsers number it; Tab is 9, Enter 13."""
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    @property
    def problems(self) -> list[str]:
        """What console and network have reported since `open`; every request but that for the page is one."""
        self.evaluate("new Promise(done => setTimeout(done, 50))")
        found = []
        for event in self._browser.events:
            kind, values = event.get("method"), event.get("params", {})
            if kind in ("Log.entryAdded", "Runtime.exceptionThrown") or (
                kind == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert")
            ):
                found.append(f"{kind}: {json.dumps(values)[:500]}")
            elif kind == "Network.requestWillBeSent" and values.get("type") != "Document":
                url = values["request"]["url"]
                if not url.startswith("data:"):
                    found.append(f"requested {url[:200]}")
        return found

    def printed(self, file: Path) -> None:
        """The page as PDF, as it would be printed."""
        found = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        file.write_bytes(base64.b64decode(found["data"]))
