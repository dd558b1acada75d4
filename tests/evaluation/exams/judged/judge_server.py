"""A judge behind OpenAI's chat interface on this machine: a real HTTP server that keeps what it is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """A judge: it prefers what is shown first, rates a second turn in prose, and keeps what it was asked."""

    refuses_from: int | None = None  # number of calls after which it takes no more
    fails_first = 0  # calls that fail before any is answered
    tells: tuple[int, dict, dict[str, str]] | None = None  # status, body and headers of every answer

    @property
    def judge(self) -> dict[str, str]:
        """The settings of `judged_chat` that name this judge."""
        return {"endpoint": f"http://127.0.0.1:{self.server_port}/v1", "endpoint_model": "judge"}

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict] = []
        self.keys: list[str | None] = []
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            if self.server.tells is not None:
                self.server.asked.append(body)
                return self.tell(*self.server.tells)
            if self.server.fails_first:
                self.server.fails_first -= 1
                return self.tell(503, {"error": "busy"})
            if self.server.refuses_from is not None and len(self.server.asked) >= self.server.refuses_from:
                return self.tell(401, {"error": "the key has expired"})
            self.server.asked.append(body)
            self.server.keys.append(self.headers["Authorization"])
        prompt = body["messages"][0]["content"]
        if "How hot" in prompt and "better" in prompt:
            return self.tell(400, {"error": "too long"})
        rated = "I find it good." if "last answer" in prompt else "Rating: [[6]]"
        said = "[[A]]" if "which of two" in prompt else rated
        message = {"role": "assistant", "content": said}
        self.tell(200, {"model": "judge-1", "system_fingerprint": "fp", "choices": [{"message": message}]})

    def tell(self, status: int, body: dict, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    """Serve on a port of its own until the block ends."""
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
