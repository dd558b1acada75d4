"""What the answers of a served model have beside their text: which model gave them, and their receipts on request.

Where an answer's parts stand in the training data is looked up beside the records of a root, of which the server of a
model knows nothing: it asks the process that started it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from training.contract.job import DataError
from training.generate.serving.metrics import Metrics
from training.generate.serving.served import Ask, ServedPlace
from training.generate.serving.served_requests import RECEIPT, RESPONSES

CHAT_PAGE = Path(__file__).parent / "chat_page"
FILES = {"/": "chat.html", "/chat.js": "chat.js"}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; base-uri 'none'"
HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
EVENT = "data: "


def add_to_answers(handlers: Mapping[str, Any], place: ServedPlace, ask: Ask, metrics: Metrics) -> None:
    """Let the handlers of some addresses name the model in their answers, add receipts, and count tokens."""
    for address, handler in handlers.items():
        handler.handle_request = _told(handler.handle_request, address, place, ask, metrics)


def _told(
    handle: Callable[..., Any], address: str, place: ServedPlace, ask: Ask, metrics: Metrics
) -> Callable[..., Any]:
    """Make a method that handles a request add to its answer, whether that comes whole or as a stream."""
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse, StreamingResponse

    async def handled(self: Any, body: dict[str, Any], request_id: str) -> Any:
        served = place.begin()
        response = await handle(self, body, request_id)
        named = {} if address == RESPONSES or not served.says else {"system_fingerprint": served.says}

        async def receipt(answer: str) -> dict[str, Any]:
            return await asyncio.to_thread(ask, {"answer": answer, "by": served.number})

        if isinstance(response, StreamingResponse):
            asked = receipt if body.get(RECEIPT) else None
            response.body_iterator = _events(response.body_iterator, named, asked, metrics)
            return response
        said = json.loads(response.body)
        metrics.used(said.get("usage"))
        try:
            receipts = {RECEIPT: await receipt("".join(_texts(said)))} if body.get(RECEIPT) else {}
        except DataError as error:
            raise HTTPException(500, str(error)) from None
        return JSONResponse({**said, **named, **receipts})

    return handled


async def _events(parts: Any, named: Mapping[str, str], receipt: Any, metrics: Metrics) -> AsyncIterator[str]:
    """Yield the events of a stream with the model's name, and last of all one with the receipt of their texts."""
    texts: list[str] = []
    last: dict[str, Any] = {}
    async for part in parts:
        changed = []
        for event in part.split("\n"):  # and not at other ends of lines, which stand in texts
            if not event.startswith(EVENT):
                changed.append(event)
                continue
            last = _read(event.removeprefix(EVENT))
            metrics.used(last.get("usage") or (last.get("response") or {}).get("usage"))
            texts.extend(_texts(last))
            changed.append(f"{EVENT}{json.dumps({**last, **named})}")
        yield "\n".join(changed)
    if receipt is None or "error" in last:
        return
    try:
        told = {RECEIPT: await receipt("".join(texts))}
    except DataError as error:
        told = {"error": str(error)}
    head = {name: last[name] for name in ("id", "object", "created", "model")}
    yield f"{EVENT}{json.dumps({**head, **named, 'choices': [], **told})}\n\n"


def _read(event: str) -> dict[str, Any]:
    """Read an event; one that says an error is written without regard to quotation marks in the sentence."""
    try:
        return json.loads(event)
    except ValueError:
        return {"error": event.strip()}


def _texts(said: Mapping[str, Any]) -> Iterator[str]:
    """Yield what an answer, or an event of one, adds to the text."""
    for choice in said.get("choices") or ():
        written = choice.get("message") or choice.get("delta")
        yield (choice.get("text") if written is None else written.get("content")) or ""


def add_chat_page(app: Any, ask: Ask) -> None:
    """Add a page that shows answers with the marks of their receipts, and the address of the texts of its pages."""
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import FileResponse

    def file(request: Request) -> FileResponse:
        return FileResponse(CHAT_PAGE / FILES[request.url.path], headers=HEADERS)

    for address in FILES:
        app.add_route(address, file)

    @app.get("/receipt-page")
    def page(shard: str, document: int) -> dict[str, Any]:
        try:
            return ask({"shard": shard, "document": document})
        except DataError as error:
            raise HTTPException(500, str(error)) from None
