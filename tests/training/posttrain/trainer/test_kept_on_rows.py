"""Steps and epochs of trainings on rows that are kept as artifacts of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from assets.state.chain import CHAIN, parts_of
from assets.state.compare import compare
from assets.state.recipe_folders import SHIPPED, load_recipe
from resources.compute.base import LAUNCHER
from tests.training.posttrain import tiny
from tests.training.posttrain.align.test_align import DPO, RL, inputs
from tests.training.posttrain.align.test_watched import watch_of
from tests.training.posttrain.conftest import SFT
from training.contract.artifact import decided_of, find
from training.contract.job import write_job
from training.contract.progress import read_metrics
from training.contract.records import RecipeError
from training.contract.running.runner import run_job
from training.contract.scopes import WHOLE, kept_of, whole_in_words
from training.posttrain.sft import sft as sft_stage
from training.posttrain.trainer import fit
from training.posttrain.trainer import kept as kept_models
from training.pretrain.watch.keep_settings import KeptStatesRecipe
from training.pretrain.watch.steps_settings import KeptEpochsRecipe
from training.stages import STAGES


def keeping(job, *kept):
    """The job of a training that keeps its model after these steps and epochs on its way."""
    return replace(job, on_the_way=tuple(of_step(job, one) for one in kept))


def of_step(job, kept, called=""):
    """The job of what a training keeps after a step or an epoch."""
    (name,) = (f"{unit}-{number}" for unit, number in kept.items())
    output = Path(job.output).parent / f"{Path(job.output).name}-{name}{called}"
    settings = job.settings | {"kept": kept}
    named = {"asset": "kept_sft_steps", "partition": f"toy@sft-{name}", "fingerprint": f"{name:0>32}"}
    return replace(job, **named, settings=settings, output=str(output), on_the_way=())


def made(job):
    assert run_job(job, STAGES) == 0
    return find(Path(job.output))


def sft(chain, output, changes=None, **run):
    given = tiny.made(chain, "base_model"), tiny.made(chain, "instruction_data")
    return tiny.job("sft", output, {"sft": {**SFT, **(changes or {})}}, given, **run)


def record(folder):
    return json.loads((folder / "artifact.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def straight(chain, tmp_path_factory):
    """The fine-tuning of the chain, with a step and two epochs of four steps kept on the way."""
    job = keeping(sft(chain, tmp_path_factory.mktemp("kept") / "sft"), {"step": 5}, {"epoch": 1}, {"epoch": 3})
    made(job)
    return job


def test_a_training_keeps_steps_and_epochs_and_makes_the_same_model(chain, straight):
    *kept, last = (find(Path(one.output)) for one in (*straight.on_the_way, straight))
    assert last.digest == record(chain / "sft_model")["digest"]
    assert [one.record["metrics"]["steps"] for one in kept] == [5, 4, 12]
    assert len({one.digest for one in (*kept, last)}) == 4
    for one in kept:
        assert all(gate["passed"] for gate in one.record["gates"]) and one.record["counts"] == last.record["counts"]
        assert {gate["name"] for gate in one.record["gates"]} == {gate["name"] for gate in last.record["gates"]}
        assert {file["path"] for file in one.record["files"]} == {file["path"] for file in last.record["files"]}
    assert not (Path(straight.output) / "scratch").exists()


def test_a_step_that_is_asked_for_later_is_the_same_artifact(straight):
    for kept in ({"step": 5}, {"epoch": 3}):
        later = made(of_step(straight, kept, called="-later"))
        (theirs,) = (find(Path(one.output)) for one in straight.on_the_way if one.settings["kept"] == kept)
        assert later.digest == theirs.digest
        assert later.record["metrics"] == theirs.record["metrics"]
        assert decided_of(later.record) | {"numerics": None} == decided_of(theirs.record) | {"numerics": None}


def test_a_kill_loses_and_doubles_none(chain, straight, tmp_path, killed_at):
    job = keeping(sft(chain, tmp_path / "sft", checkpoint_seconds=1e-6), {"step": 5}, {"epoch": 3})
    with killed_at(9):
        run_job(job, STAGES)
    before = find(Path(job.on_the_way[0].output))
    assert before is not None and find(Path(job.on_the_way[1].output)) is None
    written = (before.path / "artifact.json").stat().st_mtime_ns
    last = made(job)
    assert last.digest == find(Path(straight.output)).digest
    expected = {one.partition: find(Path(one.output)).digest for one in straight.on_the_way}
    assert all(find(Path(one.output)).digest == expected[one.partition] for one in job.on_the_way)
    assert (before.path / "artifact.json").stat().st_mtime_ns == written


@pytest.mark.parametrize("killed", [4, 5], ids=["before", "in"])
def test_a_kill_while_the_model_is_written_leaves_the_training_before_the_step(
    chain, straight, tmp_path, monkeypatch, killed
):
    """No checkpoint of the step is there before the step's own artifact."""
    job = keeping(sft(chain, tmp_path / "sft", {"epochs": 2}, checkpoint_seconds=1e-6), {"step": killed})

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(kept_models, "_moved", dies)
        run_job(job, STAGES)
    found = sorted((Path(job.output) / "scratch" / "trainer").glob("checkpoint-*"))
    assert found[-1].name == f"checkpoint-{killed - 1}"
    made(job)
    assert find(Path(job.on_the_way[0].output)) is not None


