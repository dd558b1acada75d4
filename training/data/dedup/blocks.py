"""Pack arrays and strings into the slices that one phase of deduplication writes for another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Array = npt.NDArray[Any]


def packed(arrays: Sequence[Array]) -> list[Array]:
    """Return arrays as the parts of a slice, which is read by a later phase; `unpacked` restores the arrays.

    The parts are the number of bytes of each array, and the arrays. Each array has items of 8 bytes, or is the last
    one.
    """
    return [np.array([array.nbytes for array in arrays], np.int64), *map(np.ascontiguousarray, arrays)]


def unpacked(data: bytes, dtypes: Sequence[npt.DTypeLike]) -> list[Array]:
    """Return the arrays in a slice, given their data types.

    They share the slice's memory and are read-only.
    """
    at = 8 * len(dtypes)
    arrays = []
    for dtype, size in zip(dtypes, np.frombuffer(data, np.int64, len(dtypes)).tolist(), strict=True):
        one = np.dtype(dtype)
        arrays.append(np.frombuffer(data, one, size // one.itemsize, at))
        at += size
    return arrays


def strings(values: pa.StringArray) -> tuple[Array, Array]:
    """Return the start of each string, [strings + 1], and the bytes of all strings end to end."""
    sizes = np.array([0, *pc.binary_length(values).to_pylist()], np.int64)
    return np.cumsum(sizes), np.frombuffer("".join(values.to_pylist()).encode(), np.uint8)


def strings_of(starts: Array, data: Array) -> pa.LargeStringArray:
    """Return the strings from their starts and bytes; the inverse of `strings`."""
    return pa.LargeStringArray.from_buffers(len(starts) - 1, pa.py_buffer(np.array(starts)), pa.py_buffer(data))


def ranges(starts: Array, ends: Array) -> Array:
    """Return the whole numbers of several ranges in one array, one range after the other."""
    sizes = ends - starts
    return np.repeat(starts - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())


def joined(parts: Sequence[Array], dtype: npt.DTypeLike) -> Array:
    """Return the arrays concatenated, without a copy if only one has items."""
    filled = [part for part in parts if len(part)]
    return filled[0] if len(filled) == 1 else np.concatenate([np.empty(0, dtype), *filled])
