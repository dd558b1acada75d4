"""The documents on which a tokenizer is trained and measured: those whose ids have the lowest and highest hashes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow.compute as pc
import xxhash

from training.contract.job import DataError
from training.data.bottom_k_sample import Column, Lowest, load_columns, save_columns
from training.data.documents import read_tables, rows_at
from training.data.tokens.tokenizer_settings import TokenizerRecipe

HELD_OUT_FRACTION: Final = 0.02
HELD_OUT_BYTES: Final = 2_000_000


class Choice(NamedTuple):
    """The documents of one file that may be in the sample: columns of hashes, sizes and rows, sorted by hash.

    The hashes of those that may be held out are inverted, so that the highest come first. `documents` is the number of
    all documents of the file.
    """

    documents: int
    lowest: tuple[Column, ...]
    highest: tuple[Column, ...]

    @staticmethod
    def of(path: Path, recipe: TokenizerRecipe) -> Choice:
        """Choose in a file of documents."""
        lowest, highest, documents = Lowest(recipe.sample_bytes, more=1), Lowest(HELD_OUT_BYTES, more=1), 0
        for table in read_tables(path, ["id", "text"]):
            hashes = np.array([_hash(one) for one in table["id"].to_pylist()], np.uint64)
            sizes = pc.binary_length(table["text"]).to_numpy().astype(np.int64)
            rows = np.arange(documents, documents + len(hashes))
            lowest.add(hashes, sizes, rows)
            highest.add(~hashes, sizes, rows)
            documents += len(hashes)
        return Choice(documents, lowest.documents(), highest.documents())

    def save(self, path: Path) -> None:
        """Write the choice to two files, which have this path and an ending."""
        for ending, columns in zip(ENDINGS, (self.lowest, self.highest), strict=True):
            save_columns(path.with_suffix(ending), *columns)

    @staticmethod
    def load(path: Path, documents: int) -> Choice:
        """Read a choice that was written under this path."""
        lowest, highest = (load_columns(path.with_suffix(ending)) for ending in ENDINGS)
        return Choice(documents, lowest, highest)


ENDINGS = (".lowest.npy", ".highest.npy")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerSample:
    """The documents to train a tokenizer on, and held-out ones to measure it on: for each file, rows in order."""

    files: Sequence[Path]
    trained: Sequence[Column]
    held_out: Sequence[Column]
    train_bytes: int
    documents: int

    @staticmethod
    def choose(files: Sequence[Path], recipe: TokenizerRecipe) -> TokenizerSample:
        """Return the sample of the documents in files, of which all are read in this process."""
        choices = [Choice.of(path, recipe) for path in files]
        return TokenizerSample.among(files, choices.__getitem__, recipe)

    @staticmethod
    def among(files: Sequence[Path], choice_of: Callable[[int], Choice], recipe: TokenizerRecipe) -> TokenizerSample:
        """Choose the documents with the smallest hashes for training, up to `sample_bytes`; hold out the largest.

        Held out are 2 % of all documents, at most 2 MB of text, and at least one document if there are two.
        `choice_of` returns the choice in the file with a number, and is called twice for each. Raise DataError if there
        is no document.
        """
        lowest, highest, documents = Lowest(recipe.sample_bytes), Lowest(HELD_OUT_BYTES), 0
        for number in range(len(files)):
            choice = choice_of(number)
            documents += choice.documents
            lowest.add(*choice.lowest[:2])
            highest.add(*choice.highest[:2])
        if not documents:
            raise DataError("tokenizer: the snapshots in tokenizer.snapshots have no document left to train on")
        held_out = min(max(1, int(documents * HELD_OUT_FRACTION)), documents - 1, max(highest.fitting(), 1))
        trained = max(1, min(lowest.fitting(), documents - held_out))
        (hashes, sizes), (inverted, _) = lowest.documents(), highest.documents()
        last, first = hashes[trained - 1], inverted[max(held_out, 1) - 1]
        choices = (choice_of(number) for number in range(len(files)))
        rows = [(_rows(one.lowest, last), _rows(one.highest, first)) for one in choices]
        return TokenizerSample(
            files=files,
            trained=[one for one, _ in rows],
            held_out=[one for _, one in rows],
            train_bytes=int(sizes[:trained].sum()),
            documents=documents,
        )

    @property
    def unused(self) -> int:
        """The number of documents that are neither trained on nor held out."""
        return self.documents - sum(map(len, self.trained)) - self.measured_alone

    @property
    def measured_alone(self) -> int:
        """The number of documents that are held out. A single document is trained on too, and not counted here."""
        both = zip(self.trained, self.held_out, strict=True)
        return sum(int((~np.isin(held_out, trained)).sum()) for trained, held_out in both)

    def only_held_out(self) -> TokenizerSample:
        """Return the sample without its documents for training; the held-out documents stay the same."""
        return replace(self, trained=[rows[:0] for rows in self.trained], train_bytes=0)

    def training_texts(self) -> Iterator[str]:
        """Yield the texts on which the tokenizer is trained, in file order."""
        return (row["text"] for row in self._at(self.trained, ["text"]))

    def held_out_rows(self) -> list[dict[str, Any]]:
        """Return the documents held out from the tokenizer's training, with text, language and source."""
        return list(self._at(self.held_out, ["text", "language", "source"]))

    def _at(self, chosen: Sequence[Column], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the chosen rows of each file. Files without any are not opened."""
        for number, rows in enumerate(chosen):
            if len(rows):
                yield from rows_at(self.files[number], rows.tolist(), columns)


def _rows(columns: tuple[Column, ...], last: Any) -> Column:
    """Return the rows whose hashes are at most `last`, in the order of the file."""
    hashes, _, rows = columns
    return np.sort(rows[hashes <= last])


def _hash(document_id: str) -> int:
    return xxhash.xxh3_64_intdigest("tokenizer\0" + document_id)