def test_a_kill_behind_a_step_that_was_asked_for_later_gives_no_later_model(straight, monkeypatch):
    """No checkpoint of the last step is there, from which a training would go on behind it."""
    job = replace(of_step(straight, {"step": 5}, called="-killed"), run=replace(straight.run, checkpoint_seconds=1e-6))

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sft_stage, "save_model", dies)
        run_job(job, STAGES)
    assert made(job).digest == find(Path(straight.on_the_way[0].output)).digest


@pytest.mark.parametrize("peft", [{}, {"r": 4}], ids=["whole", "adapters"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_model_in_training_stays_as_it_is(chain, tmp_path, monkeypatch, precision, peft):
    """Adapters are merged in a copy, and the forward pass in mixed precision is put back."""
    types = {"fp32": torch.float32, "bf16": torch.bfloat16}  # also on a processor that is slow in bf16
    monkeypatch.setattr(fit, "dtype_here", lambda asked, _: types[asked])
    changes = {"peft": peft, "epochs": 2, "precision": precision}
    plain = made(sft(chain, tmp_path / "plain", changes))
    job = keeping(sft(chain, tmp_path / "sft", changes), {"step": 3})
    assert made(job).digest == plain.digest
    (kept,) = (find(Path(one.output)) for one in job.on_the_way)
    later = made(of_step(job, {"step": 3}, called="-later"))
    assert (kept.digest, kept.record["metrics"]) == (later.digest, later.record["metrics"])
    names = {file["path"] for file in kept.record["files"]}
    assert "model/model.safetensors" in names and ("adapter/adapter_model.safetensors" in names) == bool(peft)


BRIEF_RL = {**RL, "max_steps": 3, "rewards": {"length": 1.0}}


@pytest.mark.parametrize(
    ("settings", "looks"),
    [({**DPO, "epochs": 2}, False), (BRIEF_RL, False), (BRIEF_RL, True)],
    ids=["dpo", "grpo", "grpo watched"],
)
def test_alignment_keeps_a_step_and_goes_on_as_without(chain, tmp_path, settings, looks):
    """What is watched changes no kept step, which is the same if it is asked for later and nothing is watched."""
    job = tiny.job("align", tmp_path / "plain", {"align": settings}, inputs(chain, settings["method"]))
    plain, later = made(job), made(of_step(job, {"step": 2}, called="-later"))
    watch = {"watch": watch_of(tmp_path), "watched_data": {}} if looks else {}
    job = replace(keeping(replace(job, output=str(tmp_path / "aligned")), {"step": 2}), settings=job.settings | watch)
    assert made(job).digest == plain.digest != later.digest
    (kept,) = (find(Path(one.output)) for one in job.on_the_way)
    assert decided_of(later.record) | {"numerics": None} == decided_of(kept.record) | {"numerics": None}
    assert kept.record["metrics"]["steps"] == 2 and kept.record["metrics"] == later.record["metrics"]


def test_a_step_that_the_training_does_not_reach_is_refused_before_its_first_step(chain, tmp_path):
    job = keeping(sft(chain, tmp_path / "sft"), {"step": 48})
    with pytest.raises(RecipeError, match=r"step 48 is not before the training's end, after step 48"):
        run_job(job, STAGES)
    assert read_metrics(tmp_path / "sft" / "metrics.jsonl") == []


@pytest.mark.parametrize("shard", [2, 1])
def test_two_processes_keep_a_step_and_go_on(chain, tmp_path, shard):
    """The first one commits it, and both take the next step."""
    job = keeping(sft(chain, tmp_path / "sft", {"epochs": 1}, processes=2, shard=shard), {"step": 2})
    for one in (*job.on_the_way, job):
        Path(one.output).mkdir()
        write_job(one, Path(one.output) / "job.json")
    argv = [sys.executable, *LAUNCHER, "--standalone", "--nproc-per-node=2", "-m", "training"]
    ran = subprocess.run([*argv, str(tmp_path / "sft" / "job.json")], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    alone = keeping(
        replace(job, output=str(tmp_path / "alone"), run=replace(job.run, processes=1, shard=1)), {"step": 2}
    )
    made(alone)
    for ours, theirs in zip((*job.on_the_way, job), (*alone.on_the_way, alone), strict=True):
        metrics = [find(Path(one.output)).record["metrics"] for one in (ours, theirs)]
        assert metrics[0] == pytest.approx(metrics[1], rel=1e-5)


REFUSED = {
    "sft: {epochs: 2.0, keep: {epochs: [2]}}": "sft.keep.epochs: 2; the training has 2, and ends with its own model",
    "sft: {keep: {steps: log}}": "sft.keep: only the rows say how many steps there will be; list steps, or name epochs",
    "sft: {epochs: 2.0, keep: {epochs: all, steps: [3]}}": "sft.keep: epochs and steps; name one of them",
    "align: {method: grpo, watch: {every: 2, proxy_up_truth_down: stop}, keep: {steps: [1]}}": "not with align.watch",
}


@pytest.mark.parametrize("asked", REFUSED)
def test_what_cannot_be_kept_is_refused_when_the_recipe_is_read(asked, tmp_path):
    (tmp_path / "own.yaml").write_text(f"extends: kitchen\nname: own\n{asked}\n")
    with pytest.raises(RecipeError, match=re.escape(REFUSED[asked])):
        load_recipe("own", folders=(tmp_path, SHIPPED))


def test_what_is_kept_is_a_partition_and_changes_no_fingerprint_of_its_training(tmp_path):
    recipe = load_recipe("kitchen")
    longer = replace(recipe.long_context, tokens=8192, sequence_length=1024, global_batch_tokens=2048)
    plain = replace(recipe, sft=replace(recipe.sft, epochs=3.0), long_context=longer)
    sft, rl = KeptEpochsRecipe(epochs="all"), KeptEpochsRecipe(steps=(4,))
    kept = replace(
        plain,
        sft=replace(plain.sft, keep=sft),
        align=replace(plain.align, keep=rl),
        long_context=replace(longer, keep=KeptStatesRecipe(every=3, optimizer=True)),
    )
    parts = {name: parts_of(CHAIN[name], kept) for name in WHOLE}
    assert list(parts.values()) == [[], ["long_context-step-3"], ["sft-epoch-2", "sft-epoch-1"], ["align-step-4"]]
    ours, theirs = compare(kept, tmp_path).cells, compare(plain, tmp_path).cells
    other = {key[0] for key, cell in theirs.items() if ours[key].fingerprint != cell.fingerprint}
    assert other == {"model_card", "promoted_model"}  # the card reads the whole recipe
    added = Counter(asset for asset, _ in ours.keys() - theirs.keys())
    kept_steps = {name: len(some) for name, some in parts.items() if some}
    assert added == {**kept_steps, "step_scores": sum(kept_steps.values()), "learning_curves": 1}
    assert [whole_in_words(name).split()[0] for name in WHOLE] == ["base", "long-context", "SFT", "aligned"]
    assert kept_of("long_context-step-3") == {"kept": {"step": 3}} and kept_of("sft-epoch-1") == {"kept": {"epoch": 1}}
