"""Floating-point numbers of 16 and 32 bits in parquet files get their shortest text: 1.1, not 1.100000023841858.

A parquet file with two columns of one name is refused, for a row would have the last one alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from training.contract.job import DataError
from training.data.parquet_pages import UntrustedParquet
from training.data.sources import MOST_SHOWN, WrittenFloat, open_uri, seekable


class ShortFloat(WrittenFloat):
    """A number whose text is the shortest that is read as the same number of its 16 or 32 bits."""

    def __new__(cls, text: str, value: float) -> ShortFloat:
        """Return `value`, whose text is given."""
        found = float.__new__(cls, value)
        found._text = text
        return found


def with_short_numbers(rows: Iterable[dict[str, Any]], uri: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file; those of a parquet file with the short numbers of its columns as people write them.

    Raise DataError for a parquet file that has two columns of one name.
    """
    short: dict[str, Any] | None = None
    for row in rows:
        if short is None:  # the file can be read
            short = _short_columns(uri) if uri.endswith(".parquet") else {}
        yield row | {name: _as_written(row[name], kind) for name, kind in short.items()} if short else row


def _short_columns(uri: str) -> dict[str, Any]:
    """Return the Arrow types of the columns that have short numbers, by name."""
    with open_uri(uri) as stream:
        parquet = UntrustedParquet(seekable(stream), uri)
        if twice := next((name for name, count in Counter(parquet.names).items() if count > 1), None):
            raise DataError(f"{uri}: has the column {twice[:MOST_SHOWN]!r} twice; rename one of them")
        group = next(number for number, rows in enumerate(parquet.group_rows) if rows)
        return {one.name: one.type for one in next(parquet.batches(group)).schema if _is_short(one.type)}


def _is_short(kind: Any) -> bool:
    from pyarrow import types

    if kind.num_fields:
        return any(_is_short(kind.field(place).type) for place in range(kind.num_fields))
    return types.is_float16(kind) or types.is_float32(kind)


def _as_written(value: Any, kind: Any) -> Any:
    """Return a value of an Arrow type with its short numbers as people write them."""
    from pyarrow import types

    if isinstance(value, float):
        is_short = math.isfinite(value) and not types.is_float64(kind)
        return ShortFloat(str(kind.to_pandas_dtype()(value)), value) if is_short else value
    if isinstance(value, dict):
        return {one.name: _as_written(value[one.name], one.type) for one in kind}
    if not isinstance(value, list):
        return value
    if types.is_map(kind):
        return [(_as_written(key, kind.key_type), _as_written(one, kind.item_type)) for key, one in value]
    return [_as_written(one, kind.value_type) for one in value]
