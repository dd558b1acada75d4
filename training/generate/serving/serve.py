"""Serve a model on loopback with OpenAI's interface: `python -m training.generate.serving.serve NAME PORT FD SOCKET`.

The server is `transformers serve`, for the model whose folder the other side of the open SOCKET names
(`training/generate/serving/served.py`). This module adds what it lacks: it opens the model as everything here does,
before it listens, and ends with exit code 2 if the folder holds no whole model. It encodes conversations as everything
here does, so that no text in one makes a turn. It answers no request whose host is not this machine. Otherwise a web
page could send it requests through a host name that points to 127.0.0.1 (DNS rebinding). It has no address by which
another model could be loaded, or this one unloaded, and it downloads nothing. It answers what it does not do with 400
(`training/generate/serving/served_requests.py`), in the form in which OpenAI's clients look for the sentence. And it
writes a byte into the open file FD once it listens.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache, partial
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from typing import Any

from training.contract.job import DataError
from training.contract.process.exit_codes import BAD_INPUT
from training.generate.chat_template import TEMPLATE_FILE
from training.generate.encoder import Encoder
from training.generate.model_folder import open_model  # the first to import transformers: offline, without torchao
from training.generate.serving.answers import add_chat_page, add_to_answers
from training.generate.serving.metrics import Metrics, add_metrics
from training.generate.serving.served import Ask, Served, ServedPlace, asking, follow
from training.generate.serving.served_requests import CHAT, PLAIN, RESPONSES, Template, why_not

LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")
ADDRESSES = (CHAT, PLAIN, RESPONSES, "/health")
MARKERS = ("<|im_start|>", "<|turn>")  # of Qwen's and of Gemma's templates
LEAST_TEMPERATURE = 1e-6  # logits over less would overflow; the likeliest token is taken


def main(name: str, port: int, ready: int, questions: int) -> None:
    """Serve until a signal ends the process; write a byte into the open file `ready` once the server listens.

    Raise DataError if the folder holds no whole model.
    """
    import typer
    import uvicorn
    from transformers.cli.serve import Serve

    ask = asking(questions)
    first = ask({"serving": 0, "problem": ""})
    metrics = Metrics()

    def opened(told: Mapping[str, Any]) -> Served:
        served = _open(told)
        metrics.answers(served.says)
        return served

    place = ServedPlace(opened(first))
    _answer_what_is_done(name, place, metrics, ask, has_receipts=first["receipts"])
    if first["follows"]:
        follow(place, opened, ask)
    start = uvicorn.Server.startup

    async def started(self: uvicorn.Server, *arguments: Any, **options: Any) -> None:
        await start(self, *arguments, **options)  # ends the process if the port is in use
        os.write(ready, b"1")

    uvicorn.Server.startup = started
    configure = uvicorn.Config.configure_logging

    def quiet(self: uvicorn.Config) -> None:
        self.use_colors = False if os.environ.get("NO_COLOR") else self.use_colors
        configure(self)
        # `pedigree serve` says when the server begins and ends. Requests are still listed.
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)

    uvicorn.Config.configure_logging = quiet
    # typer gives the other options their defaults only on the command line.
    sys.argv = ["transformers serve", name, "--host", LOOPBACK, "--port", str(port), "--log-level", "error"]
    app = typer.Typer()
    app.command()(Serve)
    app()


def _open(told: Mapping[str, Any]) -> Served:
    """Open the model and the tokenizer of the folder that was named, as everything here does; look what it writes."""
    from transformers.cli.serving import utils

    folder = Path(told["folder"])
    model, tokenizer = open_model(folder, dtype="auto").eval(), tokenizer_of(folder)
    model.generate = _with_own_seed(model.generate)
    known = _parsers()  # before the first model replaces them
    # Without the markers, an answer would begin with the prompt.
    utils._RESPONSE_TEMPLATE_FALLBACKS = known if _has_markers_of_its_type(folder) else {}
    text, parsed = str(tokenizer.chat_template or ""), utils.get_response_template(tokenizer, model) is not None
    # Without a parser of its answers, calls would come back as text.
    template = Template(chats=bool(text), tools="tools" in text and parsed, parsed=parsed, receipts=told["receipts"])
    return Served(number=told["number"], says=told["says"], model=model, tokenizer=tokenizer, template=template)


@cache
def _parsers() -> Any:
    """Return how the server parses answers, by types of models, as it was before the first model was opened."""
    from transformers.cli.serving import utils

    return utils._RESPONSE_TEMPLATE_FALLBACKS


def _answer_what_is_done(name: str, place: ServedPlace, metrics: Metrics, ask: Ask, *, has_receipts: bool) -> None:
    """Refuse what the server does not do, name the served model, and close the addresses of other models."""
    from starlette.exceptions import HTTPException
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from transformers.cli.serving import chat_completion, completion, response, server, utils
    from transformers.cli.serving.model_manager import ModelManager

    def own(*_: Any, **__: Any) -> tuple[Any, Any]:
        served = place.own
        return served.model, served.tokenizer

    ModelManager.process_model_name = staticmethod(_as_asked)
    ModelManager.load_model_and_processor = own
    handlers = {
        CHAT: chat_completion.ChatCompletionHandler,
        PLAIN: completion.CompletionHandler,
        RESPONSES: response.ResponseHandler,
    }
    address_of = {handler: address for address, handler in handlers.items()}

    def checked(self: Any, body: dict[str, Any]) -> None:
        if problem := why_not(address_of[type(self)], body, place.own.template):
            raise HTTPException(400, problem)
        for message in body.get("messages") or ():
            if message.get("tool_calls", ()) is None:  # as some clients write a message that calls nothing
                del message["tool_calls"]
        body.setdefault("stream", False)  # as the interface says; the server streams its responses

    utils.BaseHandler._validate_request = checked
    settings_of = utils.BaseHandler._build_generation_config

    def sampled(self: Any, body: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        settings: Any = settings_of(self, {**body, "seed": None}, *arguments, **options)
        settings.seed_asked = body.get("seed")  # the server would seed all answers that it is writing
        if body.get("temperature") is not None:
            settings.do_sample = body["temperature"] >= LEAST_TEMPERATURE
        return settings

    utils.BaseHandler._build_generation_config = sampled
    manager = utils.GenerateManager
    manager.generate_streaming = _within_context(manager.generate_streaming)
    manager.generate_non_streaming = _without_stop_strings(_within_context(manager.generate_non_streaming))
    add_to_answers(handlers, place, ask, metrics)
    build = server.build_server

    def built(*arguments: Any, **options: Any) -> Any:
        app = build(*arguments, **options)
        app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", "") in ADDRESSES]
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS), www_redirect=False)
        add_models(app, name)
        add_metrics(app, metrics, tuple(handlers))
        if has_receipts:
            add_chat_page(app, ask)
        add_errors(app)
        return app

    server.build_server = built


def add_models(app: Any, name: str) -> None:
    """Add the addresses that name the served model, which alone there is."""
    from starlette.exceptions import HTTPException

    model = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "pedigree"}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @app.get("/v1/models/{asked:path}")
    def one(asked: str) -> dict[str, Any]:
        if asked != name:
            raise HTTPException(404, f"{asked} is not served; {name} is")
        return model


def add_errors(app: Any) -> None:
    """Let errors have the form of OpenAI's, whose clients show nothing else."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse

    def told(status: int, message: str) -> JSONResponse:
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        return JSONResponse({"error": error}, status)

    @app.exception_handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> JSONResponse:
        is_bare = error.detail == HTTPStatus(error.status_code).phrase  # of an address or a method
        where = f"{request.method} {request.url.path} is not done by this server"
        return told(error.status_code, where if is_bare else error.detail)

    @app.exception_handler(RequestValidationError)
    def unread(_: Request, error: RequestValidationError) -> JSONResponse:
        return told(400, f"a JSON object is needed: {error.errors()[0]['msg']}")


