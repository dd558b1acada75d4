"""What is known of the documents in a batch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.pretrain import tiny
from training.contract.job import RefusedInput
from training.order import corpus
from training.pretrain.stages import pretrain as stage


def test_a_missing_sidecar_is_refused_before_the_first_step(tmp_path):
    chain = tiny.TinyChain(tmp_path)
    chain.shards.file("shards/00001.documents.parquet").unlink()
    job = chain.job()
    with pytest.raises(RefusedInput, match=r"00001.documents.parquet: .* missing"):
        stage.run(job, tiny.work_in(Path(job.output)))


def test_a_run_of_one_source_goes_on_from_one_batch_of_a_sidecar_to_the_next(tmp_path, monkeypatch):
    pq.write_table(pa.table({"source": list("abbba")}), tmp_path / "sidecar")
    monkeypatch.setattr(corpus, "AT_ONCE", 2)
    runs = corpus._runs(7, pq.ParquetFile(tmp_path / "sidecar"))
    assert runs == [corpus.Run("a", 7, 0, 1), corpus.Run("b", 7, 1, 3), corpus.Run("a", 7, 4, 1)]


def test_a_run_inside_of_a_shard_reads_its_own_documents(tmp_path, monkeypatch):
    path = tmp_path / "sidecar"
    pq.write_table(pa.table({"id": list("abcdefg"), "bytes": range(7)}), path)
    monkeypatch.setattr(corpus, "AT_ONCE", 3)
    shards = SimpleNamespace(beside=lambda shard, suffix: path)
    read = corpus._pieces(shards, corpus.Run("a", 0, 2, 4), with_ids=True)
    found = [(first, b"".join(ids).decode(), sizes.tolist()) for first, ids, sizes in read]
    assert found == [(2, "c", [2]), (3, "def", [3, 4, 5])]
