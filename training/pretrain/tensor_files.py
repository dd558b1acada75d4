"""Files of tensors: safetensors with parts of larger tensors, and the whole read back from the parts of all files."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from training.contract.artifact import written

PLACES = "places"  # key in the header of a file of tensors


class TensorPlace(NamedTuple):
    """The index at which a process's part begins in a whole tensor of `shape`.

    Processes along the axes `copies` hold the same part.
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]
    copies: tuple[str, ...]


class Saved(Mapping[str, Tensor]):
    """The tensors of a checkpoint by name, assembled from the parts in its files."""

    def __init__(self, folder: Path) -> None:
        self._parts: dict[str, list[tuple[Any, tuple[int, ...]]]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            file = safe_open(path, framework="pt")
            places = json.loads((file.metadata() or {}).get(PLACES, "{}"))
            for name in file.keys():  # noqa: SIM118 - safe_open is not a mapping
                shape = tuple(file.get_slice(name).get_shape())
                start, whole = places.get(name, ([0] * len(shape), shape))
                self._parts.setdefault(name, []).append((file, tuple(start)))
                self._shapes[name] = tuple(whole)

    def __getitem__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        return self.part(name, (0,) * len(shape), shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the whole tensor with this name."""
        return self._shapes[name]

    def part(self, name: str, start: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return the part of the whole tensor that begins at `start` and has `shape`; nothing else is read."""
        stored = self._parts[name]
        file, _ = stored[0]
        if tuple(shape) == self._shapes[name] == tuple(file.get_slice(name).get_shape()):
            return file.get_tensor(name)
        made: Tensor | None = None
        for file, begin in stored:
            source = file.get_slice(name)
            low = [max(a, b) for a, b in zip(start, begin, strict=True)]
            high = [min(a + n, b + m) for a, n, b, m in zip(start, shape, begin, source.get_shape(), strict=True)]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            given = source[tuple(slice(a - o, b - o) for a, b, o in zip(low, high, begin, strict=True))]
            made = torch.empty(tuple(shape), dtype=given.dtype) if made is None else made
            made[tuple(slice(a - o, b - o) for a, b, o in zip(low, high, start, strict=True))] = given
        return torch.empty(tuple(shape)) if made is None else made  # a part may be empty


# Types in the order in which the safetensors library puts tensors into a file, then by name.
_TYPES: dict[torch.dtype, str] = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_PLACE = {dtype: place for place, dtype in enumerate(_TYPES)}
_ALIGNED = 8  # the header's length in bytes is a multiple of this
_AT_ONCE = 16 << 20  # bytes between two looks at the checksum, so that they are still in the processor's cache


def save_tensors(tensors: dict[str, Tensor], path: Path, places: Mapping[str, TensorPlace] | None = None) -> None:
    """Write a safetensors file, with the library's own layout, and flush it to the disk.

    The checksum is computed while the file is written (`training.contract.files.checksums.sha256_of_written`), so that
    the file need not be read for it. Raise OSError when the disk is full, as for any file.
    """
    listed = {name: (place.start, place.shape) for name, place in (places or {}).items()}
    metadata = {PLACES: json.dumps(listed, sort_keys=True)} if listed else {}
    ordered = sorted(tensors.items(), key=lambda named: (_PLACE[named[1].dtype], named[0]))
    with written(path) as stream:
        stream.write(header(ordered, metadata))
        for _, tensor in ordered:
            write_tensor(stream, tensor)


def header(tensors: Iterable[tuple[str, Tensor]], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the beginning of a safetensors file that has these tensors in this order; they may be on the meta device.

    `metadata` is added to the file's own.
    """
    listed: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    start = 0
    for name, tensor in tensors:
        end = start + tensor.nbytes
        listed[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(listed, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % _ALIGNED)
    return struct.pack("<Q", len(text)) + text


def write_tensor(stream: IO[bytes], tensor: Tensor) -> None:
    """Write the bytes of a tensor, which follow the file's header in its order."""
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    for first in range(0, len(data), _AT_ONCE):
        stream.write(data[first : first + _AT_ONCE].data)
