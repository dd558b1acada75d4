"""The files of a provenance index: sorted arrays, memory-mapped, without an object for each page.

A page is a number: its row in all *places* end to end. A place is a file of another artifact in which pages ended: the
sidecar of a shard, the dropped documents of a stage, or quarantined records. Text, URL and reason of a page are read
from its place; the arrays only lead there. The hashes are of 32 bits, so what they find is compared with the place.

| file | content |
|---|---|
| `places.npy` | int64 [4, places]: first page, kind (as in KINDS), rank, number of the shard of the rank |
| `reasons.npy`, `reasons.json` | uint16 [pages]: the number of the page's reason in the list; 0: it is in a shard |
| `ids.npy`, `id_pages.npy` | uint32 [pages]: hashes of ids in order, and their pages |
| `urls.npy`, `url_pages.npy` | uint32 [pages]: by host, hashes of the rest of the URL in order, and their pages |
| `hosts.dat` | the reversed hosts in order, each without the part that it shares with the one before |
| `host_sizes.npy` | uint8 [2, hosts]: bytes shared with the host before, and bytes of its own |
| `host_pages.npy` | uint32 [hosts]: the pages of each host |
| `host_blocks.npy` | int64 [2, blocks]: byte in `hosts.dat` and first page (in order of URLs) of every HOSTS_IN_BLOCK |
| `kept.npy`, `copies.npy` | uint32 [duplicates]: hashes of ids that were kept, in order; their dropped duplicates |
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import xxhash

from training.contract.job import InputArtifact

PLACES_FILE: Final = "places.npy"
REASONS_FILE, REASON_LIST_FILE = "reasons.npy", "reasons.json"
IDS_FILE, ID_PAGES_FILE = "ids.npy", "id_pages.npy"
URLS_FILE, URL_PAGES_FILE = "urls.npy", "url_pages.npy"
HOSTS_FILE, HOST_SIZES_FILE, HOST_PAGES_FILE = "hosts.dat", "host_sizes.npy", "host_pages.npy"
HOST_BLOCKS_FILE: Final = "host_blocks.npy"
KEPT_FILE, COPIES_FILE = "kept.npy", "copies.npy"
FILES: Final = (
    PLACES_FILE,
    REASONS_FILE,
    REASON_LIST_FILE,
    IDS_FILE,
    ID_PAGES_FILE,
    URLS_FILE,
    URL_PAGES_FILE,
    HOSTS_FILE,
    HOST_SIZES_FILE,
    HOST_PAGES_FILE,
    HOST_BLOCKS_FILE,
    KEPT_FILE,
    COPIES_FILE,
)

HOSTS_IN_BLOCK: Final = 64  # the first of a block is written whole, so that a search reads one block
PLACE_FIELDS: Final = 4
FIRST, KIND, RANK, PART = range(PLACE_FIELDS)
MOST_PAGES: Final = 1 << 32


class Kind(NamedTuple):
    """A kind of place where pages end: the asset, the outcome of the pages, and the form of the files' names."""

    asset: str
    outcome: str
    folder: str


KEPT, DROPPED, QUARANTINED = "kept", "dropped", "quarantined"
SHARDS: Final = "shards"
KINDS: Final = (
    Kind("token_shards", KEPT, SHARDS),
    Kind("extracted_documents", DROPPED, "dropped"),
    Kind("extracted_documents", QUARANTINED, "quarantine"),
    Kind("filtered_documents", DROPPED, "dropped"),
    Kind("deduplicated_documents", DROPPED, "dropped"),
    Kind("decontaminated_documents", DROPPED, "dropped"),
)
KEPT_KIND, DUPLICATE_KIND = 0, 4


def files_of(item: InputArtifact, kind: int) -> list[str]:
    """Return the files of a kind in its artifact, in the order of ranks."""
    return sorted(name for name in item.files() if name.startswith(f"{KINDS[kind].folder}/"))


def shard_of(rank: int, part: int) -> str:
    """Return the name of the sidecar of a rank's shard."""
    return f"{SHARDS}/{rank:05d}{f'-{part:03d}' if part else ''}.documents.parquet"


def hash_of(text: str) -> int:
    """Return the hash by which an id or the rest of a URL is found: 32 bits."""
    return xxhash.xxh3_64_intdigest(text) & 0xFFFFFFFF


def page_type(pages: int) -> np.dtype:
    """Return the type of page numbers: 4 bytes, or 8 if there are more pages than these can count."""
    return np.dtype("<u4" if pages < MOST_PAGES else "<u8")
