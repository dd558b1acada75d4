"""A web server over loopback with the trouble that a test asks for, as archives meet it."""

from __future__ import annotations

import hashlib
import http.server
import re
import threading
from collections import Counter


class Server:
    """Serves files and ranges of them, with or without ETags; counts what is asked and sent."""

    def __init__(self, files: dict[str, bytes], *, has_tags: bool = False) -> None:
        self.files = files
        self.has_tags = has_tags
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.sent: Counter[str] = Counter()  # path: bytes of bodies
        self.refuse: dict[str, list[tuple[int, dict[str, str]]]] = {}  # path: answers to give first
        self.cut: dict[str, int | list[int]] = {}  # path: bytes after which the connection is dropped, once each
        self.replace_after_cut: dict[str, bytes] = {}  # path: what the file is after the connection was dropped
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                outer.answer(self, body=False)

            def do_GET(self) -> None:
                outer.answer(self, body=True)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def tag_of(self, path: str) -> str:
        return f'"{hashlib.sha256(self.files[path]).hexdigest()[:16]}"' if self.has_tags else ""

    def ranges_of(self, path: str) -> list[str | None]:
        """The Range headers with which a file was asked for, in order; of GET and HEAD."""
        return [headers.get("range") for asked, headers in self.requests if asked == path]

    def answer(self, handler: http.server.BaseHTTPRequestHandler, *, body: bool) -> None:
        path = handler.path.lstrip("/")
        self.requests.append((path, {name.lower(): value for name, value in handler.headers.items()}))
        if self.refuse.get(path):
            status, headers = self.refuse[path].pop(0)
            self._send(handler, status, headers, b"")
            return
        if path not in self.files:
            self._send(handler, 404, {}, b"")
            return
        content, tag = self.files[path], self.tag_of(path)
        headers = {"ETag": tag} if tag else {}
        start, end = self._range(handler, len(content), tag)
        if start and start >= len(content):
            self._send(handler, 416, headers | {"Content-Range": f"bytes */{len(content)}"}, b"")
            return
        is_part = (start, end) != (0, len(content))
        if is_part:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        rest = content[start:end]
        sent = rest[: self._cut_at(path, len(rest))] if body else b""
        self.sent[path] += len(sent)
        if len(sent) < len(rest) and body and path in self.replace_after_cut:
            self.files[path] = self.replace_after_cut.pop(path)
        self._send(handler, 206 if is_part else 200, headers, sent, length=len(rest))

    @staticmethod
    def _range(handler: http.server.BaseHTTPRequestHandler, size: int, tag: str) -> tuple[int, int]:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", ""))
        if not asked or handler.headers.get("If-Range", tag) != tag:
            return 0, size
        return int(asked[1]), min(size, int(asked[2]) + 1) if asked[2] else size

    def _cut_at(self, path: str, size: int) -> int:
        cuts = self.cut.get(path)
        if isinstance(cuts, list):
            return cuts.pop(0) if cuts else size
        return self.cut.pop(path, size) if cuts is not None else size

    def _send(
        self,
        handler: http.server.BaseHTTPRequestHandler,
        status: int,
        headers: dict[str, str],
        sent: bytes,
        length: int = 0,
    ) -> None:
        handler.send_response(status)
        for name, value in {**headers, "Content-Length": str(length), "Connection": "close"}.items():
            handler.send_header(name, value)
        handler.end_headers()
        self.write(handler, sent)
        handler.close_connection = True

    def write(self, handler: http.server.BaseHTTPRequestHandler, sent: bytes) -> None:
        handler.wfile.write(sent)
