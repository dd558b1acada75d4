"""The index that the deduplication of a snapshot keeps for later snapshots: its keys, and texts that open one by one.

A later snapshot needs the keys of all earlier documents, and the texts of a few of them. Without the index it spreads
the signatures of every earlier snapshot over the ranges of keys, and decompresses a whole row group of
`filtered_documents` for each few texts in it. With the index it reads keys that were spread once, and blocks of
BLOCK_TEXTS texts.

The index holds nothing that signatures and documents do not hold, so it decides no result: what is missing or damaged
is taken from them. It is in the folder `index/` of an artifact and in its record (`beside`), but not in its digest. A
later job finds it by a key over the digests of the documents and signatures that it was made of.
"""

from __future__ import annotations

import itertools
import os
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import zstandard

from training.contract.artifact import SCRATCH_FOLDER
from training.contract.files.checksums import digest_of
from training.contract.job import InputArtifact, Job
from training.data.dedup.shuffle import SliceFile, SliceWriter
from training.data.documents import bytes_of

Orders = npt.NDArray[np.int64]

FOLDER = "index"
BLOCKS = "blocks"  # name of the scratch files in which ranks write texts
FORMAT = "1"  # raised when other bytes are kept for equal documents and signatures
BLOCK_TEXTS = 8  # 4 take the same space and a quarter more time to write; alone each takes 8 % more (docs/dedup.md)
ZSTD_LEVEL = 1
COLUMNS = ("id", "text")


def key_of(documents: InputArtifact, signed: InputArtifact) -> str:
    """Return the name of the index of a snapshot, a digest over its documents and signatures."""
    return digest_of([FORMAT, documents.digest, signed.digest])[:32]


def folders(job: Job) -> dict[str, Path]:
    """Return the folders of all indexes beside the job's artifact, by key."""
    found: dict[str, Path] = {}
    with suppress(FileNotFoundError):
        for artifact in sorted(Path(job.output).parent.iterdir()):
            if "." not in artifact.name:  # a temporary or removed one
                with suppress(OSError):
                    found |= {key: Path(artifact, FOLDER, key) for key in os.listdir(artifact / FOLDER)}
    return found


def remove(folder: Path) -> None:
    """Remove the index in an artifact's folder, and what an unfinished job has written for it.

    Whoever overwrites pages in the documents calls this, because their texts and keys are in the index too.
    """
    for name in (FOLDER, os.path.join(SCRATCH_FOLDER, BLOCKS), os.path.join(SCRATCH_FOLDER, "keys")):
        shutil.rmtree(folder / name, ignore_errors=True)


def name_of(key: str, group: str, kind: str) -> str:
    """Return the path, in an artifact, of a group's part of the index: its `keys` or its `texts`."""
    return f"{FOLDER}/{key}/{group}.{kind}"


def what_of(key: str, group: str, kind: str) -> str:
    """Return what the checksums in a part of the index cover beside its bytes."""
    return f"{key} {group} {kind}"


def opened(folder: Path, group: str, kind: str) -> SliceFile:
    """Return a group's part of the index in this folder."""
    return SliceFile(folder / f"{group}.{kind}", what_of(folder.name, group, kind))


# Texts


class BlockWriter:
    """Writes the ids and texts of a group's documents in compressed blocks, in order."""

    def __init__(self, slices: SliceWriter, documents_of_files: Orders) -> None:
        slices.add(np.ascontiguousarray(documents_of_files))
        self._slices = slices
        self._compress = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress
        self._waiting = pa.table({name: pa.array([], pa.string()) for name in COLUMNS})

    def add(self, table: pa.Table) -> None:
        """Add documents."""
        table = pa.concat_tables([self._waiting, table.select(COLUMNS).cast(self._waiting.schema)])
        whole = len(table) - len(table) % BLOCK_TEXTS
        self._write(table.slice(0, whole))
        self._waiting = table.slice(whole)

    def close(self) -> None:
        """Write the last block, which may have fewer documents."""
        self._write(self._waiting)

    def _write(self, table: pa.Table) -> None:
        if not len(table):
            return
        (ids, id_at), (texts, text_at) = (bytes_of(table[name].combine_chunks()) for name in COLUMNS)
        sizes = np.stack([np.diff(id_at), np.diff(text_at)], axis=1)
        cuts = [*range(0, len(table), BLOCK_TEXTS), len(table)]
        for first, last in itertools.pairwise(cuts):
            block = ids[id_at[first] : id_at[last]], texts[text_at[first] : text_at[last]]
            self._slices.add(self._compress(b"".join([sizes[first:last].tobytes(), block[0].data, block[1].data])))


class Blocks:
    """The kept ids and texts of a group of documents, which are read one block at a time."""

    def __init__(self, file: SliceFile) -> None:
        self._file = file
        self._decompress = zstandard.ZstdDecompressor().decompress

    def file_starts(self) -> Orders | None:
        """Return the number of the group's documents before each of its files, and of all; None if it is damaged."""
        data = self._file.read(0)
        return None if data is None else np.concatenate([[0], np.cumsum(np.frombuffer(data, np.int64))])

    def of(self, rows: Orders, total: int) -> tuple[pa.StringArray, pa.StringArray] | None:
        """Return the ids and the texts of documents, given by (ascending) row in the group; None if one is damaged.

        `total` is the number of documents in the group.
        """
        ids, texts = list[bytes](), list[bytes]()
        for block, wanted in itertools.groupby(rows.tolist(), key=lambda row: row // BLOCK_TEXTS):
            data = self._file.read(1 + block)
            if data is None:
                return None
            block_ids, block_texts = _unpacked(self._decompress(data), min(BLOCK_TEXTS, total - block * BLOCK_TEXTS))
            for row in wanted:
                ids.append(block_ids[row % BLOCK_TEXTS])
                texts.append(block_texts[row % BLOCK_TEXTS])
        return pa.array(ids, pa.string()), pa.array(texts, pa.string())


def _unpacked(data: bytes, documents: int) -> tuple[list[bytes], list[bytes]]:
    """Return the ids and the texts in a block of so many documents."""
    sizes = np.frombuffer(data, np.int64, 2 * documents).reshape(-1, 2).T
    ends = (np.cumsum(sizes).reshape(2, -1) + 2 * documents * sizes.itemsize).tolist()
    starts = (np.array(ends) - sizes).tolist()
    ids, texts = ([data[a:b] for a, b in zip(*bounds, strict=True)] for bounds in zip(starts, ends, strict=True))
    return ids, texts
