# Headless Chromium, driven over its pipe by the DevTools protocol.
# SPDX-License-Identifier: Apache-2.0
import base64
import fcntl
import json
import os
import subprocess
import tempfile
from pathlib import Path


class Browser:
    def __init__(self, program):
        self.folder = tempfile.TemporaryDirectory()
        to_browser, from_browser = os.pipe(), os.pipe()
        ours = (to_browser[1], from_browser[0])
        # Numbers above those that the browser expects
        theirs = tuple(fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser[0], from_browser[1]))
        arguments = [program, "--headless=new", "--hide-scrollbars", "--disable-smooth-scrolling", "--no-sandbox",
                     "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--disable-extensions", "--disable-background-networking", f"--user-data-dir={self.folder.name}",
                     "--remote-debugging-pipe", "about:blank"]
        command = f'exec 3<&{theirs[0]} 4>&{theirs[1]} {theirs[0]}<&- {theirs[1]}>&-; exec "$@"'
        self.process = subprocess.Popen(["bash", "-c", command, "browser", *arguments], pass_fds=theirs,
                                        env={**os.environ, "HOME": self.folder.name},
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in (*theirs, to_browser[0], from_browser[1]):
            os.close(end)
        self.output, self.input = os.fdopen(ours[0], "wb", buffering=0), os.fdopen(ours[1], "rb", buffering=0)
        self.rest, self.number, self.session, self.events = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def read(self):
        while b"\0" not in self.rest:
            part = self.input.read(1 << 20)
            if not part:
                raise SystemExit("the browser has ended")
            self.rest += part
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[self.output.write(data):]
        while (answer := self.read()).get("id") != self.number:
            self.events.append(answer)
        if "error" in answer:
            raise SystemExit(f"{method}: {answer['error']}")
        return answer["result"]

    def evaluate(self, expression):
        """Returns the value; waits for it if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise SystemExit(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def show(self, path, width=1280, height=900, dark=False):
        self.width = width
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        while not self.evaluate("document.readyState === 'complete' && document.body !== null"):
            pass
        while not self.evaluate("document.body.dataset.ready || document.body.dataset.failed"):
            if self.complaints():
                raise SystemExit(f"{path}: {self.complaints()}")

    def picture(self, path, whole=True):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def complaints(self):
        """Returns what the page has said on the console, its exceptions, and requests for more than the page."""
        found = []
        for event in self.events:
            method, values = event.get("method"), event.get("params", {})
            own = "getImageData" in values.get("entry", {}).get("text", "")  # the test reads the map
            if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded") and not own:
                found.append(json.dumps(values)[:400])
            url = values.get("request", {}).get("url", "") if method == "Network.requestWillBeSent" else ""
            if url and not url.startswith(("file:", "about:", "data:", "blob:")):
                found.append("request: " + url)
        return found

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()
