"""The languages of held-out documents, as a training reads them that is watched."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evaluation.exams import watched_items
from tests.jobs import job_by_hand
from tests.training.pretrain import tiny
from training.contract.records import write_record
from training.order.batches import DOCUMENT, SHARD
from training.order.sidecars import Sidecars
from training.pretrain.watch.items import ITEMS_FILE, read_items
from training.pretrain.watch.languages import LANGUAGES_FILE, read_languages
from training.recipe.settings.evaluation import EvaluationRecipe

DRAWN = {"items": 4, "seed": 0, "sequence_length": 32}


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    return tiny.TinyChain(tmp_path_factory.mktemp("chain"))


def language_of(source, number):
    return {0: "en", 1: "de", 2: None, 3: ""}[(number + len(source)) % 4]


@pytest.fixture(scope="module")
def documents(chain):
    """All documents in two files, not in the order of the shards; those of which the number is 7 are in none."""
    folder = chain.root / "decontaminated_documents" / "d"
    (folder / "documents").mkdir(parents=True)
    rows = [(source, number) for source in ("web", "books") for number in range(60) if number % 10 != 7]
    for name, own in (("00000", rows[::2]), ("00001", rows[1::2])):
        ids = [f"s/{source}/{number:05d}" for source, number in own]
        table = pa.table({"id": ids, "language": [language_of(*one) for one in own], "text": ids})
        pq.write_table(table, folder / "documents" / f"{name}.parquet", row_group_size=9)
    return tiny.commit(folder, "decontaminated_documents", [f"documents/0000{n}.parquet" for n in (0, 1)])


def made(chain, name, *more):
    folder = chain.root / "watched_items" / name
    settings = {"evaluation": write_record(EvaluationRecipe(suites=())), "drawn": DRAWN}
    job = job_by_hand("watched_items", folder, settings, (chain.tokenizer, *more))
    return watched_items.run(job, tiny.work_in(folder)), folder


def test_each_held_out_document_has_the_language_that_its_page_has(chain, documents):
    outcome, folder = made(chain, "w", chain.plan_artifact, chain.shards, documents)
    assert outcome.files == (ITEMS_FILE, LANGUAGES_FILE) and read_items(folder) == {}
    plan = chain.plan
    places = [(int(row[SHARD]), int(row[DOCUMENT])) for row in plan.held_out]
    ids = [one["id"] for one in Sidecars(plan, {chain.shards.fingerprint: chain.shards}).describe(places)]
    expected = [
        language_of(source, int(number)) or "unknown" if int(number) % 10 != 7 else "unknown"
        for _, source, number in (name.split("/") for name in ids)
    ]
    assert read_languages(folder) == tuple(expected) and set(expected) == {"en", "de", "unknown"}
    assert outcome.metrics == {"items": 0, "languages": 3}


def test_without_a_plan_no_languages_are_written(chain):
    outcome, folder = made(chain, "none")
    assert outcome.files == (ITEMS_FILE,) and read_languages(folder) is None and "languages" not in outcome.metrics
