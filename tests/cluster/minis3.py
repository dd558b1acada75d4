"""A small server for S3's requests over HTTP, for the tests of roots in a store: it keeps objects in memory.

It holds to `If-None-Match: *`, and answers with what a test has put into `faults`. `make s3` runs the same tests with
moto's server and, where Debian's packages are installed, with Ceph's.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from training.contract.files import objects

WHEN = "2026-11-29T10:00:00.000Z"
CODES = {403: "AccessDenied", 500: "InternalError", 503: "SlowDown"}
WORDS = {
    "AccessDenied": 403,
    "ExpiredToken": 400,
    "InvalidToken": 400,
    "NoSuchBucket": 404,
    "RequestTimeTooSkewed": 403,
    "AuthorizationHeaderMalformed": 400,
    "PermanentRedirect": 301,
    "SignatureDoesNotMatch": 403,
}

Answer = tuple[int, bytes, dict[str, str]]  # code, body, headers


@dataclass
class MiniS3:
    """One server. `faults` are the codes of the answers to its next requests; a number of seconds makes one slow.

    A code is that of HTTP or S3's own word.
    """

    holds_conditions: bool = True
    keeps_versions: bool = False
    earlier: list[str] = field(default_factory=list)  # BUCKET/KEY of each version that a versioned bucket keeps
    objects: dict[str, bytes] = field(default_factory=dict)  # by BUCKET/KEY
    parts: dict[int, dict[int, bytes]] = field(default_factory=dict)  # of uploads in parts, by their numbers
    faults: list[int | float | str] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        owner, self.lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                code, body, headers = owner.answer(self.command, self.path, dict(self.headers.items()), data)
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else body)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

            def log_message(self, *_: object) -> None:
                """Say nothing on standard error."""

        self._handler, self._servers = Handler, list[ThreadingHTTPServer]()
        self.port = self.listen()
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def listen(self, port: int = 0) -> int:
        """Listen at a port of this thread's network, 0: at a free one; return its number."""
        server = ThreadingHTTPServer(("127.0.0.1", port), self._handler)
        server.daemon_threads = True
        self._servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server.server_address[1]

    def stop(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def counted(self) -> Counter[str]:
        """Return how many requests there were, by method."""
        return Counter(method for method, _ in self.requests)

    def answer(self, method: str, target: str, headers: dict[str, str], data: bytes) -> Answer:
        """Return the answer to a request: code, body and headers."""
        place, asked = (
            unquote(urlsplit(target).path).strip("/"),
            parse_qs(urlsplit(target).query, keep_blank_values=True),
        )
        with self.lock:
            self.requests.append((method, place))
            fault = self.faults.pop(0) if self.faults else 0
        if isinstance(fault, float):
            time.sleep(fault)
        elif fault:
            code, word = (WORDS[fault], fault) if isinstance(fault, str) else (fault, CODES[fault])
            return code, _error(word), {}
        with self.lock:
            if "versions" in asked:
                return 200, self._versions(place, asked.get("prefix", [""])[0]), {}
            if "list-type" in asked:
                return 200, self._listed(place, asked.get("prefix", [""])[0]), {}
            if "delete" in asked:
                for key in re.findall(rb"<Key>(.*?)</Key>", data):
                    self._keep(f"{place}/{key.decode()}")
                    self.objects.pop(f"{place}/{key.decode()}", None)
                return 200, b"<DeleteResult></DeleteResult>", {}
            if "uploads" in asked:
                return 200, f"<R><UploadId>{len(self.requests)}</UploadId></R>".encode(), {}
            if "uploadId" in asked:
                return self._of_upload(
                    method, place, int(asked["uploadId"][0]), int(asked.get("partNumber", ["0"])[0]), data
                )
            return self._on_object(method, place, {name.lower(): value for name, value in headers.items()}, data)

    def _of_upload(self, method: str, place: str, upload: int, part: int, data: bytes) -> Answer:
        parts = self.parts.setdefault(upload, {})
        if method == "PUT":
            parts[part] = data
            return 200, b"", {"ETag": _tag(data)}
        self.objects[place] = b"".join(parts[number] for number in sorted(parts))
        return 200, b"<CompleteMultipartUploadResult></CompleteMultipartUploadResult>", {}

    def _on_object(self, method: str, place: str, headers: dict[str, str], data: bytes) -> Answer:
        if method == "PUT":
            if self.holds_conditions and headers.get("if-none-match") == "*" and place in self.objects:
                return 412, _error("PreconditionFailed"), {}
            if (source := unquote(headers.get("x-amz-copy-source", "")).strip("/")) and source not in self.objects:
                return 404, _error("NoSuchKey"), {}
            self._keep(place)
            self.objects[place] = self.objects[source] if source else data
            tag = _tag(self.objects[place])
            return (
                200,
                f"<CopyObjectResult><ETag>{tag}</ETag></CopyObjectResult>".encode() if source else b"",
                {"ETag": tag},
            )
        if method == "DELETE":
            self._keep(place)
            self.objects.pop(place, None)
            return 204, b"", {}
        if place not in self.objects:
            return 404, _error("NoSuchKey"), {}
        body = self.objects[place]
        said = {"ETag": _tag(body), "Last-Modified": "Sun, 29 Nov 2026 10:00:00 GMT"}
        if part := re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", "")):
            first, last = int(part[1]), min(int(part[2] or len(body)), len(body) - 1)
            return 206, body[first : last + 1], {**said, "Content-Range": f"bytes {first}-{last}/{len(body)}"}
        return 200, body, said

    def _keep(self, place: str) -> None:
        if self.keeps_versions and place in self.objects:
            self.earlier.append(place)

    def _versions(self, bucket: str, prefix: str) -> bytes:
        rows = [
            f"<Version><Key>{escape(name[len(bucket) + 1 :])}</Key><IsLatest>{is_latest}</IsLatest></Version>"
            for is_latest, names in (("true", self.objects), ("false", self.earlier))
            for name in names
            if name.startswith(f"{bucket}/{prefix}")
        ]
        return f"<ListVersionsResult><IsTruncated>false</IsTruncated>{''.join(rows)}</ListVersionsResult>".encode()

    def _listed(self, bucket: str, prefix: str) -> bytes:
        rows = [
            f"<Contents><Key>{escape(name[len(bucket) + 1 :])}</Key><LastModified>{WHEN}</LastModified>"
            f"<ETag>{_tag(body)}</ETag><Size>{len(body)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for name, body in sorted(self.objects.items())
            if name.startswith(f"{bucket}/{prefix}")
        ]
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(rows)}</ListBucketResult>".encode()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[MiniS3]:
    """A server that this process may use, and asks three times at once where it fails."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-tests")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(objects, "WAITS_SECONDS", (0.0, 0.0))
    server = MiniS3()
    yield server
    server.stop()


def _tag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
