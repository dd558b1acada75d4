"""Add receipts to the answers of a served model: its server asks the process that started it, over a socket.

Where an answer's parts stand in the training data is looked up beside the records of a root, of which the server of a
model knows nothing. A question and its answer are one line of JSON each; an answer with `error` has a sentence.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from training.generate.served_requests import CHAT, PLAIN, RECEIPT

CHAT_PAGE = Path(__file__).parent / "chat_page"
FILES = {"/": "chat.html", "/chat.js": "chat.js"}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; base-uri 'none'"
HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}

Ask = Callable[[Mapping[str, Any]], dict[str, Any]]


def asking(descriptor: int) -> Ask:
    """Return a function that asks the other side of a socket one question at a time."""
    from starlette.exceptions import HTTPException

    stream, lock = socket.socket(fileno=descriptor).makefile("rwb"), Lock()

    def ask(question: Mapping[str, Any]) -> dict[str, Any]:
        with lock:
            stream.write(json.dumps(question).encode() + b"\n")
            stream.flush()
            line = stream.readline()
        told = json.loads(line) if line.endswith(b"\n") else {"error": "the process that makes receipts has ended"}
        if "error" in told:
            raise HTTPException(500, told["error"])
        return told

    return ask


def with_receipts(handle: Callable[..., Any], ask: Ask) -> Callable[..., Any]:
    """Make a method that handles a request add the receipt of its answer, if the request asks for one."""
    from starlette.responses import JSONResponse

    async def handled(self: Any, body: dict[str, Any], request_id: str) -> Any:
        response = await handle(self, body, request_id)
        if not body.get(RECEIPT):
            return response
        said = json.loads(response.body)
        (choice,) = said["choices"]
        answer = choice["message"].get("content") or "" if "message" in choice else choice["text"]
        return JSONResponse({**said, "receipt": await asyncio.to_thread(ask, {"answer": answer})})

    return handled


def add_receipts(handlers: Mapping[str, Any], ask: Ask) -> None:
    """Let the handlers of the addresses that give texts add receipts."""
    for address in (CHAT, PLAIN):
        handlers[address].handle_request = with_receipts(handlers[address].handle_request, ask)


def add_chat_page(app: Any, ask: Ask) -> None:
    """Add a page that shows answers with the marks of their receipts, and the address of the texts of its pages."""
    from starlette.requests import Request
    from starlette.responses import FileResponse

    def file(request: Request) -> FileResponse:
        return FileResponse(CHAT_PAGE / FILES[request.url.path], headers=HEADERS)

    for address in FILES:
        app.add_route(address, file)

    @app.get("/receipt-page")
    def page(shard: str, document: int) -> dict[str, Any]:
        return ask({"shard": shard, "document": document})
