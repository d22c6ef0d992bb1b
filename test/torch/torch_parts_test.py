# Tests torch_parts.py against an index and wheels of its own, on a server in this process.
# SPDX-License-Identifier: Apache-2.0
import base64
import contextlib
import http.server
import io
import os
import platform
import random
import re
import tempfile
import threading
import unittest
import zipfile
from pathlib import Path
from unittest import mock

import torch_parts

MACHINE = platform.machine()
CONTENT = {"torch/__init__.py": b"", "torch/cuda/_memory_viz.py": b"# viewer",
           "torch/include/c10/cuda/one.h": b"// c10", "torch/include/c10/two.txt": b"",
           "torch/include/torch/headeronly/three.h": b"// headeronly", "torch/include/ATen/four.h": b"// ATen",
           "torch/include/torch/csrc/api/include/torch/version.h": b"// version",
           "torch/lib/libc10.so": random.Random(1).randbytes(3000), "torch/lib/libc10_cuda.so": b"cuda",
           "torch/lib/libtorch_cuda.so": random.Random(2).randbytes(200000)}


def wheel(content):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in content.items():
            file.writestr(name, data)
    return made.getvalue()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.requests.append((self.path, self.headers.get("Range")))
        if server.credentials and self.headers.get("Authorization") != "Basic " + server.credentials:
            return self.answer(401, b"")
        if server.failures:
            return self.answer(server.failures.pop(), b"")
        name = self.path.rsplit("/", 1)[-1]
        if self.path == "/simple/torch/":
            links = "".join(f'<a href="../../files/{each}#sha256=0">{each}</a>' for each in server.files)
            return self.answer(200, f"<html><body>{links}</body></html>".encode())
        data = server.files.get(name)
        if data is None:
            return self.answer(404, b"")
        part = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if not part or not server.ranges:
            return self.answer(200, data)
        first, last = int(part[1]), min(int(part[2]), len(data) - 1)
        return self.answer(206, data[first:last + 1], f"bytes {first}-{last}/{len(data)}")

    def answer(self, status, data, content_range=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        with contextlib.suppress(OSError):  # the client need not read all
            self.wfile.write(data)

    def log_message(self, *arguments):
        pass


class Parts(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = Path(self.scratch.name) / "parts"
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.server.requests, self.server.failures, self.server.ranges = [], [], True
        self.server.credentials = None
        self.server.files = {f"torch-{version}-cp3{minor}-cp3{minor}-manylinux_2_28_{MACHINE}.whl": wheel(CONTENT)
                             for version in torch_parts.PARTS for minor in (11, 13)}
        self.server.files["torch-2.11.0-cp311-cp311-win_amd64.whl"] = b"no archive"
        self.server.files["torch-2.11.0-cp311-cp311-manylinux_2_28_other.whl"] = b"no archive"
        index = f"http://127.0.0.1:{self.server.server_port}/simple"
        for change in (mock.patch.dict(os.environ, {"PIP_INDEX_URL": index, "no_proxy": "127.0.0.1"}),
                       mock.patch.object(torch_parts.subprocess, "run", return_value=mock.Mock(stdout="")),
                       mock.patch.object(torch_parts.time, "sleep"),
                       mock.patch.object(torch_parts, "READ_AHEAD", 4096)):
            change.start()
            self.addCleanup(change.stop)

    def get(self):
        with contextlib.redirect_stderr(io.StringIO()) as told:
            status = torch_parts.main(self.folder)
        return status, told.getvalue()

    def parts_of(self, version):
        folder = self.folder / version
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {"parts"}

    def assert_complete(self):
        headers = {"torch/include/c10/cuda/one.h", "torch/include/torch/headeronly/three.h",
                   "torch/include/torch/csrc/api/include/torch/version.h"}
        for version in ("2.9.1", "2.10.0", "2.12.1", "2.13.0", "2.14.1"):
            self.assertEqual(self.parts_of(version), headers)
        libraries = {"torch/lib/libc10.so", "torch/lib/libc10_cuda.so"}
        viewer = {"torch/cuda/_memory_viz.py"}
        for version, more in (("2.11.0", set()), ("2.15.0", viewer)):
            self.assertEqual(self.parts_of(version), headers | libraries | more)
            for name in libraries:
                self.assertEqual((self.folder / version / name).read_bytes(), CONTENT[name])
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(torch_parts.PARTS))
        self.assertEqual(torch_parts.main(self.folder, check=True), 0)

    def test_reads_only_the_parts(self):
        self.assertEqual(torch_parts.main(self.folder, check=True), 1)
        self.assertEqual(self.get(), (0, ""))
        self.assert_complete()
        whole = [path for path, part in self.server.requests if part is None]
        self.assertEqual(whole, ["/simple/torch/"])
        self.assertLess(len(self.server.requests), 5 * len(torch_parts.PARTS))

    def test_asks_for_nothing_that_is_there(self):
        self.get()
        self.server.requests.clear()
        self.assertEqual(self.get(), (0, ""))
        self.assertEqual(self.server.requests, [])
        (self.folder / "2.9.1/parts").write_text("torch/include/c10/*.h")  # of an earlier form of the script
        self.assertEqual(torch_parts.main(self.folder, check=True), 1)
        self.assertEqual(self.get(), (0, ""))
        self.assert_complete()
        self.assertFalse([path for path, _ in self.server.requests if "2.15" in path])

    def test_an_index_that_refuses_ranges(self):
        self.server.ranges = False
        status, told = self.get()
        self.assertEqual(status, 0)
        self.assertIn("the index sends no parts of files: downloading all of torch-2.9.1-cp311", told)
        self.assert_complete()

    def test_tries_again(self):
        self.server.failures = [503, 429, 500]
        self.assertEqual(self.get(), (0, ""))
        self.assert_complete()

    def assert_fails(self, sentence):
        status, told = self.get()
        self.assertEqual(status, 1)
        self.assertIn(sentence, told)
        self.assertIn("GPUMEM_SETUP_TORCH=off", told)

    def test_gives_up(self):
        self.server.failures = [503] * 100
        self.assert_fails("/simple/torch/: Service Unavailable")
        self.assertEqual(len(self.server.requests), torch_parts.ATTEMPTS)

    def test_an_index_without_pytorch(self):
        self.server.failures = [404]
        self.assert_fails("/simple/torch/: Not Found")
        self.assertEqual(len(self.server.requests), 1)

    def test_a_version_that_is_missing(self):
        for name in [name for name in self.server.files if "2.15" in name]:
            del self.server.files[name]
        self.assert_fails(f"the index has no wheel of PyTorch 2.15.0 for {MACHINE}")
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(set(torch_parts.PARTS) - {"2.15.0"}))

    def test_a_wheel_without_a_part(self):
        lacking = {name: data for name, data in CONTENT.items() if "headeronly" not in name}
        for name in [name for name in self.server.files if "2.9.1" in name]:
            self.server.files[name] = wheel(lacking)
        self.assert_fails("the wheel of PyTorch 2.9.1 has no torch/include/torch/headeronly/*.h")
        self.assertNotIn("2.9.1", os.listdir(self.folder))

    def test_credentials_of_the_index(self):
        self.server.credentials = base64.b64encode(b"user:p@ss").decode()
        self.assert_fails("Unauthorized")
        os.environ["PIP_INDEX_URL"] = os.environ["PIP_INDEX_URL"].replace("//", "//user:p%40ss@")
        self.assertEqual(self.get(), (0, ""))
        self.assert_complete()

    def test_certificates_that_are_missing(self):
        os.environ["PIP_CERT"] = "/nonexistent"
        self.assert_fails("No such file")

    def test_the_configuration_of_pip(self):
        listed = "\n".join([":env:.cert='/env.pem'", "global.cert='/global.pem'", "global.index-url='https://a/simple'",
                            "install.index-url='https://b/simple'", "global.trusted-host='\\na\\nb'"])
        torch_parts.subprocess.run.return_value.stdout = listed
        with mock.patch.dict(os.environ):
            for name in ("PIP_INDEX_URL", "PIP_CERT"):
                os.environ.pop(name, None)
            found = torch_parts.pip_configuration()
            self.assertEqual((found["index-url"], found["cert"]), ("https://b/simple", "/env.pem"))
            os.environ["PIP_INDEX_URL"] = "https://c/simple"
            self.assertEqual(torch_parts.pip_configuration()["index-url"], "https://c/simple")

    def test_the_index_without_a_configuration(self):
        torch_parts.subprocess.run.return_value.stdout = "Base URL of the Package Index (default\n  https://d/simple)."
        self.assertEqual(torch_parts.default_index(), "https://d/simple")
        torch_parts.subprocess.run.return_value.stdout = ""
        with self.assertRaises(torch_parts.Failure):
            torch_parts.default_index()


if __name__ == "__main__":
    unittest.main()
