"""File names and suffixes in a token_shards artifact; docs/architecture.md, "Shards and plan", describes the format."""

from __future__ import annotations

from typing import Final

SHARDS_FILE: Final = "shards.json"  # the listing
TOKENS: Final = ".bin"
OFFSETS: Final = ".offsets.npy"
SIDECAR: Final = ".documents.parquet"
