#!/usr/bin/env python3
"""Puts the headers of several versions of PyTorch, and two of their libraries, into .tools/torch for the tests.

usage: torch_parts.py FOLDER [--check]     # --check only says whether all parts are there

The wheels are large. So the script reads single members of them, by HTTP range requests to the package index of pip:
PIP_INDEX_URL or pip's configuration, otherwise pip's default. An index that refuses ranges sends the whole wheel.
FOLDER/VERSION is made at once with all of its parts, or not at all.
"""
# SPDX-License-Identifier: Apache-2.0
import ast
import base64
import concurrent.futures
import fnmatch
import http.client
import io
import os
import platform
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from html.parser import HTMLParser
from pathlib import Path

HEADERS = ["torch/include/c10/*.h", "torch/include/torch/headeronly/*.h",
           "torch/include/torch/csrc/api/include/torch/version.h"]
LIBRARIES = ["torch/lib/libc10.so", "torch/lib/libc10_cuda.so"]
VIEWER = ["torch/cuda/_memory_viz.py"]
PARTS = {"2.9.1": HEADERS, "2.10.0": HEADERS, "2.11.0": HEADERS + LIBRARIES,  # 2.9.1 and 2.10.0 are of CUDA 12
         "2.12.1": HEADERS, "2.13.0": HEADERS, "2.14.1": HEADERS, "2.15.0": HEADERS + LIBRARIES + VIEWER}

READ_AHEAD = 5 << 20  # holds the wheel's directory, or nearly all of the parts
ATTEMPTS = 4
TIMEOUT = 60  # seconds without an answer


class Failure(Exception):
    """The parts cannot be had; the text says why."""


def pip_configuration():
    """Returns the options of pip by name: those of the environment before those of `install` and of all commands."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
    found = {}
    for section in ("global", "install", ":env:"):
        for line in listed.stdout.splitlines():
            match = re.fullmatch(re.escape(section) + r"\.([a-z-]+)=(.+)", line.strip())
            if match:
                found[match[1]] = ast.literal_eval(match[2])
    for name in ("index-url", "cert"):  # also without a pip
        value = os.environ.get("PIP_" + name.upper().replace("-", "_"))
        if value:
            found[name] = value
    return found


class Web:
    """HTTP requests with the certificates that pip is configured for; failures that may pass are tried again."""

    def __init__(self, certificates):
        context = ssl.create_default_context()
        if certificates:
            context.load_verify_locations(certificates)
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))

    def request(self, url, work, headers=()):
        """Returns work(response)."""
        parts = urllib.parse.urlsplit(url)
        credentials, _, host = parts.netloc.rpartition("@")
        request = urllib.request.Request(parts._replace(netloc=host, fragment="").geturl(), headers=dict(headers))
        if credentials:
            plain = urllib.parse.unquote(credentials).encode()
            request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(plain).decode())
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self._opener.open(request, timeout=TIMEOUT) as response:
                    return work(response)
            except (OSError, http.client.HTTPException) as error:
                lasting = isinstance(error, urllib.error.HTTPError) and error.code not in (408, 429, 500, 502, 503, 504)
                if lasting or attempt == ATTEMPTS:
                    raise Failure(f"{request.full_url}: {getattr(error, 'reason', None) or error}") from error
                time.sleep(2 ** attempt)


class Links(HTMLParser):
    """Collects the links of a page of the index, by file name."""

    def __init__(self, page, text):
        super().__init__()
        self.found = {}
        self._page = page
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        target = dict(attributes).get("href") if tag == "a" else None
        if target:
            url = urllib.parse.urljoin(self._page, target)
            self.found[urllib.parse.unquote(urllib.parse.urlsplit(url).path).rsplit("/", 1)[-1]] = url


def wheels_of(web, index):
    """Returns the URLs of PyTorch's wheels in the index, by file name."""
    page = index.rstrip("/") + "/torch/"
    url, text = web.request(page, lambda response: (response.url, response.read().decode("utf-8", "replace")),
                            {"Accept": "text/html"})
    credentials = urllib.parse.urlsplit(page).netloc.rpartition("@")[0]
    found = Links(url, text).found
    host = urllib.parse.urlsplit(url).netloc.rpartition("@")[2]
    for name, link in found.items() if credentials else ():
        parts = urllib.parse.urlsplit(link)
        if parts.netloc == host:
            found[name] = parts._replace(netloc=f"{credentials}@{host}").geturl()
    return found


