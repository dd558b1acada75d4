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


Index = tuple[int, ...]  # of a tensor's element, or a shape


class Stored(NamedTuple):
    """The shape of a whole tensor; for where a part begins and its shape, the files that hold the part."""

    shape: Index
    files: dict[tuple[Index, Index], list[str]]


class Saved(Mapping[str, Tensor]):
    """The tensors of a checkpoint by name, assembled from parts in files of `folder`; a file is opened when needed."""

    def __init__(self, folder: Path, tensors: Mapping[str, Stored]) -> None:
        self._folder, self._tensors = folder, tensors
        self._files: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Tensor:
        shape = self._tensors[name].shape
        return self.part(name, (0,) * len(shape), shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the whole tensor with this name."""
        return self._tensors[name].shape

    def part(self, name: str, start: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return the part of the whole tensor that begins at `start` and has `shape`; nothing else is read."""
        stored = self._tensors[name].files
        if same := stored.get((tuple(start), tuple(shape))):
            return self._opened(next((file for file in same if file in self._files), same[0])).get_tensor(name)
        made: Tensor | None = None
        for (begin, size), files in stored.items():
            low = [max(a, b) for a, b in zip(start, begin, strict=True)]
            high = [min(a + n, b + m) for a, n, b, m in zip(start, shape, begin, size, strict=True)]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            source = self._opened(files[0]).get_slice(name)
            given = source[tuple(slice(a - o, b - o) for a, b, o in zip(low, high, begin, strict=True))]
            made = torch.empty(tuple(shape), dtype=given.dtype) if made is None else made
            made[tuple(slice(a - o, b - o) for a, b, o in zip(low, high, start, strict=True))] = given
        return torch.empty(tuple(shape)) if made is None else made  # a part may be empty

    def _opened(self, file: str) -> Any:
        if file not in self._files:
            self._files[file] = safe_open(self._folder / file, framework="pt")
        return self._files[file]


def parts_in_headers(folder: Path) -> dict[str, Stored]:
    """Return where the tensors of a folder's files are, by the headers of all of them."""
    found: dict[str, Stored] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            places = json.loads((file.metadata() or {}).get(PLACES, "{}"))
            for name in file.keys():  # noqa: SIM118 - safe_open is not a mapping
                shape = tuple(file.get_slice(name).get_shape())
                start, whole = places.get(name, ([0] * len(shape), shape))
                files = found.setdefault(name, Stored(tuple(whole), {})).files
                files.setdefault((tuple(start), shape), []).append(path.name)
    return found


# The same in one file for all: names of tensors that are divided alike, the whole shape, and each file's part.


def own_parts(tensors: Mapping[str, Tensor], places: Mapping[str, TensorPlace]) -> list[list[Any]]:
    """Return `[names, whole shape, [start, shape]]` for the tensors of a process's file; those divided alike once."""
    alike: dict[tuple[Index, Index, Index], list[str]] = {}
    for name, tensor in tensors.items():
        place = places.get(name, TensorPlace((0,) * tensor.dim(), tuple(tensor.shape), ()))
        alike.setdefault((place.start, tuple(tensor.shape), place.shape), []).append(name)
    return [[names, whole, [start, shape]] for (start, shape, whole), names in alike.items()]


def parts_of_all(of_files: Mapping[str, list[list[Any]]]) -> list[list[Any]]:
    """Return `[names, whole shape, [[file, start, shape], …]]` from the `own_parts` of each file."""
    found: dict[tuple[tuple[str, ...], Index], list[list[Any]]] = {}
    for file, held in of_files.items():
        for names, whole, part in held:
            found.setdefault((tuple(names), tuple(whole)), []).append([file, *part])
    return [[names, whole, parts] for (names, whole), parts in found.items()]


def read_parts(listed: Iterable[list[Any]]) -> dict[str, Stored]:
    """Return where each tensor is, from what `parts_of_all` returned."""
    found: dict[str, Stored] = {}
    for names, whole, parts in listed:
        files: dict[tuple[Index, Index], list[str]] = {}
        for file, start, shape in parts:
            files.setdefault((tuple(start), tuple(shape)), []).append(file)
        for name in names:
            known = found.setdefault(name, Stored(tuple(whole), files))
            if known.files is not files:
                found[name] = Stored(tuple(whole), {**known.files, **files})
    return found


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
