"""Generated pages in all places in which pages end, at any number, with the truth of each; and the index of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.training.data import chain
from tests.training.pretrain import tiny
from training.contract import artifact
from training.contract.job import InputArtifact
from training.data.documents import write_lines
from training.provenance.layout import KINDS

# Of 100 pages: in a shard; dropped by the extraction; quarantined; dropped by the filter; duplicates; contaminated.
SHARES = (30, 15, 1, 40, 13, 1)
REASONS = ("", "http_status", "truncated", "gopher_quality:too_few_words", "near_duplicate", "contaminated")
MEAN_TOKENS = 700


@dataclass(frozen=True)
class Pages:
    """The artifacts of one snapshot with generated pages, and its pages with the truth: columns `id`, `url`, `kind`."""

    inputs: tuple[InputArtifact, ...]
    truth: pa.Table

    @property
    def shards(self) -> InputArtifact:
        """The token shards."""
        return self.inputs[-1]


def generated(
    root: Path,
    snapshot: str,
    *,
    ranks: int,
    pages: int,
    hosts: int,
    tokenizer: InputArtifact | None = None,
    seed: int = 0,
) -> Pages:
    """Write the places of `ranks` archives with `pages` pages each, on about `hosts` hosts. Token files are holes."""
    folders = {kind.asset: root / kind.asset / snapshot for kind in KINDS}
    files: dict[str, list[str]] = {asset: [] for asset in folders}
    kept = dict.fromkeys(folders, 0)
    truths = []
    for rank in range(ranks):
        truth = _pages(snapshot, rank, pages, hosts, np.random.Generator(np.random.Philox([seed, rank])))
        truths.append(truth)
        own = [truth.filter(pc.equal(truth["kind"], kind)).drop(["kind"]) for kind in range(len(KINDS))]
        for kind in range(1, len(KINDS)):
            _dropped(folders[KINDS[kind].asset], kind, rank, own, files)
        left = [0, 3, 4, 5]  # kinds of pages that the extraction kept
        for asset, gone in zip(list(dict.fromkeys(kind.asset for kind in KINDS[1:])), (0, 3, 4, 5), strict=True):
            left = [kind for kind in left if kind != gone or not gone]
            documents = pa.concat_tables([own[kind] for kind in left]).sort_by("id")
            redactions = pa.array(['{"email": 2}' if not n % 50 else None for n in range(len(documents))], pa.string())
            _write(
                folders[asset],
                f"documents/{rank:05d}.parquet",
                documents.append_column("redactions", redactions),
                files[asset],
            )
            kept[asset] += len(documents)
        kept["token_shards"] += _shard(folders["token_shards"], rank, own[0], files["token_shards"], seed)
    folder = folders["token_shards"]
    listing = {"tokenizer_digest": tokenizer.digest if tokenizer else "", "dtype": "uint16", "eos_id": tiny.EOS}
    artifact.write_json(folder / "shards.json", listing)
    files["token_shards"].append("shards.json")
    order = (*dict.fromkeys(kind.asset for kind in KINDS[1:]), "token_shards")
    inputs = [
        chain.committed(folders[asset], asset, f"tiny@{snapshot}", files[asset], kept=kept[asset]) for asset in order
    ]
    return Pages(tuple(inputs), pa.concat_tables(truths))


def index_of(root: Path, pages: Pages, *, workers: int = 1) -> InputArtifact:
    """Run the stage over generated pages."""
    where = pages.shards.partition
    return chain.run(root, "provenance", "provenance_index", where, {}, pages.inputs, workers=workers)


def _pages(snapshot: str, rank: int, pages: int, hosts: int, chance: np.random.Generator) -> pa.Table:
    archive = f"{snapshot}-{rank:05d}.warc.gz"
    offsets = np.cumsum(chance.integers(300, 40_000, pages))
    host = np.minimum((hosts * chance.random(pages) ** 3).astype(np.int64), hosts - 1)  # few hosts have many pages
    kinds = chance.choice(len(SHARES), pages, p=np.array(SHARES) / sum(SHARES))
    numbers = rank * pages + np.arange(pages)
    scheme = pa.array(np.where(chance.random(pages) < 0.8, "https://", "http://"))
    names = pc.binary_join_element_wise(
        "www.site-", pa.array(host).cast(pa.string()), pa.array(np.where(host % 3, ".com", ".co.uk")), ""
    )
    urls = pc.binary_join_element_wise(
        scheme, names, "/articles/page-", pa.array(numbers).cast(pa.string()), ".html", ""
    )
    padded = pc.utf8_lpad(pa.array(offsets).cast(pa.string()), 12, "0")
    return pa.table(
        {
            "id": pc.binary_join_element_wise(f"{snapshot}/{archive}", padded, "/"),
            "url": urls,
            "snapshot": pa.array([snapshot] * pages),
            "warc_file": pa.array([archive] * pages),
            "warc_offset": pa.array(offsets),
            "source": pa.array(["web"] * pages),
            "kind": pa.array(kinds),
        }
    )


def _dropped(folder: Path, kind: int, rank: int, own: Sequence[pa.Table], files: dict[str, list[str]]) -> None:
    rows, names = own[kind], files[KINDS[kind].asset]
    reasons = pa.array([REASONS[kind]] * len(rows), pa.string())
    if KINDS[kind].outcome == "quarantined":
        name = f"quarantine/{rank:05d}.jsonl"
        (folder / "quarantine").mkdir(parents=True, exist_ok=True)
        write_lines(folder / name, [{**row, "reason": REASONS[kind], "detail": ""} for row in rows.to_pylist()])
        names.append(name)
        return
    rows = rows.append_column("reason", reasons)
    if KINDS[kind].asset == "deduplicated_documents":
        kept = own[0]["id"].combine_chunks()
        repeated = kept.take(pa.array(np.arange(len(rows)) % len(kept))) if len(kept) else reasons
        rows = rows.append_column("duplicate_of", repeated)
        rows = rows.append_column("similarity", pa.array(np.full(len(rows), 0.9, np.float32)))
    _write(folder, f"dropped/{rank:05d}.parquet", rows, names)


def _shard(folder: Path, rank: int, rows: pa.Table, names: list[str], seed: int) -> int:
    """Write the kept pages of a rank as two shards."""
    chance = np.random.Generator(np.random.Philox([seed, rank, 1]))
    half = len(rows) // 2
    for part, own in enumerate((rows.slice(0, half), rows.slice(half))):
        name = f"shards/{rank:05d}{f'-{part:03d}' if part else ''}"
        tokens = 1 + (MEAN_TOKENS * chance.standard_exponential(len(own))).astype(np.int64)
        own = own.append_column("tokens", pa.array(tokens)).append_column("bytes", pa.array(4 * tokens))
        _write(folder, f"{name}.documents.parquet", own, names, row_group_size=1 << 20)
        np.save(folder / f"{name}.offsets.npy", np.concatenate([[0], np.cumsum(tokens)]))
        with open(folder / f"{name}.bin", "wb") as stream:
            stream.truncate(2 * int(tokens.sum()))
        names += [f"{name}.offsets.npy", f"{name}.bin"]
    return len(rows)


def _write(folder: Path, name: str, rows: pa.Table, names: list[str], *, row_group_size: int = 1000) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, folder / name, compression="zstd", row_group_size=row_group_size)
    names.append(name)