class RangeFile(io.RawIOBase):
    """A file in the web, of which the parts are read that are asked for, and some more in advance."""

    def __init__(self, web, url):
        super().__init__()
        self._web, self._url = web, url
        self._position = 0
        self._start, self._held = 0, b""
        self._size = web.request(url, self._size_of, {"Range": "bytes=0-0"})

    @staticmethod
    def _size_of(response):
        size = re.fullmatch(r"bytes 0-0/(\d+)", response.headers.get("Content-Range", ""))
        if response.status != 206 or not size:
            raise RangesRefused()
        return int(size[1])

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self._position

    def seek(self, offset, whence=io.SEEK_SET):
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, target):
        wanted = min(len(target), self._size - self._position)
        if wanted <= 0:
            return 0
        if not self._start <= self._position < self._start + len(self._held):
            self._start = max(0, min(self._position, self._size - READ_AHEAD))
            end = min(self._size, self._start + READ_AHEAD)
            self._held = self._web.request(self._url, lambda response: self._bytes_of(response, end - self._start),
                                           {"Range": f"bytes={self._start}-{end - 1}"})
        first = self._position - self._start
        got = self._held[first:first + wanted]
        target[:len(got)] = got
        self._position += len(got)
        return len(got)

    @staticmethod
    def _bytes_of(response, length):
        data = response.read()
        if response.status != 206 or len(data) != length:
            raise http.client.HTTPException(f"{len(data)} bytes came instead of {length}")
        return data


class RangesRefused(Exception):
    """The server sends only whole files."""


def whole_file(web, url):
    """Downloads all of the file, into a file without a name."""
    def copy(response):
        file = tempfile.TemporaryFile()
        shutil.copyfileobj(response, file, 1 << 20)
        length = response.headers.get("Content-Length")
        if length and file.tell() != int(length):
            raise http.client.HTTPException(f"{file.tell()} bytes came instead of {length}")
        return file
    return web.request(url, copy)


def open_wheel(web, version, wheels):
    """Opens the wheel of any Python: their headers are the same."""
    form = re.compile(rf"torch-{re.escape(version)}-.*manylinux.*_{platform.machine()}\.whl")
    names = sorted(filter(form.fullmatch, wheels))
    if not names:
        raise Failure(f"the index has no wheel of PyTorch {version} for {platform.machine()}")
    url = wheels[names[0]]
    try:
        return io.BufferedReader(RangeFile(web, url), 1 << 16)
    except RangesRefused:
        print(f"gpumem: the index sends no parts of files: downloading all of {names[0]}", file=sys.stderr)
        return whole_file(web, url)


def default_index():
    """Returns the package index that pip uses without a configuration. Only pip's help tells it."""
    shown = subprocess.run([sys.executable, "-m", "pip", "download", "--help"], capture_output=True, text=True,
                           env={**os.environ, "COLUMNS": "200"})
    found = re.search(r"\(default\s+(https?://[^\s)]+)\)", shown.stdout)
    if not found:
        raise Failure("pip names no package index: set PIP_INDEX_URL")
    return found[1]


def is_complete(folder, version):
    """Whether the folder has the parts that this script asks for."""
    record = folder / version / "parts"
    return record.exists() and record.read_text().split() == PARTS[version]


def extract(web, folder, version, wheels):
    """Puts the parts of the version in their place."""
    scratch = Path(tempfile.mkdtemp(dir=folder))
    try:
        with open_wheel(web, version, wheels) as file, zipfile.ZipFile(file) as wheel:
            wanted = []
            for part in PARTS[version]:
                found = [one for one in wheel.infolist() if fnmatch.fnmatchcase(one.filename, part)]
                if not found:
                    raise Failure(f"the wheel of PyTorch {version} has no {part}")
                wanted += found
            for one in sorted(wanted, key=lambda member: member.header_offset):
                wheel.extract(one, scratch)
        (scratch / "parts").write_text("\n".join(PARTS[version]))
        scratch.chmod(0o755)
        shutil.rmtree(folder / version, ignore_errors=True)
        os.replace(scratch, folder / version)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def main(folder, check=False):
    lacking = [version for version in PARTS if not is_complete(folder, version)]
    if check or not lacking:
        return 1 if lacking else 0
    folder.mkdir(parents=True, exist_ok=True)
    try:
        pip = pip_configuration()
        web = Web(pip.get("cert"))
        wheels = wheels_of(web, pip.get("index-url") or default_index())
        with concurrent.futures.ThreadPoolExecutor() as workers:
            list(workers.map(lambda version: extract(web, folder, version, wheels), lacking))
    except (Failure, OSError, zipfile.BadZipFile) as error:
        print(f"gpumem: the parts of PyTorch {', '.join(lacking)} could not be had: {error}\n"
              "gpumem: GPUMEM_SETUP_TORCH=off sets up without them; the tests that need them are then left out",
              file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "--check" in sys.argv[2:]))
