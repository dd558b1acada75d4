"""The benchmark of an array's cost counts each rank once and compares the bytes of both sides."""

from __future__ import annotations

from benchmarks import nodes
from tests.training.data import chain
from training.data.dedup.settings import DedupRecipe
from training.run_settings import RunSettings


def test_the_tasks_of_an_array_make_each_rank_once(tmp_path):
    texts = [[f"{number} words of text number {file}" for number in range(5)] for file in range(3)]
    source = chain.documents(tmp_path, "one", texts)
    settings, run = {"dedup": DedupRecipe()}, RunSettings(workers=1)
    job = chain.job_of(tmp_path, "sign", "document_signatures", "tiny@one", settings, [source], run=run)
    seconds, ranks = nodes.by_an_array(job, 2)
    assert list(ranks) == [""] and len(ranks[""]) == 3
    assert 0 < sum(ranks[""]) < seconds
    assert chain.made_by(job).digest == chain.run(tmp_path / "alone", *STAGE, settings, [source]).digest


def test_more_than_ten_files_are_in_the_order_that_deduplication_asks_for(tmp_path):
    texts = [[f"words of text number {file}"] for file in range(12)]
    source = chain.documents(tmp_path, "one", texts)
    signed = chain.run(tmp_path, *STAGE, {"dedup": DedupRecipe()}, [source])
    stage = ("dedup", "deduplicated_documents", "tiny@one")
    assert len(chain.rows(chain.run(tmp_path, *stage, {"dedup": DedupRecipe()}, [source, signed]))) == 12


STAGE = ("sign", "document_signatures", "tiny@one")
