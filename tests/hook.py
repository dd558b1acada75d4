"""A webhook on this machine: a real HTTP server that keeps what it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "T0P-S3CR3T-PATH"


class Hook:
    """What was posted, and what to answer next: a status each, 200 when there is none left."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.messages: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.answers: list[int] = []
        self.goes_on = threading.Event()  # an answer of 0 waits for it and then breaks off
        self.heard = threading.Semaphore(0)

    def take(self, path: str, body: bytes) -> int:
        self.paths.append(path)
        self.messages.append(json.loads(body) if body else {})
        self.heard.release()
        return self.answers.pop(0) if self.answers else 200


@contextmanager
def webhook() -> Iterator[Hook]:
    """Serve on a port of its own until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status = hook.take(self.path, body)
            if not status:
                hook.goes_on.wait(60)
                self.close_connection = True
                return
            self.send_response(status)
            if status in (301, 302, 307):
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hook = Hook(f"http://127.0.0.1:{server.server_address[1]}/{SECRET}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hook
        finally:
            hook.goes_on.set()
            server.shutdown()
            thread.join()
