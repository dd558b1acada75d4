"""Make what the measurement of a growing corpus reads: pages of an archive, a tokenizer, and the filter's settings."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from html import escape
from pathlib import Path

from tests.training.data import chain
from training.contract.job import InputArtifact
from training.data.crawl.crawl import source_files
from training.data.crawl.settings import SnapshotRecipe
from training.data.filter.settings import FilterRecipe
from training.data.tokens.tokenizer_settings import TokenizerRecipe

FILTER = FilterRecipe(
    rules=("url", "language", "gopher_repetition", "gopher_quality", "c4", "fineweb", "toxicity", "personal_data"),
    gopher_min_alphabetic_fraction=0.5,  # the texts' commas and full stops stand alone: words to the rule
)


def trained(root: Path, texts: list[str]) -> InputArtifact:
    """Train a tokenizer with a small vocabulary on these texts; return its artifact."""
    source = chain.documents(root / "sample", "one", [texts], asset="decontaminated_documents")
    recipe = TokenizerRecipe(snapshots=("one",), vocabulary=2048, min_bytes_per_token=1.0)
    return chain.run(root, "tokenizer", "tokenizer", "tiny", {"tokenizer": recipe}, [source])


def crawl(root: Path, parts: Sequence[list[str]], snapshot: str = "one") -> InputArtifact:
    """Write the texts as pages in WARC files; return the artifact with these archives."""
    folder = root / "warc" / snapshot
    folder.mkdir(parents=True)
    for number, texts in enumerate(parts):
        pages = (record(f"http://a.test/{number}/{place}", page(text)) for place, text in enumerate(texts))
        (folder / f"{number:05d}.warc.gz").write_bytes(b"".join(pages))
    source = SnapshotRecipe(name=snapshot, source="warc", paths=(str(folder),))
    settings = {"snapshot": source, "files": source_files(source)}
    return chain.run(root, "crawl", "crawl_archives", f"tiny@{snapshot}", settings)


def page(text: str) -> bytes:
    """Return an HTML page with a menu that shows a text in paragraphs of 60 words."""
    words = escape(text).split(" ")
    written = "".join(f"<p>{' '.join(words[start : start + 60])}.</p>\n" for start in range(0, len(words), 60))
    menu = "".join(f"<li><a href=/{number}>Part {number}</a>" for number in range(20))
    return (
        f"<html lang=en><head><title>{words[0]}</title><body><nav><ul>{menu}</ul></nav><main>{written}</main>".encode()
    )


def record(uri: str, html: bytes) -> bytes:
    """Return a WARC record with an HTML page, as one gzip member."""
    block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + html
    head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {uri}\r\nContent-Length: {len(block)}\r\n\r\n"
    return gzip.compress(head.encode() + block + b"\r\n\r\n", compresslevel=1, mtime=0)
