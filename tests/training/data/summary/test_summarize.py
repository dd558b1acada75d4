"""The summary of a corpus adds up to its documents, and a host is what a person would call one."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.data import chain
from training.contract.job import InputArtifact
from training.data.summary import summarize
from training.data.tokens.tokenize_settings import ShardsRecipe
from training.data.tokens.tokenizer_settings import TokenizerRecipe

PAGES = {
    "one": [("https://www.example.org/a", "web"), ("http://example.org:8080/b", "web"), ("https://docs.test/", "docs")],
    "two": [("https://EXAMPLE.org./c", "web"), ("http://[broken", "web"), (None, "docs")],
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> list[InputArtifact]:
    root = tmp_path_factory.mktemp("summary")
    made, tokenizer = [], None
    for snapshot, pages in PAGES.items():
        rows = [
            chain.document(snapshot, "f.warc.gz", n, "flour and water " * (n + 1), url=url, source=source)
            for n, (url, source) in enumerate(pages)
        ]
        source = chain.documents_of(root, snapshot, [rows[:2], rows[2:]], asset="decontaminated_documents")
        recipe = TokenizerRecipe(snapshots=("one",), vocabulary=300, min_bytes_per_token=1.0)
        tokenizer = tokenizer or chain.run(root, "tokenizer", "tokenizer", "tiny", {"tokenizer": recipe}, [source])
        settings, inputs = {"shards": ShardsRecipe()}, [source, tokenizer]
        made.append(chain.run(root, "tokenize", "token_shards", f"tiny@{snapshot}", settings, inputs))
    return made


def test_every_document_of_every_snapshot_is_counted_once(tmp_path: Path, shards):
    made = chain.run(tmp_path, "summarize", "corpus_summary", "tiny", {}, shards)
    summary = json.loads(made.file("summary.json").read_text())
    tables = [json.loads(item.file("shards.json").read_text())["shards"] for item in shards]
    assert summary["tokens"] == sum(shard["tokens"] for table in tables for shard in table)
    assert summary["documents"] == 6 and summary["hosts"] == 3
    for names in ("by_source", "by_snapshot", "largest_hosts"):
        assert sum(entry["documents"] for entry in summary[names].values()) == 6
        assert sum(entry["share"] for entry in summary[names].values()) == pytest.approx(1, abs=1e-5)
    hosts = pq.read_table(made.file("hosts.parquet")).to_pylist()
    assert {row["host"]: row["documents"] for row in hosts} == {"example.org": 3, "docs.test": 1, "": 2}
    assert [row["tokens"] for row in hosts] == sorted((row["tokens"] for row in hosts), reverse=True)
    record = json.loads(made.file("artifact.json").read_text())
    assert record["counts"]["in"] == record["counts"]["kept"] == 6


def test_a_table_that_lost_a_document_is_no_balanced_summary(tmp_path: Path, shards):
    listing = json.loads(shards[0].file("shards.json").read_text())
    short = listing["shards"][0] | {"documents": listing["shards"][0]["documents"] + 1}
    names = ["shards.json", *(f"shards/{path.name}" for path in Path(shards[0].path, "shards").iterdir())]
    folder = tmp_path / "short"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(shards[0].file(name).read_bytes())
    (folder / "shards.json").write_text(json.dumps(listing | {"shards": [short, *listing["shards"][1:]]}))
    item = chain.committed(folder, "token_shards", "tiny@one", names, kept=3)
    made = chain.run(tmp_path, "summarize", "corpus_summary", "tiny", {}, [item])
    record = json.loads(made.file("artifact.json").read_text())
    assert [gate["passed"] for gate in record["gates"] if gate["name"] == "counts_balance"] == [False]


def test_a_shard_with_many_documents_is_not_held_as_rows(tmp_path: Path):
    path, number = tmp_path / "sidecar.parquet", 6 * summarize.AT_ONCE
    columns = {name: [f"https://{place}.test/" for place in range(number)] for name in ("url", "source", "snapshot")}
    pq.write_table(pa.table(columns | {"tokens": range(number), "bytes": range(number)}), path)
    tracemalloc.start()
    try:
        assert sum(1 for _ in summarize._rows(path)) == number
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * 600 * summarize.AT_ONCE
