"""Files that appear whole or not at all. Standard library only."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def written(path: Path, mode: str = "wb", *, durable: bool = True) -> Iterator[IO[Any]]:
    """A stream whose content appears at `path` whole or not at all: temporary name, fsync, rename.

    Without `durable` there is no fsync, which waits for the disk: after a power failure the file may be empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    encoding = None if "b" in mode else "utf-8"
    try:
        with open(temporary, mode, encoding=encoding) as stream:
            yield stream
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a text file whole or not at all."""
    with written(path, "w", durable=durable) as stream:
        stream.write(text)


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Write JSON (indented, sorted keys) whole or not at all."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    write_text(path, text, durable=durable)
