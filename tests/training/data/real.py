"""Pages of the real archives, for tests that are marked `data`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from training.data.crawl.warc import Record, read_warc
from training.data.extract.responses import parse_response, payload


@cache
def real_page(archive: str, address: str) -> tuple[bytes, Mapping[str, str]]:
    """Body, its codings undone, and headers of the first response with that address."""
    for item in read_warc(Path(os.environ["PEDIGREE_DATA"], archive), max_content_bytes=1 << 23):
        if isinstance(item, Record) and item.type == "response" and item.target_uri == address:
            response = parse_response(item.buffer, item.start, item.end)
            return payload(response, max_bytes=1 << 23), response.headers
    raise LookupError(f"{archive}: no response of {address}")
