"""The stage `synthesize` from job to artifact on a tiny random model; its output as a snapshot of another recipe."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.examples import example

pytest.importorskip("torch")

from assets.state.chain import CHAIN, input_partitions, partitions_of
from tests.evaluation.conftest import commit, make_job, make_model
from tests.examples import load_recipe
from training.contract.artifact import find
from training.contract.job import DataError, InputArtifact
from training.contract.records import RecipeError, write_record
from training.contract.running.runner import run_job
from training.data.crawl.settings import SnapshotRecipe
from training.data.documents import document_files, read_documents, read_lines, write_lines
from training.data.extract.settings import ExtractRecipe
from training.generate import synthesize as stage
from training.generate.settings import SynthesisRecipe
from training.stages import STAGES

PROMPTS = [{"prompt": f"The oven number {number} is heated"} for number in range(5)]


@pytest.fixture(scope="module", autouse=True)
def small_ranks():
    """Two prompts a rank, so that five prompts are three ranks."""
    patch = pytest.MonkeyPatch()
    patch.setattr(stage, "RANK_PROMPTS", 2)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base_model")
    make_model(folder / "model", template=False)
    return commit(folder, "base_model")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    write_lines(path, PROMPTS)
    return str(path)


def synthesize(folder: Path, model, prompts: str, **changes: object) -> Path:
    recipe = SynthesisRecipe(prompts=prompts, max_new_tokens=6, batch_size=3, **changes)
    job = make_job("synthesize", "synthetic_text", folder, {"synthesis": write_record(recipe)}, (model,))
    assert run_job(job, STAGES) == 0
    return folder


def rows_of(folder: Path) -> list[dict]:
    return [row for path in sorted((folder / "synthetic").iterdir()) for row in read_lines(path)]


def artifact_of(folder: Path) -> InputArtifact:
    record = find(folder).record
    named = {name: record[name] for name in ("asset", "partition", "fingerprint", "digest")}
    return InputArtifact(**named, path=str(folder))


@pytest.fixture(scope="module")
def made(tmp_path_factory, base, prompts) -> Path:
    return synthesize(tmp_path_factory.mktemp("synthetic") / "a", base, prompts, texts_per_prompt=2, seed=7)


def test_every_row_says_who_wrote_it_from_what_and_how(made, base):
    rows = rows_of(made)
    assert len(rows) == 10 and len({row["id"] for row in rows}) == 10 and len({row["seed"] for row in rows}) == 10
    for row in rows:
        assert row["generator"] == f"base_model:{base.digest}" and base.digest in row["url"]
        assert row["text"].startswith(row["prompt"]) and len(row["text"]) > len(row["prompt"])
        assert (row["temperature"], row["top_p"], row["max_new_tokens"]) == (0.8, 1.0, 6)
    assert [row["prompt"] for row in rows[::2]] == [row["prompt"] for row in PROMPTS]
    record = find(made).record
    assert record["counts"] == {"in": 10, "kept": 10, "dropped": {}, "quarantined": {}}
    assert record["notes"]["generator"] == f"base_model:{base.digest}"


def test_the_same_job_gives_the_same_bytes_and_another_seed_others(made, base, prompts, tmp_path):
    again = synthesize(tmp_path / "b", base, prompts, texts_per_prompt=2, seed=7)
    assert find(again).digest == find(made).digest
    other = synthesize(tmp_path / "c", base, prompts, texts_per_prompt=2, seed=8)
    assert [row["text"] for row in rows_of(other)] != [row["text"] for row in rows_of(made)]


def test_one_more_prompt_or_copy_changes_no_other_row(made, base, prompts, tmp_path):
    fewer = rows_of(synthesize(tmp_path / "d", base, prompts, limit=3, seed=7))
    whole = {row["id"]: row for row in rows_of(made)}
    assert len(fewer) == 3 and all(row == whole[row["id"]] for row in fewer)


def test_a_model_with_a_template_is_asked_through_it(prompts, tmp_path):
    make_model(tmp_path / "sft" / "model", template=True, seed=1)
    model = commit(tmp_path / "sft", "sft_model")
    rows = rows_of(synthesize(tmp_path / "e", model, prompts, generator="sft_model", template="Rewrite: {prompt}"))
    assert rows[0]["prompt"] == f"Rewrite: {PROMPTS[0]['prompt']}"
    assert not any(row["text"].startswith("Rewrite") for row in rows)


def test_the_texts_are_a_snapshot_of_another_recipe_and_lead_back_to_the_model(made, base, tmp_path):
    paths = (str(made / "synthetic"),)
    snapshot = SnapshotRecipe(name="written", source="jsonl", label="synthetic", paths=paths, prompt_field="prompt")
    crawl = make_job("crawl", "crawl_archives", tmp_path / "crawl", {"snapshot": write_record(snapshot)}, ())
    assert run_job(replace(crawl, partition="other@written"), STAGES) == 0
    archives = artifact_of(tmp_path / "crawl")
    settings = {"extract": write_record(ExtractRecipe(min_characters=1))}
    extract = make_job("extract", "extracted_documents", tmp_path / "documents", settings, (archives,))
    assert run_job(replace(extract, partition="other@written"), STAGES) == 0
    files = document_files(artifact_of(tmp_path / "documents"))
    documents = [row for path in files for row in read_documents(path)]
    assert len(documents) == 10 and all(row["source"] == "synthetic" for row in documents)
    assert {row["url"] for row in documents} == {row["url"] for row in rows_of(made)}
    assert sorted(row["prompt"] for row in documents) == sorted(row["prompt"] for row in rows_of(made))


def test_a_snapshot_of_synthetic_text_names_its_prompts():
    fields = {"name": "written", "source": "jsonl", "paths": ("made://synthetic_text/kitchen-synthetic/synthetic",)}
    with pytest.raises(RecipeError, match=r"snapshots.written.prompt_field: .*: prompt"):
        SnapshotRecipe(**fields)
    assert SnapshotRecipe(**fields, prompt_field="prompt").prompt_field == "prompt"
    with pytest.raises(RecipeError, match="'parquet' or 'jsonl'"):
        SnapshotRecipe(**fields | {"source": "files"}, prompt_field="prompt")


def test_a_row_without_a_prompt_is_named_before_a_model_is_loaded(base, tmp_path):
    path = tmp_path / "prompts.jsonl"
    write_lines(path, [{"prompt": "a"}, {"question": "b"}])
    with pytest.raises(DataError, match=r"row 1: .*'prompt'.*question"):
        synthesize(tmp_path / "f", base, str(path))


def test_only_recipes_that_ask_for_text_have_it():
    kitchen, asking = load_recipe("kitchen"), example("kitchen-synthetic")
    declared = CHAIN["synthetic_text"]
    assert partitions_of(declared, kitchen) == [] and partitions_of(declared, asking) == ["kitchen-synthetic"]
    read = {item.asset: input_partitions(item, asking, "") for item in declared.inputs}
    others = ("long_context_model", "sft_model", "aligned_model")
    assert read == {"base_model": ["kitchen-synthetic"]} | {asset: [] for asset in others}


@pytest.mark.parametrize("bad", [{"template": "no place"}, {"top_p": 0.0}, {"texts_per_prompt": 0}, {"limit": -1}])
def test_a_setting_that_makes_no_sense_is_refused(bad):
    with pytest.raises(RecipeError, match=f"synthesis.*{next(iter(bad))}"):
        SynthesisRecipe(**bad)


def test_a_file_that_changed_since_the_job_was_written_is_refused(base, prompts, tmp_path):
    recipe = write_record(SynthesisRecipe(prompts=prompts))
    settings = {"synthesis": recipe, "data": {prompts: "0" * 64}}
    job = make_job("synthesize", "synthetic_text", tmp_path / "g", settings, (base,))
    with pytest.raises(DataError, match="changed since"):
        run_job(job, STAGES)
    assert json.loads((tmp_path / "g" / "job.json").read_text())["asset"] == "synthetic_text"
