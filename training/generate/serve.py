"""Serve one model on loopback with OpenAI's interface: `python -m training.generate.serve NAME PORT FD`.

The server is `transformers serve`, for the model that the folder NAME of the working directory holds. This module adds
what it lacks: it opens the model as everything here does, before it listens, and ends with exit code 2 if the folder
holds no whole model. It encodes conversations as everything here does, so that no text in one makes a turn. It answers
no request whose host is not this machine. Otherwise a web page could send it requests through a host name that points
to 127.0.0.1 (DNS rebinding). It has no address by which another model could be loaded, or this one unloaded, and it
downloads nothing. And it writes a byte into the open file FD once it listens.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from training.contract.job import DataError
from training.contract.process.exit_codes import BAD_INPUT
from training.generate.chat_template import TEMPLATE_FILE
from training.generate.encoder import Encoder
from training.generate.model_folder import open_model  # the first to import transformers: offline, without torchao

LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")
ADDRESSES = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models", "/health")
MARKERS = ("<|im_start|>", "<|turn>")  # of Qwen's and of Gemma's templates


def main(name: str, port: int, ready: int) -> None:
    """Serve until a signal ends the process; write a byte into the open file `ready` once the server listens.

    Raise DataError if the folder holds no whole model.
    """
    import uvicorn
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from transformers.cli.serve import Serve
    from transformers.cli.serving import server, utils
    from transformers.cli.serving.model_manager import ModelManager

    first = [open_model(Path(name), dtype="auto").eval()]

    def opened(*_: Any, **__: Any) -> Any:
        return first.pop() if first else open_model(Path(name), dtype="auto").eval()  # it was unloaded while idle

    ModelManager._load_model = opened
    ModelManager._load_processor = lambda *_, **__: tokenizer_of(Path(name))
    if not _has_markers_of_its_type(Path(name)):
        utils._RESPONSE_TEMPLATE_FALLBACKS.clear()  # an answer would begin with the prompt
    build = server.build_server

    def guarded(*arguments: Any, **options: Any) -> Any:
        app = build(*arguments, **options)
        app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", "") in ADDRESSES]
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS), www_redirect=False)
        return app

    server.build_server = guarded
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
    sys.argv = ["transformers serve", name, "--host", LOOPBACK, "--port", str(port)]
    import typer

    app = typer.Typer()
    app.command()(Serve)
    app()


def tokenizer_of(folder: Path) -> Any:
    """Return a folder's tokenizer, which encodes conversations as `Encoder` does.

    The server parses the arguments of calls; the template writes them as text.
    """
    from transformers import BatchEncoding

    encoder = Encoder(folder)

    def encoded(messages: list[Any], *, return_tensors: str | None = None, **_: Any) -> BatchEncoding:
        for call in chain.from_iterable(message.get("tool_calls") or () for message in messages):
            made = call.get("function") or call
            call["function"] = {"name": made["name"], "arguments": json.dumps(made["arguments"], ensure_ascii=False)}
        ids = encoder.conversations([messages], is_prompt=True)
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
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
