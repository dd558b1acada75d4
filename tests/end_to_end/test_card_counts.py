"""The card of a finished run is counted again, step by step, by code that knows nothing of the card's."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from training.order.batches import index, read_plan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def only(root: Path, asset: str) -> Path:
    (folder,) = (root / asset).iterdir()
    return folder


def pages_read(root: Path) -> list[dict]:
    """A row for each piece of a page that a step of pretraining read: its sidecar's row, and its tokens."""
    plan = read_plan(only(root, "training_plan"))
    sidecars = []
    for shard in plan.record.shards:
        name = shard.path.removesuffix(".bin") + ".documents.parquet"
        sidecars.append(pq.read_table(root / "token_shards" / shard.artifact / name).to_pylist())
    assert not (only(root, "base_model") / "ledger.json").exists()  # no step was skipped
    return [
        sidecars[segment.shard][segment.document] | {"read": segment.length}
        for step in range(plan.record.steps)
        for sample in index(plan, step)
        for segment in sample
    ]


@pytest.fixture(scope="module")
def tables(first, untouched) -> dict[str, list[list]]:
    assert first.code == 0
    content = json.loads((only(untouched, "model_card") / "training_content.json").read_text("utf-8"))
    return {
        table["title"]: [[cell["value"] if isinstance(cell, dict) else cell for cell in row] for row in table["rows"]]
        for table in content["tables"]
    }


def test_pages_and_tokens_are_those_of_all_steps(tables, untouched):
    pieces = pages_read(untouched)
    read, tokens = {one["id"] for one in pieces}, sum(one["read"] for one in pieces)
    general = dict(tables["General information"])
    assert (general["pages read"], general["tokens read"]) == (len(read), tokens)
    assert general["pages in the shards"] > len(read)  # a part of the pages was never read, and the card says so
    wanted, seen = Counter(), {}
    for one in pieces:
        domain = one["url"].split("/")[2].removeprefix("www.")
        wanted[domain] += one["read"]
        seen.setdefault(domain, set()).add(one["id"])
    rows = {row[0]: (row[3], row[4], row[5]) for row in tables["Domains"][2:]}
    assert rows == {
        name: (len(seen[name]), number, pytest.approx(number / tokens, abs=1e-6)) for name, number in wanted.items()
    }
    by_snapshot = {row[0]: row[4:6] for row in tables["Sources of pages"]}
    for name, (pages, number) in by_snapshot.items():
        own = [one for one in pieces if one["snapshot"] == name]
        assert (pages, number) == (len({one["id"] for one in own}), sum(one["read"] for one in own))


def test_rows_are_those_of_the_steps_that_were_taken(tables, untouched):
    rows = {row[0]: tuple(row[3:]) for row in tables["Post-training"]}
    given = {"sft": ("instruction_data", "instructions.jsonl")}
    for asset, section in (("sft_model", "sft"), ("reward_model", "reward"), ("aligned_model", "align")):
        record = json.loads((only(untouched, asset) / "artifact.json").read_text("utf-8"))
        data, name = given.get(section, ("preference_data", "train.jsonl"))
        number = len((only(untouched, data) / name).read_text("utf-8").splitlines())
        assert record["counts"]["dropped"] == {}  # every row fits, here
        settings, steps = record["settings"][section], record["metrics"]["steps"]
        times = round(settings["epochs"] * number)
        assert steps == -(-times // settings["batch_size"])
        assert rows[asset] == (min(number, times), times)


def test_the_collection_is_that_of_the_archives(tables):
    stated = {(snapshot, what): said for snapshot, what, said in tables["Collection"]}
    assert stated["kitchen-1", "crawler"] == "pedigree kitchen"
    assert stated["kitchen-2", "what it does with robots exclusion"] == "obey"
    assert stated["kitchen-1", "period"].startswith("2031-02-") and "seeds" in {what for _, what in stated}
