"""Files of a good size: small archives are extracted together, and a large one is written to several files.

Both depend on the sizes of archives and records alone. So every machine makes the same files, and a page that is
withdrawn later moves no other page to another file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from training.data.crawl.token_files import TokenDocument
from training.data.crawl.warc import Record

TOKEN_BYTES = 4


def together(entries: Sequence[Mapping[str, Any]], least: int | None) -> list[tuple[Mapping[str, Any], ...]]:
    """Return the archives of each rank: neighbours, until they have `least` bytes; without `least`, one archive each.

    An archive whose size is not known counts as large. The last rank may have less.
    """
    groups: list[tuple[Mapping[str, Any], ...]] = []
    group: list[Mapping[str, Any]] = []
    size = 0
    for entry in entries:
        group.append(entry)
        size += entry["bytes"] if entry.get("bytes") is not None else least or 0
        if least is None or size >= least:
            groups.append(tuple(group))
            group, size = [], 0
    return [*groups, tuple(group)] if group else groups


def pieces(items: Iterable[Any], most: int | None) -> Iterator[Iterator[Any]]:
    """Yield the items of each file: a file ends with the item that brings it to `most` bytes; one file without `most`.

    The items of a piece must be taken before the next piece. There is one piece, without items, if there are no items.
    """
    rest = iter(items)
    first = next(rest, None)
    if most is None or first is None:
        yield _joined(first, rest)
        return
    while first is not None:
        yield _until(first, rest, most)
        first = next(rest, None)


def _joined(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    if first is not None:
        yield first
        yield from rest


def _until(first: Any, rest: Iterator[Any], most: int) -> Iterator[Any]:
    yield first
    size = size_of(first)
    while size < most and (item := next(rest, None)) is not None:
        yield item
        size += size_of(item)


def size_of(item: Any) -> int:
    """Return about how many bytes of content an item of an archive has; 0 for a damaged part.

    Texts count by characters, and tokens by TOKEN_BYTES.
    """
    if isinstance(item, Record):
        return item.end - item.start
    content = item[1] if isinstance(item, tuple) else None  # a numbered row
    if isinstance(content, TokenDocument):
        return len(content.ids) * TOKEN_BYTES
    if isinstance(content, Mapping):
        return sum(len(value) for value in content.values() if isinstance(value, str | bytes))
    return len(content) if isinstance(content, bytes) else 0
