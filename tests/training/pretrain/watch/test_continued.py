"""More tokens for a finished training: the same bits as in one go, from a state of the shorter training."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.training.pretrain import tiny
from training.contract.artifact import find
from training.contract.job import InputArtifact, RefusedInput
from training.contract.records import RecipeError
from training.contract.running.runner import run_job
from training.order.batch_settings import ContinueRecipe
from training.pretrain.optim.average_settings import AverageRecipe
from training.pretrain.watch.stop_settings import StopRecipe
from training.stages import STAGES

SHORT = dataclasses.replace(
    tiny.PRETRAIN, precision="fp32", optimizer="adamw", schedule="wsd", warmup_fraction=0.25, decay_fraction=0.25
)
TOKENS = 20 * 256
LONGER = dataclasses.replace(SHORT, tokens=TOKENS, continues=ContinueRecipe(tokens=(SHORT.tokens,)))
IN_ONE_GO = dataclasses.replace(SHORT, tokens=TOKENS, warmup_fraction=0.15)  # three steps too


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    return tiny.TinyChain(tmp_path_factory.mktemp("chain"), pretrain=SHORT)


def job_of(chain, name, recipe):
    """The job of a base model by a plan of its own over the chain's shards."""
    own = tiny.TinyChain.__new__(tiny.TinyChain)
    own.__dict__ |= chain.__dict__ | {"pretrain": recipe, "root": chain.root / name}
    outcome = own.make_plan()
    own.plan_artifact = tiny.commit(own.root / "training_plan" / "p", "training_plan", list(outcome.files))
    return own.job(name, threads=1)


def state_after(chain, step, recipe=SHORT):
    """A step of the shorter training with its optimizer's state, as a job reads it."""
    name = f"step-{step}-{recipe.learning_rate:g}"
    job = chain.job(name, pretrain=recipe, threads=1)
    settings = job.settings | {"kept": {"step": step}, "optimizer": True}
    output = str(chain.root / "kept_steps" / name)
    job = dataclasses.replace(job, asset="kept_steps", partition=f"tiny@step-{step}", settings=settings, output=output)
    assert run_job(job, STAGES) == 0
    made = find(Path(output))
    called = {"asset": job.asset, "partition": job.partition, "fingerprint": job.fingerprint}
    return InputArtifact(**called, digest=made.digest, path=output, numerics=made.record["numerics"])


@pytest.fixture(scope="module")
def whole(chain):
    """The longer training, made without a state."""
    job = job_of(chain, "whole", LONGER)
    assert run_job(job, STAGES) == 0
    return find(Path(job.output))


def test_a_training_goes_on_from_a_state_of_the_shorter_one_to_the_bits_of_one_go(chain, whole):
    state = state_after(chain, 7)
    job = dataclasses.replace(job_of(chain, "longer", LONGER), goes_on_from=state)
    assert run_job(job, STAGES) == 0
    made = find(Path(job.output))
    assert made.record["notes"]["resumed_at_step"] == 7 and made.record["metrics"]["steps"] == 20
    assert "goes on after step 7, from the state beside kept_steps [tiny@step-7]" in said(made)
    plain = job_of(chain, "plain", IN_ONE_GO)
    assert run_job(plain, STAGES) == 0
    assert made.digest == whole.digest == find(Path(plain.output)).digest
    assert made.record["metrics"]["training_seconds"] > state.record()["metrics"]["training_seconds"]


@pytest.mark.parametrize(
    ("step", "changes"), [(10, {}), (7, {"learning_rate": 2e-2})], ids=["in the decay", "another rate"]
)
def test_a_state_that_is_no_part_of_the_longer_training_is_left(chain, whole, step, changes):
    state = state_after(chain, step, dataclasses.replace(SHORT, **changes))
    job = dataclasses.replace(job_of(chain, f"other-{step}-{len(changes)}", LONGER), goes_on_from=state)
    assert run_job(job, STAGES) == 0
    made = find(Path(job.output))
    assert made.digest == whole.digest and "resumed_at_step" not in made.record["notes"]
    assert "is not of the training that is continued" in said(made) and "training begins at step 0" in said(made)


def test_a_damaged_state_is_refused_and_not_passed_over(chain):
    state = state_after(chain, 6)
    path = next(Path(state.path, "optimizer").glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    job = dataclasses.replace(job_of(chain, "damaged", LONGER), goes_on_from=state)
    with pytest.raises(RefusedInput, match=rf"{path.name} is missing or was changed; run again, which says what to do"):
        run_job(job, STAGES)
    assert find(Path(job.output)) is None


def test_the_record_names_the_class_of_numerics_of_both_parts(chain):
    state = state_after(chain, 8)
    other = dataclasses.replace(state, numerics=state.numerics | {"threads": 7})
    job = dataclasses.replace(job_of(chain, "elsewhere", LONGER), goes_on_from=other)
    assert run_job(job, STAGES) == 0
    assert find(Path(job.output)).record["numerics"]["threads"] == [7, 1]


def said(made):
    """What the run said."""
    return (made.path / "messages.jsonl").read_text("utf-8")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schedule": "cosine"}, "pretrain.continues: not with schedule: cosine, whose rate at every step depends on"),
        ({"tokens": "auto"}, "pretrain.tokens: auto; a training that continues another one needs a number"),
        (
            {"tokens": SHORT.tokens},
            "3,072 tokens (12 steps) continue 3,072 tokens (12 steps); a larger",
        ),
        ({"continues": ContinueRecipe(recipe="tiny")}, "pretrain.continues.tokens: empty"),
        ({"average": AverageRecipe(kind="uniform")}, "not with pretrain.average.kind: uniform"),
        ({"stop": StopRecipe(patience_tokens=9)}, "not with pretrain.stop"),
        ({"decay_fraction": 1.0, "warmup_fraction": 0.0}, "its decay begins with the first step"),
    ],
)
def test_what_cannot_be_continued_is_refused(changes, words):
    with pytest.raises(RecipeError) as error:
        dataclasses.replace(LONGER, **changes)
    assert words in str(error.value)


def test_steps_of_the_shorter_training_are_kept_by_its_recipe():
    keep = dataclasses.replace(LONGER.keep, every=3)
    assert dataclasses.replace(SHORT, keep=keep).kept_steps == (3, 6, 9)
    assert dataclasses.replace(LONGER, keep=keep).kept_steps == (12, 15, 18)
    with pytest.raises(RecipeError, match=r"pretrain.keep: 3, 9; up to step 9 .* whose recipe keeps its steps"):
        dataclasses.replace(LONGER, keep=dataclasses.replace(LONGER.keep, steps=(3, 9)))
