"""Find a token's document and a document's tokens, through the sidecars of the shards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from training.data.tokens.shards import OFFSETS, SHARDS_FILE, SIDECAR, TOKENS
from training.job import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRange:
    """Position of a document: `length` tokens (including its end-of-text token) from token `start` of a shard on."""

    shard: str
    start: int
    length: int
    document: dict[str, Any]


def document_of(folder: Path, shard: str, token_offset: int) -> dict[str, Any]:
    """Return the sidecar row of the document that contains the token at an offset of a shard.

    A document's end-of-text token belongs to the document. `folder` contains `shards.json`; `shard` is a name listed in
    it. Raise DataError for an unknown shard or an offset outside the shard.
    """
    base = _base(folder, shard)
    offsets = np.load(_beside(base, OFFSETS), mmap_mode="r", allow_pickle=False)
    if not 0 <= token_offset < offsets[-1]:
        raise DataError(f"{folder}: shard {shard} has tokens 0 to {offsets[-1] - 1}; there is none at {token_offset}")
    # The last document that begins at or before the token.
    row = int(np.searchsorted(offsets, token_offset, "right")) - 1
    return pq.read_table(_beside(base, SIDECAR)).slice(row, 1).to_pylist()[0]


def rows(folder: Path, *, url: str | None = None, document_id: str | None = None) -> Iterator[TokenRange]:
    """Yield the token range of each document with this URL or id, shard by shard."""
    wanted = {"url": url, "id": document_id}
    for entry in _listing(folder)["shards"]:
        base = _base(folder, entry["name"])
        table = pq.read_table(_beside(base, SIDECAR))
        mask = np.ones(len(table), np.bool_)
        for column, value in wanted.items():
            if value is not None:
                mask &= pc.equal(table[column], value).fill_null(False).to_numpy()
        offsets = np.load(_beside(base, OFFSETS), mmap_mode="r", allow_pickle=False)
        for row in np.flatnonzero(mask).tolist():
            start, end = int(offsets[row]), int(offsets[row + 1])
            document = table.slice(row, 1).to_pylist()[0]
            yield TokenRange(shard=entry["name"], start=start, length=end - start, document=document)


def _listing(folder: Path) -> dict[str, Any]:
    path = Path(folder, SHARDS_FILE)
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; give the folder of a token_shards artifact") from None


def _base(folder: Path, shard: str) -> Path:
    names = {entry["name"]: entry["path"] for entry in _listing(folder)["shards"]}
    if shard not in names:
        raise DataError(f"{folder}: no shard {shard!r}; there are {', '.join(names)}")
    return Path(folder, names[shard])


def _beside(tokens: Path, suffix: str) -> Path:
    return tokens.with_name(tokens.name.removesuffix(TOKENS) + suffix)
