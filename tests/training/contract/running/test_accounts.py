"""The account of records: whatever stage loses one, its artifact is refused, and the words say where."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import job_by_hand
from tests.training.data import chain
from training.contract.artifact import check_input
from training.contract.job import Counts, InputArtifact, RefusedInput
from training.contract.running.accounts import balance_gate
from training.data.crawl import crawl as archives
from training.data.crawl.crawl import source_files
from training.data.crawl.settings import SnapshotRecipe
from training.data.dedup import dedup
from training.data.dedup import sign as signatures
from training.data.dedup.settings import DedupRecipe
from training.data.documents import DocumentWriter
from training.data.exams import decontaminate
from training.data.exams.decontaminate_settings import DecontaminateRecipe
from training.data.exams.settings import BenchmarkRecipe
from training.data.extract import extract
from training.data.extract.settings import ExtractRecipe
from training.data.filter import filter as filters
from training.data.filter import score as scores
from training.data.filter.settings import FilterRecipe
from training.data.quality import quality
from training.data.quality.settings import QualityRecipe
from training.data.tokens import sample as tokenizer_sample
from training.data.tokens import tokenize
from training.data.tokens.tokenize_settings import ShardsRecipe
from training.data.tokens.tokenizer_settings import TokenizerRecipe
from training.order import corpus
from training.order.settings import MixtureRecipe
from training.pretrain.settings import PretrainRecipe
from training.provenance import build as provenance
from training.stages import STAGES

WORDS = (
    "the baker and his guest have opened a door of this house because they want to weigh flour with water for bread"
    " that would be eaten in the morning when everybody has heard about it from friends who say good things"
).split()
PAGES = [" ".join(random.Random(number).choices(WORDS, k=25)) for number in range(24)]
QUESTION = "Which of the rivers that cross the old town is the one with nine bridges?"


@dataclass(frozen=True, kw_only=True)
class Made:
    """How an artifact was made, so that it can be made again, and what came out."""

    asset: str
    partition: str
    settings: dict[str, Any]
    inputs: list[InputArtifact]
    item: InputArtifact

    def again(self, root: Path, stage: str) -> InputArtifact:
        return chain.run(root, stage, self.asset, self.partition, self.settings, self.inputs)

    @property
    def gate(self) -> dict[str, Any]:
        return gate_of(self.item)


def gate_of(item: InputArtifact) -> dict[str, Any]:
    return next(gate for gate in item.record()["gates"] if gate["name"] == "counts_balance")


def lines(path: Path, rows: list[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def warc(texts: list[str]) -> bytes:
    """Records of extracted text, which need no extractor."""
    made = b""
    for number, text in enumerate(texts):
        head = f"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Target-URI: http://a.test/{number}\r\n"
        head += f"Content-Type: text/plain\r\nContent-Length: {len(text)}\r\n\r\n"
        made += f"{head}{text}\r\n\r\n".encode()
    return made


@pytest.fixture(scope="module")
def healthy(tmp_path_factory) -> dict[str, Made]:
    """Return the artifacts of the corpus side of the chain over two files of pages, by stage.

    One page repeats another, one holds an exam's item.
    """
    root = tmp_path_factory.mktemp("healthy")
    (root / "in").mkdir()
    (root / "in" / "a.warc").write_bytes(warc([*PAGES, PAGES[0]]))
    (root / "in" / "b.warc").write_bytes(warc([f"A guide wrote of it. {QUESTION} He did not say."]))
    reference = lines(
        root / "reference.jsonl", [{"text": f"In part {n} the author tells how to knead."} for n in range(20)]
    )
    exam = lines(root / "exam.jsonl", [{"id": "rivers", "question": QUESTION, "answer": "The Alder"}])
    snapshot = SnapshotRecipe(name="s", source="warc", paths=(str(root / "in"),))
    benchmark = BenchmarkRecipe(name="exam", uri=exam, kind="generate")
    asked_of_quality = QualityRecipe(
        reference=(reference,), snapshots=("s",), negatives=10, classifier_buckets=512, min_auc=0.0
    )
    scored = FilterRecipe(rules=("personal_data",))
    benchmarks = {"decontaminate": DecontaminateRecipe(benchmarks=(benchmark,))}
    pretrain = PretrainRecipe(tokens=512, sequence_length=32, global_batch_tokens=64)
    made: dict[str, Made] = {}

    def run(stage: str, asset: str, partition: str, settings: dict[str, Any], *stages: str) -> None:
        inputs = [made[name].item for name in stages]
        item = chain.run(root, stage, asset, partition, settings, inputs)
        made[stage] = Made(asset=asset, partition=partition, settings=settings, inputs=inputs, item=item)

    run("crawl", "crawl_archives", "tiny@s", {"snapshot": snapshot, "files": source_files(snapshot)})
    run("extract", "extracted_documents", "tiny@s", {"extract": ExtractRecipe()}, "crawl")
    run("quality", "quality_models", "tiny", {"quality": asked_of_quality}, "extract")
    run("score", "document_scores", "tiny@s", {"filter": scored.measured()}, "extract", "quality")
    run("filter", "filtered_documents", "tiny@s", {"filter": scored}, "extract", "score")
    run("sign", "document_signatures", "tiny@s", {"dedup": DedupRecipe()}, "filter")
    run("dedup", "deduplicated_documents", "tiny@s", {"dedup": DedupRecipe()}, "filter", "sign")
    run("benchmarks", "benchmark_index", "tiny", benchmarks)
    run("decontaminate", "decontaminated_documents", "tiny@s", benchmarks, "dedup", "benchmarks")
    asked = TokenizerRecipe(snapshots=("s",), vocabulary=300, min_bytes_per_token=0.5, sample_bytes=500)
    run("tokenizer", "tokenizer", "tiny", {"tokenizer": asked}, "decontaminate")
    run("tokenize", "token_shards", "tiny@s", {"shards": ShardsRecipe()}, "decontaminate", "tokenizer")
    run("summarize", "corpus_summary", "tiny", {}, "tokenize")
    run("provenance", "provenance_index", "tiny@s", {}, "extract", "filter", "dedup", "decontaminate", "tokenize")
    run(
        "plan",
        "training_plan",
        "tiny",
        {"mixture": MixtureRecipe(max_epochs=100), "pretrain": pretrain.batches},
        "tokenize",
        "tokenizer",
    )
    return made


# What each stage does with records, made to lose one.


def but_the_first(function: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    """Of what it gives."""

    def losing(*arguments: Any, **options: Any) -> Iterator[Any]:
        given = iter(function(*arguments, **options))
        next(given, None)
        yield from given

    return losing


def but_the_first_row(function: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    """Of the tables that it gives."""
    return lambda *arguments: (table.slice(1) for table in function(*arguments))


def forgets_one(write: Callable[..., None]) -> Callable[..., None]:
    forgotten: list[Any] = []

    def writing(self: DocumentWriter, row: Any) -> None:
        if forgotten:
            write(self, row)
        forgotten.append(row)

    return writing


def unlinks_one(bring: Callable[..., int]) -> Callable[..., int]:
    def bringing(snapshot: Any, files: Any, folder: Path, work: Any) -> int:
        asked = bring(snapshot, files, folder, work)
        (folder / "b.warc").unlink()
        return asked

    return bringing


def one_signature_less(sign_file: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    def signing(*arguments: Any) -> dict[str, Any]:
        arrays = sign_file(*arguments)
        return {name: array[..., 1:] if name == "bands" else array[1:] for name, array in arrays.items()}

    return signing


def one_stays_less(judged: Callable[..., Any]) -> Callable[..., Any]:
    def judging(*arguments: Any) -> Any:
        staying, going = judged(*arguments)
        return staying.slice(1), going

    return judging


def one_planned_less(find: Callable[..., Any]) -> Callable[..., Any]:
    def finding(*arguments: Any) -> Any:
        first, *others = find(*arguments)
        return [first._replace(first=first.first + 1, documents=first.documents - 1), *others]

    return finding


LOSSES = [
    ("crawl", archives, "_bring", unlinks_one),
    ("extract", extract, "_finished", but_the_first),
    ("extract", DocumentWriter, "write", forgets_one),
    ("quality", quality, "read_tables", but_the_first_row),
    ("score", scores, "read_documents", but_the_first),
    ("filter", filters, "read_documents", but_the_first),
    ("filter", DocumentWriter, "write", forgets_one),
    ("sign", signatures, "sign_file", one_signature_less),
    ("dedup", dedup, "_judged", one_stays_less),
    ("decontaminate", decontaminate, "read_tables", but_the_first_row),
    ("tokenizer", tokenizer_sample, "read_tables", but_the_first_row),
    ("tokenize", tokenize, "read_tables", but_the_first_row),
    ("provenance", provenance, "_rows", but_the_first),
    ("plan", corpus, "runs_of", one_planned_less),
]


@pytest.mark.parametrize(("stage", "place", "name", "losing"), LOSSES, ids=[f"{one[0]}-{one[2]}" for one in LOSSES])
def test_a_stage_that_loses_a_record_is_refused(healthy, tmp_path, monkeypatch, stage, place, name, losing):
    assert healthy[stage].gate["passed"]
    monkeypatch.setattr(place, name, losing(getattr(place, name)))
    made = healthy[stage].again(tmp_path, stage)
    assert not gate_of(made)["passed"]
    with pytest.raises(RefusedInput, match=f"counts_balance .*{stage}.*[1-9] lost"):
        check_input(made)


def test_what_no_model_was_made_with_is_dropped_and_not_lost(healthy):
    for stage, sampled in (("quality", 10), ("tokenizer", 4)):
        counts = healthy[stage].item.record()["counts"]
        assert counts["kept"] == sampled and counts["dropped"] == {"not_sampled": counts["in"] - sampled}


READERS = [
    name for name, stage in STAGES.items() if (stage.reads or stage.reads_in_ranks) and name not in ("sft", "reward")
]


@pytest.mark.parametrize("stage", READERS)
def test_a_record_lost_between_two_stages_is_missed_by_the_second(healthy, tmp_path, monkeypatch, stage):
    """What the one before says it kept is one more than what its files hold."""
    read = (*STAGES[stage].reads, *STAGES[stage].reads_in_ranks)
    assert set(healthy[stage].gate["evidence"]["inputs_kept"]) == set(read)
    record = InputArtifact.record

    def one_more(item: InputArtifact) -> dict[str, Any]:
        found = record(item)
        return (
            found | {"counts": found["counts"] | {"kept": found["counts"]["kept"] + 1}} if item.asset in read else found
        )

    monkeypatch.setattr(InputArtifact, "record", one_more)
    made = healthy[stage].again(tmp_path, stage)
    monkeypatch.undo()
    gate = gate_of(made)
    assert not gate["passed"]
    assert [fault.partition(" kept ")[0] for fault in gate["evidence"]["faults"]] == [
        f"{stage}: {name}" for name in read
    ]
    assert all(fault.endswith(": 1 lost") for fault in gate["evidence"]["faults"])


def judged(stage: str, counts: Counts, inputs: tuple[InputArtifact, ...] = ()) -> tuple[bool, list[str]]:
    gate = balance_gate(job_by_hand(stage, inputs=inputs), STAGES[stage], counts)
    return gate.passed, gate.evidence.get("faults", [])


def test_two_ranks_do_not_make_up_for_each_other():
    ranks = [Counts(records_in=5, kept=4), Counts(records_in=5, kept=5, dropped={"short": 1})]
    assert judged("crawl", Counts.total([rank.as_json() for rank in ranks])) == (
        False,
        [
            "crawl, rank 0: 5 in, 4 kept, dropped or quarantined: 1 lost",
            "crawl, rank 1: 5 in, 6 kept, dropped or quarantined: 1 too many",
        ],
    )


def test_what_comes_in_is_what_all_inputs_kept_and_of_dedup_what_its_own_snapshot_kept(tmp_path):
    files = [["one", "two"]]
    items = tuple(chain.documents(tmp_path, name, files, asset="token_shards") for name in ("s1", "s2"))
    assert judged("plan", Counts(records_in=4, kept=4), items) == (True, [])
    assert judged("plan", Counts(records_in=2, kept=2), items) == (
        False,
        ["plan: token_shards kept 4, 2 came in: 2 lost"],
    )
    earlier = chain.documents(tmp_path, "s0", [["zero"]])
    own = chain.documents(tmp_path, "s1", files)
    signed = chain.documents(tmp_path, "s1", files, asset="document_signatures")
    assert judged("dedup", Counts(records_in=2, kept=2), (earlier, own, signed)) == (True, [])


@pytest.mark.parametrize(
    ("files_in", "faults"), [(3, []), (None, ["extract: crawl_archives kept 3, 1 came in: 2 lost"])]
)
def test_files_are_counted_as_such_where_one_rank_reads_several(tmp_path, files_in, faults):
    archives = chain.documents(tmp_path, "s", [["a", "b", "c"]], asset="crawl_archives")
    pages = Counts(records_in=9, kept=9)
    counts = Counts(records_in=9, kept=9, parts=(pages,), files_in=files_in)
    assert judged("extract", counts, (archives,)) == (not faults, faults)


def test_an_input_without_an_account_is_said_to_have_none(tmp_path):
    item = chain.committed(tmp_path, "token_shards", "tiny@s", [])
    gate = balance_gate(job_by_hand("plan", inputs=[item]), STAGES["plan"], Counts(records_in=3, kept=3))
    assert gate.passed and gate.evidence["inputs_kept"] == {"token_shards": None}
