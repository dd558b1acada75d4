"""Overwrite withdrawn pages in the files of artifacts. Rows, offsets and names of files stay, and so does the lineage.

What stays of a page is its id, address, place and fate, from which `pedigree trace` answers, and the length of its
tokens. Texts, titles, dates and hashes of texts go. Every function leaves a file without such a page untouched, and
returns the number of pages that it overwrote.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from safetensors.numpy import load_file, save

from training.contract.files.erased import erased_in
from training.contract.files.writing import regular_bytes
from training.data.address_lists import AddressList
from training.data.crawl.crawl import LIST_FILE, READER, SHARDS, read_listing
from training.data.crawl.erase import overwrite_records
from training.data.crawl.token_files import open_token_file, read_spelling
from training.data.documents import ZSTD_LEVEL, compressing, decompressed, document_id
from training.data.tokens.shards import OFFSETS, SHARDS_FILE, SIDECAR, TOKENS
from training.provenance.swap import Swap, Unchanged, overwrite_lines
from training.provenance.text.build import INDEX_FILE
from training.provenance.text.suffixes import first_places, suffix_array

# Columns and fields that stay: where a page was, and what became of it. All other text goes.
PLACED = frozenset(
    {"id", "url", "snapshot", "warc_file", "warc_offset", "source", "reason", "duplicate_of", "survivor", "kind"}
    | {"benchmark", "item", "part", "fate", "form", "source_uri"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Withdrawn:
    """The pages to overwrite: ids, and for crawls that are in no index a list of addresses."""

    ids: frozenset[str] = frozenset()
    addresses: AddressList | None = None

    def __bool__(self) -> bool:
        return bool(self.ids) or self.addresses is not None

    def has(self, row: Mapping[str, Any]) -> bool:
        """Whether a row with `id` and `url` is one of the pages."""
        if row["id"] in self.ids:
            return True
        return self.addresses is not None and self.addresses.find(row.get("url") or "", row["id"]) is not None

    def among(self, rows: pa.Table) -> np.ndarray:
        """Return which rows of a table with columns `id` and `url` are pages to overwrite, bool [rows]."""
        if self.addresses is not None:
            columns = [name for name in ("id", "url") if name in rows.column_names]
            return np.array([self.has(row) for row in rows.select(columns).to_pylist()], np.bool_)
        known = pa.array(sorted(self.ids), pa.string())
        return pc.is_in(rows["id"], value_set=known).to_numpy(zero_copy_only=False).astype(np.bool_)


def erase_file(folder: Path, path: Path, gone: Withdrawn, swap: Swap) -> int:
    """Overwrite the pages in one file of an artifact's folder, by what kind of file it is."""
    name = path.relative_to(folder).as_posix()
    if name.endswith(".parquet") and not name.startswith("archives/"):
        return erase_rows(folder, name, gone, swap)
    if name.endswith(TOKENS) and (folder / _beside(name, SIDECAR)).exists():
        return erase_tokens(folder, name, gone, swap)
    if name.split(".", 1)[-1] in ("jsonl", "jsonl.gz", "jsonl.zst", "truth.jsonl") and "/" in name:
        return 0 if name.startswith("archives/") else erase_lines(folder, name, gone, swap)
    return 0


# Documents


def erase_rows(folder: Path, name: str, gone: Withdrawn, swap: Swap) -> int:
    """Overwrite rows of a parquet file of documents; the row groups stay as they are."""
    count = 0
    with pq.ParquetFile(folder / name) as parquet:
        schema = parquet.schema_arrow
        if "id" not in schema.names or not _has_text(schema):
            return 0
        columns = [one for one in ("id", "url") if one in schema.names]
        touched = [bool(gone.among(group).any()) for group in _groups(parquet, columns)]
        if not any(touched):
            return 0
        with swap.overwriting(folder, name, is_input=False) as out:
            with pq.ParquetWriter(out.stream, schema, compression="zstd", compression_level=ZSTD_LEVEL) as writer:
                for group in _groups(parquet, None):
                    blank, number = _blank(group, gone.among(group))
                    count += number
                    writer.write_table(blank, row_group_size=max(1, len(blank)))
            if not count:
                raise Unchanged
            out.pages = count
    return count


