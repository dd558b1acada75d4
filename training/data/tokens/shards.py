"""The names of what a token_shards artifact holds; docs/architecture.md, "Shards and plan", has the format."""

from __future__ import annotations

from typing import Final

SHARDS_FILE: Final = "shards.json"  # the listing
TOKENS: Final = ".bin"
OFFSETS: Final = ".offsets.npy"
SIDECAR: Final = ".documents.parquet"
