"""What `pedigree takedown` finds by text: pages and rows that hold one, and those that repeat what is withdrawn."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assets.state.tombstones import ROW_ASSETS
from training.contract.artifact import Artifact
from training.contract.job import DataError, InputArtifact
from training.data.address_lists import Target
from training.data.documents import read_lines
from training.data.exams.search.folding import folded_words
from training.provenance.file_verification import sound
from training.provenance.grams import WORDS, grams_of, is_in
from training.provenance.index import Index, read_rows
from training.provenance.layout import KEPT_KIND, KINDS, QUARANTINED
from training.provenance.lineage import artifacts_under
from training.provenance.rows.build import OUTCOMES, Row, texts_in
from training.provenance.rows.rows import INDEXES, RowIndex, row_indexes_under, rows_holding
from training.provenance.withdrawal import EXTRACTED, ids_of

ROW_ID = re.compile(r"#\d{7}\Z")
TEXTS = "decontaminated_documents"  # has the texts of pages that are in shards
WITH_ROWS = tuple(asset for assets in INDEXES.values() for asset in assets)


def check_text(text: str) -> None:
    """Raise DataError for a text that is too short to be told from others."""
    if len(own := folded_words(text)) < WORDS:
        raise DataError(f"takedown: --text has {len(own)} words; give at least {WORDS} of it in a row")


def text_key(text: str) -> str:
    """Return the checksum by which the same text is known when it is asked for again, whatever its case or spaces."""
    return hashlib.sha256(" ".join(folded_words(text)).encode()).hexdigest()


def pages_holding(indexes: Sequence[Index], text: str) -> list[list[str]]:
    """Return, for each index, the ids of the pages in whose extracted text the words of a text stand in a row.

    Words are folded as `folded_words` does. Pages that the extraction dropped have no text.
    """
    known = dict[str, list[str]]()
    for item in (index.inputs[EXTRACTED] for index in indexes):
        if item.fingerprint not in known:
            known[item.fingerprint] = [
                rows["id"][row].as_py()
                for rows in _extracted(item)
                for row in _that_hold(text, rows["text"].to_pylist())
            ]
    return [known[index.inputs[EXTRACTED].fingerprint] for index in indexes]


def _extracted(item: InputArtifact) -> Iterator[pa.Table]:
    """Yield the pages of an extraction that have a text, a row group at a time."""
    for name in sorted(name for name in item.files() if name.startswith("documents/")):
        with pq.ParquetFile(sound(item, name)) as parquet:
            for number in range(parquet.num_row_groups):
                yield parquet.read_row_group(number, columns=["id", "url", "text"], use_threads=False)


def _that_hold(text: str, texts: Iterable[str | None]) -> Iterator[int]:
    """Yield the numbers of those texts in which the words of a text stand in a row."""
    known = [one or "" for one in texts]
    grams, of = grams_of(known, folds=True)
    said = f" {' '.join(folded_words(text))} "
    for number in np.unique(of[is_in(grams, np.unique(grams_of([text], folds=True)[0]))]).tolist():
        if said in f" {' '.join(folded_words(known[number]))} ":
            yield number


def rows_named(known: Sequence[RowIndex], names: Sequence[str]) -> list[Row]:
    """Return the rows with these ids, and all rows of sources, with `#` at the end, in all artifacts that hold them."""
    return _with_artifact(
        known,
        lambda index: [
            row
            for name in names
            for row in (index.with_source(name[:-1]) if name.endswith("#") else index.with_id(name))
        ],
    )


def twins_of(known: Sequence[RowIndex], rows: Sequence[Row]) -> list[Row]:
    """Return the other rows that have exactly the texts of one of these rows, which has at least eight words.

    Words are compared as `folded_words` folds them.
    """
    texts = [own for index in known for own in _texts_of_rows(index, rows)]
    wanted = {_key(own) for own in texts}
    flat = [text for own in texts for text in own]

    def own_twins(index: RowIndex) -> list[Row]:
        found = [row for row in index.repeating(flat) if row["asset"] in ROW_ASSETS]
        return [row for row, own in zip(found, index.texts_of(found), strict=True) if _key(own) in wanted]

    named = {_place(row) for row in rows}
    return [row for row in _with_artifact(known, own_twins) if _place(row) not in named]


def _key(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(" ".join(folded_words(text)) for text in texts)


def _place(row: Row) -> tuple[str, str, int]:
    return row["fingerprint"], row["file"], row["line"]


def _texts_of_rows(index: RowIndex, rows: Sequence[Row]) -> list[list[str]]:
    """Return the texts of those rows that are in the artifacts of an index."""
    made = {item.fingerprint for item in index.inputs.values()}
    return index.texts_of([row for row in rows if row["fingerprint"] in made])


def rows_with(known: Sequence[RowIndex], text: str) -> list[Row]:
    """Return the rows of instructions, preferences and prompts in a text of which the words of a text stand in a row.

    No index has folded words, so the rows are read.
    """
    return _with_artifact(
        known, lambda index: [row for item in index.inputs.values() for row in _in(index, item, text)]
    )


def _in(index: RowIndex, item: InputArtifact, text: str) -> Iterator[Row]:
    if item.asset not in ROW_ASSETS:
        return
    for name in (one for one in OUTCOMES if one in item.files()):
        rows = [list(texts_in(row)) for row in read_lines(sound(item, name))]
        of = [line for line, texts in enumerate(rows) for _ in texts]
        lines = {of[place] for place in _that_hold(text, (one for texts in rows for one in texts))}
        yield from index.at(item.asset, name, lines) if lines else ()


def _with_artifact(known: Sequence[RowIndex], rows_in: Callable[[RowIndex], list[Row]]) -> list[Row]:
    found: dict[tuple[Any, ...], Row] = {}
    for index in known:
        for row in rows_in(index):
            made = index.inputs[row["asset"]].fingerprint
            found.setdefault((made, row["file"], row["line"]), {**row, "fingerprint": made})
    return list(found.values())


def rows_of(
    root: Path,
    indexes: Sequence[Index],
    pages: Sequence[np.ndarray],
    targets: Sequence[Target],
    withdrawn: Sequence[Row] = (),
) -> dict[str, Any]:
    """Return the rows that share a run of eight words with a page or a withdrawn row, or name the address of a target.

    `pages` are those of each index. The rows that are `withdrawn` are left out of the answer. `rows_not_known` has a
    sentence for each artifact whose rows are in no index, `pages_repeating_rows` the pages that repeat withdrawn rows.
    """
    known = row_indexes_under(root)
    repeating = _pages_repeating(indexes, pages, withdrawn, known)
    told = {"rows": [], "rows_not_known": list(_not_indexed(root, known)), "pages_repeating_rows": repeating}
    if not known:
        return told
    texts = [text for index, own in zip(indexes, pages, strict=True) for text in _texts(index, own)]
    texts += [text for index in known for own in _texts_of_rows(index, withdrawn) for text in own]
    entries = [one.entry for one in targets if one.kind != "document"]
    gone = {_place(one) for one in withdrawn}
    found = rows_holding(known, texts, entries)
    return told | {"rows": [one for one in found if _place(one) not in gone]}


def _pages_repeating(
    indexes: Sequence[Index], pages: Sequence[np.ndarray], withdrawn: Sequence[Row], known: Sequence[RowIndex]
) -> dict[str, Any]:
    """Return the pages, without these of each index, that share a run of eight words with a withdrawn row, most first.

    `runs` are those of the rows: none if no text of them is left. The extracted texts of all pages are read.
    """
    texts = [text for index in known for own in _texts_of_rows(index, withdrawn) for text in own]
    wanted = np.unique(grams_of(texts)[0])
    if not len(wanted):
        return {"runs": 0, "pages": []}
    gone = {id_ for index, own in zip(indexes, pages, strict=True) for id_ in ids_of(index, own)}
    found: dict[str, dict[str, Any]] = {}
    for item in {index.inputs[EXTRACTED].fingerprint: index.inputs[EXTRACTED] for index in indexes}.values():
        for rows in _extracted(item):
            grams, of = grams_of([text or "" for text in rows["text"].to_pylist()])
            for row in np.unique(of[is_in(grams, wanted)]).tolist():
                own, id_ = np.unique(grams[of == row]), rows["id"][row].as_py()
                if id_ not in gone:
                    told = {"id": id_, "url": rows["url"][row].as_py(), "runs": len(own)}
                    found[id_] = told | {"shared": int(is_in(own, wanted).sum()), "is_kept": False}
    for one in (one for index in indexes for one in index.rows(index.pages_of_ids(found), columns=("id",))):
        if one.place.kind == KEPT_KIND and one.row["id"] in found:
            found[one.row["id"]]["is_kept"] = True
    first = sorted(found.values(), key=lambda one: (-one["shared"], not one["is_kept"], one["id"]))
    return {"runs": len(wanted), "pages": first}


def _not_indexed(root: Path, known: Iterable[RowIndex]) -> Iterator[str]:
    have = {(asset, item.digest) for index in known for asset, item in index.inputs.items()}
    damaged: list[str] = []
    others: list[Artifact] = [
        made
        for made in artifacts_under(root, lambda asset: asset in WITH_ROWS, damaged.append)
        if (made.record["asset"], made.digest) not in have
    ]
    yield from (f"{one}; what its rows repeat is known from their index alone, if there is one" for one in damaged)
    for made in sorted(others, key=lambda one: (one.record["asset"], one.record["partition"])):
        place = f"{made.record['asset']} [{made.record['partition']}] {made.fingerprint[:12]}"
        yield f"The rows of {place} are in no index: whether they repeat a page is not known."


def _texts(index: Index, pages: np.ndarray) -> Iterator[str]:
    """Yield the texts of pages, kept or dropped. Quarantined pages have none, and neither have withdrawn ones."""
    places = index.places_of(pages)
    files: dict[tuple[int, int, int], list[int]] = {}
    for number, place in enumerate(places):
        files.setdefault((place.kind, place.rank, place.part), []).append(number)
    for (kind, rank, _), numbers in files.items():
        if KINDS[kind].outcome == QUARANTINED:
            continue
        if kind == KEPT_KIND:
            ids = set(ids_of(index, pages[numbers]))
            path = sound(index.inputs[TEXTS], f"documents/{rank:05d}.parquet")
            every = pq.read_table(path, columns=["id"])["id"].to_pylist()
            rows = [number for number, id_ in enumerate(every) if id_ in ids]
            texts = [row["text"] for row in read_rows(path, rows, ("text",))]
        else:
            path = sound(index.inputs[KINDS[kind].asset], index.file_of(places[numbers[0]]))
            texts = [row.get("text") for row in read_rows(path, [places[number].row for number in numbers], ("text",))]
        yield from (text for text in texts if text)
