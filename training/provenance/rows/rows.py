"""Look rows up in row indexes: by id, by what they repeat of a text, by the addresses in them, and by source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from training.contract.job import DataError, InputArtifact
from training.data.address_lists import entries_of
from training.data.documents import read_lines
from training.data.urls import KEY_SIGN, Key
from training.provenance.file_verification import sound
from training.provenance.lineage import Lineage, artifacts_under, item_of, named
from training.provenance.rows.build import GRAMS_FOLDER, ROWS_FOLDER, Row, runs_of, short, texts_in

INDEXES = {  # what each is about
    "row_index": ("instruction_data", "preference_data", "prompt_data"),
    "synthetic_row_index": ("synthetic_text",),
}
WHERE = ("asset", "file", "line", "id", "source", "generator", "outcome", "reason")


@dataclass(frozen=True, slots=True)
class RowIndex:
    """A row index, and the artifacts whose rows are in it, by asset."""

    item: InputArtifact
    inputs: Mapping[str, InputArtifact]

    def _parts(self) -> Iterator[tuple[pa.Table, Path]]:
        """Yield the rows of each part with the file of its runs of words, after checking both."""
        for name in sorted(self.item.files()):
            if name.startswith(f"{ROWS_FOLDER}/"):
                stem = Path(name).stem
                yield pq.read_table(sound(self.item, name)), sound(self.item, f"{GRAMS_FOLDER}/{stem}.npy")

    def counts(self) -> list[dict[str, Any]]:
        """Return how many rows there are of each asset, source, generator and outcome."""
        found: Counter[tuple[str, ...]] = Counter()
        names = ("asset", "source", "generator", "outcome")
        for table, _ in self._parts():
            for one in table.group_by(list(names)).aggregate([([], "count_all")]).to_pylist():
                found[tuple(one[name] or "" for name in names)] += one["count_all"]
        return [{**dict(zip(names, key, strict=True)), "rows": number} for key, number in sorted(found.items())]

    def with_id(self, id_: str) -> list[Row]:
        """Return the rows with an id. Rows of several assets may have one, because ids name the source."""
        return [
            row
            for table, _ in self._parts()
            for row in table.filter(pc.equal(table["id"], id_)).select(list(WHERE)).to_pylist()
        ]

    def with_source(self, source: str) -> list[Row]:
        """Return all rows of a source."""
        return [
            row
            for table, _ in self._parts()
            for row in table.filter(pc.equal(table["source"], source)).select(list(WHERE)).to_pylist()
        ]

    def at(self, asset: str, file: str, lines: Collection[int]) -> list[Row]:
        """Return the rows at these lines, counted from 0, of a file of an asset."""
        return [
            row
            for table, _ in self._parts()
            for row in table.filter(pc.is_in(table["line"], pa.array(sorted(lines)))).select(list(WHERE)).to_pylist()
            if (row["asset"], row["file"]) == (asset, file)
        ]

    def repeating(self, texts: Iterable[str]) -> list[Row]:
        """Return the rows that share a run of eight words with a text, with the number of these runs, most first."""
        wanted = runs_of(list(texts))
        found = [row for part in self._parts() for row in self._repeating(wanted, *part)]
        return sorted(found, key=lambda row: (-row["shared"], row["asset"], row["file"], row["line"]))

    def _repeating(self, wanted: np.ndarray, table: pa.Table, path: Path) -> Iterator[Row]:
        grams = np.load(path, mmap_mode="r")
        keys = np.unique(short(wanted))
        low, high = (np.searchsorted(grams[0], keys, side) for side in ("left", "right"))
        hits = [grams[1, start:stop] for start, stop in zip(low, high, strict=True) if start < stop]
        numbers = np.unique(np.concatenate(hits)) if hits else np.empty(0, np.uint32)
        rows = table.take(pa.array(numbers)).select(list(WHERE)).to_pylist()
        for row, texts in zip(rows, self.texts_of(rows), strict=True):
            own = runs_of(texts)
            if shared := len(np.intersect1d(own, wanted, assume_unique=True)):  # the index knows 32 bits of each run
                yield {**row, "shared": shared, "runs": len(own)}

    def texts_of(self, rows: Sequence[Row]) -> list[list[str]]:
        """Return the texts of rows, read from the artifacts that hold them, each file once."""
        lines: dict[tuple[str, str], dict[int, list[str]]] = {}
        for row in rows:
            lines.setdefault((row["asset"], row["file"]), {})[row["line"]] = []
        for (asset, file), own in lines.items():
            for line, row in enumerate(read_lines(sound(self.inputs[asset], file))):
                if line in own:
                    own[line] = list(texts_in(row))
        return [lines[row["asset"], row["file"]][row["line"]] for row in rows]

    def with_address(self, entries: Collection[str]) -> list[Row]:
        """Return the rows with an address that one of these entries of a list matches."""
        wanted, found = frozenset(entries), []
        for table, _ in self._parts():
            for number, own in enumerate(table["addresses"].to_pylist()):
                if any(not wanted.isdisjoint(entries_of(_key(one))) for one in own):
                    found.append(table.slice(number, 1).select(list(WHERE)).to_pylist()[0])
        return found


def _key(address: str) -> Key:
    host, _, rest = address.removeprefix(KEY_SIGN).partition(")")
    return Key(host, rest)


def rows_holding(indexes: Iterable[RowIndex], texts: Sequence[str], entries: Collection[str] = ()) -> list[Row]:
    """Return the rows that repeat withdrawn texts word for word, or have an address that one of the entries matches.

    `shared` is the number of runs of eight words that a row shares with the texts, `names_it` whether the address
    stands in it. Rows of several indexes over the same artifact are named once.
    """
    found: dict[tuple[Any, ...], Row] = {}
    for index in indexes:
        fingerprints = {asset: item.fingerprint for asset, item in index.inputs.items()}
        rows = [*index.repeating(texts), *(index.with_address(entries) if entries else ())]
        for row in rows:
            place = (fingerprints[row["asset"]], row["file"], row["line"])
            known = found.setdefault(place, {"shared": 0, "runs": 0, "names_it": False, **row})
            known["names_it"] |= "shared" not in row
            known |= {name: row[name] for name in ("shared", "runs") if name in row}
            known["fingerprint"] = fingerprints[row["asset"]]
    return list(found.values())


def row_indexes_of(lineage: Lineage) -> list[RowIndex]:
    """Return the indexes of the rows that an artifact was made from, or is made of; empty if there are no rows.

    Raise DataError if there are rows, and no index of exactly these.
    """
    found = []
    for name, assets in INDEXES.items():
        nodes = {node.item.asset: node for node in lineage.of(*assets)}
        if nodes:
            found.append(_index_of(lineage.root, name, {asset: node.usable for asset, node in nodes.items()}))
    return found


def _index_of(root: Path, name: str, data: Mapping[str, InputArtifact]) -> RowIndex:
    for made in artifacts_under(root, lambda asset: asset == name):
        own = {entry["asset"]: entry["digest"] for entry in made.record["inputs"]}
        if all(own.get(asset) == item.digest for asset, item in data.items()):
            return RowIndex(item_of(made), _inputs(root, made.record))
    recipe = next(iter(data.values())).partition
    raise DataError(f"{name} of these rows is not made; `pedigree run {recipe} --until {name}` makes it")


def row_indexes_under(root: Path) -> list[RowIndex]:
    """Return every row index under a root whose rows are still there."""
    found = []
    for made in artifacts_under(root, lambda asset: asset in INDEXES):
        inputs = _inputs(root, made.record)
        if all(Path(item.path).exists() for item in inputs.values()):
            found.append(RowIndex(item_of(made), inputs))
    return found


def _inputs(root: Path, record: Mapping[str, Any]) -> dict[str, InputArtifact]:
    return {entry["asset"]: named(root, entry) for entry in record["inputs"]}