def _groups(parquet: pq.ParquetFile, columns: list[str] | None) -> Iterator[pa.Table]:
    for number in range(parquet.num_row_groups):
        yield parquet.read_row_group(number, columns=columns, use_threads=False)


def _has_text(schema: pa.Schema) -> bool:
    return any(_is_text(one) for one in schema)


def _is_text(field: pa.Field) -> bool:
    kind = field.type
    is_some = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)
    return field.name not in PLACED and (is_some or pa.types.is_list(kind) or pa.types.is_struct(kind))


def _blank(rows: pa.Table, gone: np.ndarray) -> tuple[pa.Table, int]:
    """Return the rows without the text of those that are gone, and how many of these had any."""
    had = np.zeros(len(rows), np.bool_)
    mask = pa.array(gone)
    for place, field in enumerate(rows.schema):
        if not _is_text(field):
            continue
        column, kind = rows[field.name], field.type
        plain = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)
        empty = pa.scalar("" if not pa.types.is_binary(kind) else b"", kind) if plain else pa.scalar(None, kind)
        if plain:
            had |= pc.greater(pc.binary_length(column), 0).fill_null(False).to_numpy(zero_copy_only=False)
            blank = pc.if_else(pc.and_(mask, pc.is_valid(column)), empty, column)
        elif field.nullable:
            had |= pc.is_valid(column).to_numpy(zero_copy_only=False)
            blank = pc.if_else(mask, empty, column)
        else:
            values = column.to_pylist()
            had |= np.array([bool(one) for one in values], np.bool_)
            blank = pa.chunked_array(
                [pa.array([([] if out else one) for one, out in zip(values, gone, strict=True)], kind)]
            )
        rows = rows.set_column(place, field, blank)
    return rows, int((had & gone).sum())


def erase_lines(folder: Path, name: str, gone: Withdrawn, swap: Swap) -> int:
    """Overwrite rows of a file of JSON lines that name their place in an archive: quarantined pages, and truth."""
    snapshot = _snapshot_of(folder)

    def is_gone(row: Any) -> bool:
        if not isinstance(row, dict) or not {"warc_file", "warc_offset"} <= row.keys():
            return False
        id_ = document_id(row.get("snapshot") or snapshot, row["warc_file"], row["warc_offset"])
        return gone.has({"id": id_, "url": row.get("url")})

    return overwrite_lines(folder, name, lambda row: _bare(row) if is_gone(row) else row, swap)