def _as_asked(model_id: str) -> str:
    """Return the name that a request gives the model, for the answer to it; the server would add a revision."""
    return model_id


def _with_own_seed(generate: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method that writes an answer draw it from the request's seed, whatever else is asked meanwhile."""
    import torch

    def seeded(*arguments: Any, generation_config: Any, **options: Any) -> Any:
        seed = getattr(generation_config, "seed_asked", None)
        with nullcontext() if seed is None else torch.random.fork_rng():
            if seed is not None:
                torch.manual_seed(seed)
            return generate(*arguments, generation_config=generation_config, **options)

    return seeded


def _within_context(generate: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method that generates refuse a prompt that fills the model's context, and end answers where it ends."""
    from starlette.exceptions import HTTPException

    def bounded(self: Any, model: Any, processor: Any, inputs: Any, settings: Any, *more: Any, **options: Any) -> Any:
        context, given = model.config.max_position_embeddings, inputs["input_ids"].shape[-1]
        if given >= context:
            raise HTTPException(400, f"{given} tokens are asked; with an answer they must fit the context of {context}")
        settings.max_new_tokens = min(settings.max_new_tokens, context - given)
        return generate(self, model, processor, inputs, settings, *more, **options)

    return bounded


def _without_stop_strings(generate: Callable[..., Any]) -> Callable[..., Any]:
    """Make the method that generates a whole answer end its text before the first stop string."""

    async def cut(self: Any, model: Any, processor: Any, inputs: Any, settings: Any, *more: Any, **options: Any) -> Any:
        text, *counts = await generate(self, model, processor, inputs, settings, *more, **options)
        stops = settings.stop_strings or []
        for stop in [stops] if isinstance(stops, str) else stops:
            text = text.partition(stop)[0]
        return text, *counts

    return cut


def tokenizer_of(folder: Path) -> Any:
    """Return a folder's tokenizer, which encodes conversations as `Encoder` does.

    The server parses the arguments of calls; the template writes them as text.
    """
    from starlette.exceptions import HTTPException
    from transformers import BatchEncoding

    encoder = Encoder(folder)

    def encoded(messages: list[Any], *, return_tensors: str | None = None, **_: Any) -> BatchEncoding:
        for call in chain.from_iterable(message.get("tool_calls") or () for message in messages):
            made = call.get("function") or call
            call["function"] = {"name": made["name"], "arguments": json.dumps(made["arguments"], ensure_ascii=False)}
        try:
            ids = encoder.conversations([messages], is_prompt=True)
        except DataError as error:
            raise HTTPException(400, str(error)) from error
        return BatchEncoding({"input_ids": ids, "attention_mask": [[1] * len(ids[0])]}, tensor_type=return_tensors)

    if encoder.chat is not None:
        encoder.tokenizer.apply_chat_template = encoded
    else:
        encoder.tokenizer.apply_chat_template = partial(
            encoder.tokenizer.apply_chat_template, sanitize_control_tokens=True
        )
    return encoder.tokenizer


def _has_markers_of_its_type(model: Path) -> bool:
    """Whether the chat template has the markers by which `transformers serve` parses answers of this `model_type`.

    A model with a template of its own may not have them, although its `model_type` is known.
    """
    template = model / TEMPLATE_FILE
    return template.is_file() and any(marker in template.read_text("utf-8") for marker in MARKERS)


if __name__ == "__main__":
    try:
        main(sys.argv[1], *map(int, sys.argv[2:]))
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