def _bare(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose texts, lists and mappings are empty, except for what says where the page was."""
    return {
        name: value if name in PLACED or not isinstance(value, (str, list, dict)) else type(value)()
        for name, value in row.items()
    }


def _snapshot_of(folder: Path) -> str:
    for name in ("job.json", "artifact.json"):
        with suppress(OSError, ValueError):
            return str(json.loads(regular_bytes(folder / name)).get("partition", "")).partition("@")[2]
    return ""


# Tokens


def erase_tokens(folder: Path, name: str, gone: Withdrawn, swap: Swap) -> int:
    """Overwrite the tokens of documents in a shard by the document's own end-of-text token."""
    listing = json.loads((folder / SHARDS_FILE).read_text("utf-8"))
    rows = np.flatnonzero(gone.among(pq.read_table(folder / _beside(name, SIDECAR), columns=["id", "url"])))
    if not len(rows):
        return 0
    tokens = np.fromfile(folder / name, listing["dtype"])
    offsets = np.load(folder / _beside(name, OFFSETS), allow_pickle=False)
    count = 0
    for row in rows.tolist():
        own = tokens[int(offsets[row]) : int(offsets[row + 1])]
        count += bool(len(own) and (own != own[-1]).any())
        own[:] = own[-1:]
    if count:
        with swap.overwriting(folder, name, is_input=False) as out:
            out.pages = count
            tokens.tofile(out.stream)
    return count


def _beside(name: str, suffix: str) -> str:
    return name.removesuffix(TOKENS) + suffix


def erase_suffixes(folder: Path, shards: Path, swap: Swap) -> int:
    """Sort the suffixes of a shard again after its tokens were overwritten; return the number of shards.

    The arrays that were sorted before give the tokens back, so they must not stay.
    """
    listing = json.loads((folder / INDEX_FILE).read_text("utf-8"))
    vocabulary = json.loads((shards / SHARDS_FILE).read_text("utf-8"))["vocab_size"]
    count = 0
    for one in listing["shards"]:
        states = erased_in(shards).get(one["tokens"], ())
        known = erased_in(folder)
        done = min(len(known.get(one[name], ())) for name in ("suffixes", "first"))
        if len(states) <= done:
            continue
        tokens = np.fromfile(shards / one["tokens"], listing["dtype"])
        arrays = {"suffixes": suffix_array(tokens, vocabulary), "first": first_places(tokens, vocabulary)}
        for name, array in arrays.items():
            with swap.overwriting(folder, one[name], is_input=True) as out:
                np.save(out.stream, array, allow_pickle=False)
        count += 1
    return count


def erase_signatures(folder: Path, documents: Path, gone: Withdrawn, swap: Swap) -> int:
    """Overwrite the signatures of documents, which are hashes of their words, by zeros, which match nothing."""
    count = 0
    for path in sorted((folder / "signatures").glob("*.safetensors")):
        source = documents / "documents" / f"{path.stem}.parquet"
        if not source.exists():
            continue
        out = gone.among(pq.read_table(source, columns=["id", "url"]))
        arrays = load_file(path)
        if not out.any() or not arrays["text"][out].any():
            continue
        for name, array in arrays.items():
            if name == "bands":
                array[:, out] = 0
            else:
                array[out] = 0
        with swap.overwriting(folder, f"signatures/{path.name}", is_input=False) as new:
            new.pages = int(out.sum())
            new.stream.write(save(arrays))
        count += int(out.sum())
    return count


# Archives


@dataclass(frozen=True, kw_only=True, slots=True)
class ErasedArchives:
    """The number of overwritten raw records of a crawl, and one line for each archive that could not be reached."""

    records: int = 0
    unreachable: tuple[str, ...] = ()


def erase_archives(folder: Path, ids: Collection[str], swap: Swap) -> ErasedArchives:
    """Overwrite the raw records of pages, by their ids, in the archives that were copied into a crawl's folder."""
    listing = read_listing(folder) if (folder / LIST_FILE).exists() else {"files": [], "form": "warc"}
    by_file: dict[str, list[int]] = {}
    for id_ in ids:
        _, name, offset = id_.rsplit("/", 2)
        by_file.setdefault(name, []).append(int(offset))
    records, unreachable = 0, []
    for entry in listing["files"]:
        offsets = sorted(by_file.get(entry["name"], ()))
        if not offsets:
            continue
        if "uri" in entry:
            unreachable.append(f"{entry['uri']}: {len(offsets)} records in an archive that is only referenced")
            continue
        done, failed = _erase_archive(folder, entry, listing, offsets, swap)
        records += done
        if failed:
            places = ", ".join(map(str, failed[:3]))
            unreachable.append(f"{folder / entry['path']}: {len(failed)} records cannot be overwritten ({places})")
    return ErasedArchives(records=records, unreachable=tuple(unreachable))


def _erase_archive(
    folder: Path, entry: Mapping[str, Any], listing: Mapping[str, Any], offsets: list[int], swap: Swap
) -> tuple[int, list[int]]:
    name, done, failed = entry["path"], 0, []
    if listing["form"] == SHARDS:
        return _erase_token_file(folder, entry, offsets, swap), []
    if listing["form"] == READER:  # a reader writes no file
        return 0, offsets
    if listing["form"] != "warc":
        return _erase_source_rows(folder, name, listing, offsets, swap), []
    with swap.overwriting(folder, name, is_input=True) as out:
        done, failed = overwrite_records(folder / name, offsets, out.stream)
        if not done:
            raise Unchanged
        out.pages = done
    return done, failed


def _erase_token_file(folder: Path, entry: Mapping[str, Any], documents: list[int], swap: Swap) -> int:
    """Overwrite documents in a file of tokens, each with a special token, which the extraction leaves out.

    The checksums of their texts, in the table beside it, go too.
    """
    name, *others, tokenizer = entry["path"], *entry["beside"]
    special = min(read_spelling(folder / tokenizer).special, default=0)
    with swap.overwriting(folder, name, is_input=True) as out:
        file, done = open_token_file(folder / name), 0
        with open(folder / name, "rb") as original:
            shutil.copyfileobj(original, out.stream, 1 << 20)
        for number in documents:
            start, end = int(file.starts[number]), int(file.ends[number])
            done += bool((file.tokens[start:end] != special).any())
            out.stream.seek(start * file.tokens.itemsize)
            out.stream.write(np.full(end - start, special, file.tokens.dtype).tobytes())
        if not done:
            raise Unchanged
        out.pages = done
    for sidecar in (one for one in others if done and one.endswith(SIDECAR)):
        with swap.overwriting(folder, sidecar, is_input=True) as out:
            rows = pq.read_table(folder / sidecar)
            kept = ["" if number in documents else value for number, value in enumerate(rows["sha256"].to_pylist())]
            pq.write_table(rows.set_column(rows.column_names.index("sha256"), "sha256", pa.array(kept)), out.stream)
    return done


def _erase_source_rows(folder: Path, name: str, listing: Mapping[str, Any], rows: list[int], swap: Swap) -> int:
    """Overwrite rows of an archive of extracted text: lines of JSON, rows of parquet, or a whole text."""
    done, fields = 0, (listing["text_field"], "title")
    with swap.overwriting(folder, name, is_input=True) as out:
        if listing["form"] == "parquet":
            done = _blank_rows(folder / name, set(rows), fields, out.stream)
        elif listing["form"] == "jsonl":
            with (
                open(folder / name, "rb") as stream,
                decompressed(stream, name) as lines,
                compressing(out.stream, name) as to,
            ):
                for number, line in enumerate(lines):
                    plain = _blank_line(line, fields) if number in rows else line
                    done += plain != line
                    to.write(plain)
        else:
            done = int((folder / name).stat().st_size > 0)
        if not done:
            raise Unchanged
        out.pages = done
    return done


def _blank_line(line: bytes, fields: Collection[str]) -> bytes:
    try:
        row = json.loads(line)
    except ValueError:
        return b"\n"
    for name in fields:
        if isinstance(row, dict) and isinstance(row.get(name), str):
            row[name] = ""
    return json.dumps(row, ensure_ascii=False).encode("utf-8") + b"\n"


def _blank_rows(path: Path, rows: set[int], fields: Collection[str], out: Any) -> int:
    first = done = 0
    with pq.ParquetFile(path) as parquet, pq.ParquetWriter(out, parquet.schema_arrow, compression="zstd") as writer:
        for group in _groups(parquet, None):
            gone = np.array([first + row in rows for row in range(len(group))], np.bool_)
            for name in fields:
                if name in group.column_names and pa.types.is_string(group.schema.field(name).type):
                    place, column = group.column_names.index(name), group[name]
                    had = pc.greater(pc.binary_length(column), 0).fill_null(False).to_numpy(zero_copy_only=False)
                    done += int((had & gone).sum())
                    blank = pc.if_else(pc.and_(pa.array(gone), pc.is_valid(column)), "", column)
                    group = group.set_column(place, group.schema.field(name), blank)
            writer.write_table(group, row_group_size=max(1, len(group)))
            first += len(group)
    return done
