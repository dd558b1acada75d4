"""Going on in longer rows: needles and their scoring by hand, then the whole stage at a size for seconds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.examples import example, load_recipe  # noqa: E402
from tests.training.pretrain.tiny import EOS, MODEL, PRETRAIN, TinyChain, commit, job_of, work_in  # noqa: E402
from training.contract.artifact import find, sha256_of  # noqa: E402
from training.contract.job import DataError, Job  # noqa: E402
from training.contract.records import RecipeError  # noqa: E402
from training.contract.running.runner import run_job  # noqa: E402
from training.pretrain.models import export  # noqa: E402
from training.pretrain.models.attention import one_document  # noqa: E402
from training.pretrain.models.decoder import Decoder, initialise  # noqa: E402
from training.pretrain.objectives.objective import Batch, one_text  # noqa: E402
from training.pretrain.stages import long_context  # noqa: E402
from training.pretrain.stages import pretrain as stage  # noqa: E402
from training.pretrain.stages.long_context_settings import LongContextRecipe  # noqa: E402
from training.pretrain.stages.needles import Needle, found_needles, needles, scorer  # noqa: E402
from training.stages import STAGES  # noqa: E402

HAY = [ord("a") + i % 26 for i in range(500)]
DEPTHS = (0.0, 0.5, 1.0)


def encode(text: str) -> list[int]:
    return list(text.encode())


def written(tokens: list[int]) -> str:
    return bytes(tokens).decode()


def made(length: int = 200, count: int = 6) -> list[Needle]:
    return list(needles(HAY, encode, length=length, depths=DEPTHS, count=count, choices=4, seed=1))


# Needles


def test_a_needle_is_hidden_where_it_was_asked_for_and_asked_for_at_the_end():
    for needle in made():
        text, value = written(needle.context), written(needle.values[needle.answer])
        question = text[text.rindex("\n") :]
        assert text.count(f"{question}{value}.\n") == 1 and len(needle.context) + len(value) == 200
        assert all(written(other) not in text for i, other in enumerate(needle.values) if i != needle.answer)
        room = 200 - 2 * len(question) - 2 * len(value) - 2
        assert text.index(question) == round(needle.depth * room)
    assert made() == made() and {needle.depth for needle in made()} == set(DEPTHS)


def test_one_that_looks_back_finds_every_needle_and_one_that_does_not_finds_chance():
    def looks_back(context: list[int], values: list[list[int]]) -> list[tuple[float, bool]]:
        return [(0.0, True) if written(value) in written(context) else (-9.0, False) for value in values]

    assert all(row["found"] == row["said"] == 1.0 and row["needles"] == 6 for row in found_needles(made(), looks_back))
    first = found_needles(made(count=200), lambda _, values: [(-float(i), False) for i in range(len(values))])
    assert all(0.15 < row["found"] < 0.35 and row["said"] == 0.0 for row in first)


def test_a_row_without_room_is_refused():
    with pytest.raises(DataError, match="40 positions"):
        made(length=40)


def test_values_are_scored_as_the_model_predicts_them():
    chain_model = Decoder(MODEL.shape(vocab_size=300))
    initialise(chain_model, zero_outputs=False, generator=torch.Generator().manual_seed(1))
    context, values = HAY[:20], [[5, 6, 7], [8, 9]]
    for value, (nats, said) in zip(values, scorer(chain_model, torch.float32)(context, values), strict=True):
        tokens = torch.tensor([[*context, *value]])
        with torch.no_grad():
            logits = chain_model.logits(tokens, one_document(tokens, dtype=torch.float32))[0].log_softmax(-1)
        wanted = [logits[len(context) - 1 + i, token].item() for i, token in enumerate(value)]
        assert nats == pytest.approx(sum(wanted), abs=1e-4)
        assert said == all(logits[len(context) - 1 + i].argmax() == token for i, token in enumerate(value))


def test_documents_of_a_row_become_one_text_and_its_filling_stays_apart():
    documents = np.array([[0, 0, 1, 2, -1]])
    batch = one_text(Batch(documents, documents, documents))
    assert batch.documents.tolist() == [[0, 0, 0, 0, -1]] and batch.targets.tolist() == documents.tolist()


# The stage

LONG = LongContextRecipe(
    tokens=4 * 768,
    sequence_length=192,
    global_batch_tokens=768,
    across_documents=True,
    needles=2,
    needle_choices=3,
    min_needle_score=0.0,
    max_short_rise=1.0,
    min_loss_fall=-1.0,
)


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> TinyChain:
    pretrain = replace(PRETRAIN, sequence_length=96, global_batch_tokens=384, tokens=4 * 384)
    chain = TinyChain(tmp_path_factory.mktemp("long"), pretrain=pretrain)
    outcome = stage.run(chain.job(model=replace(MODEL, max_length=96)), work_in(chain.root / "base_model" / "m"))
    chain.base = commit(chain.root / "base_model" / "m", "base_model", list(outcome.files), metrics=outcome.metrics)
    chain.pretrain = replace(
        pretrain,
        tokens=LONG.tokens,
        sequence_length=LONG.sequence_length,
        global_batch_tokens=LONG.global_batch_tokens,
        min_loss_fall=LONG.min_loss_fall,
        objective=replace(pretrain.objective, across_documents=True),
    )
    plan_outcome = chain.make_plan()
    chain.long_plan = commit(chain.root / "training_plan" / "p", "long_context_plan", list(plan_outcome.files))
    return chain


def job_of_extension(chain: TinyChain, name: str, recipe: LongContextRecipe = LONG) -> Job:
    folder = chain.root / "long" / name
    settings = {
        "model": replace(MODEL, max_length=192, rope_scaling=replace(MODEL.rope_scaling, kind="linear", factor=2.0)),
        "pretrain": chain.pretrain,
        "long_context": recipe,
        "short": {"sequence_length": 96},
    }
    inputs = (chain.base, chain.long_plan, chain.shards, chain.tokenizer)
    return replace(job_of("pretrain", settings, inputs, folder), stage="extend", asset="long_context_model")


def extend(chain: TinyChain, name: str, recipe: LongContextRecipe = LONG):
    job = job_of_extension(chain, name, recipe)
    return Path(job.output), long_context.run(job, work_in(Path(job.output)))


@pytest.fixture(scope="module")
def extended(chain):
    return extend(chain, "a")


def test_the_model_goes_on_from_the_base_and_is_judged_against_it(chain, extended):
    folder, outcome = extended
    assert {gate.name: gate.passed for gate in outcome.gates} == {
        "loss_finite_and_falling": True,
        "export_equals_trainer": True,
        "needles_found": True,
        "short_context_kept": True,
    }
    table = json.loads((folder / "long_context.json").read_text())
    assert table["lengths"] == {"short": 96, "long": 192} and "long_context.json" in outcome.files
    rows = table["after"]["long"]["needles"]
    assert [row["depth"] for row in rows] == list(LONG.needle_depths) and all(row["needles"] == 2 for row in rows)
    config = json.loads((folder / "model" / "config.json").read_text())
    assert config["max_position_embeddings"] == 192 and config["rope_parameters"]["factor"] == 2.0
    before = export.read_model(Path(chain.base.path) / "model").state_dict()
    after = export.read_model(folder / "model").state_dict()
    moved = max((after[name] - before[name]).abs().max().item() for name in before)
    assert 0 < moved < 0.5


def test_before_is_the_base_model_as_its_own_training_measured_it(chain, extended):
    metrics = extended[1].metrics
    assert metrics["bits_per_byte_short_before"] == pytest.approx(
        chain.base.record()["metrics"]["held_out_bits_per_byte"]
    )
    assert metrics["bits_per_byte_long_after"] == pytest.approx(metrics["held_out_bits_per_byte"])
    assert metrics["bits_per_byte_short_after"] != metrics["bits_per_byte_short_before"]


def test_forgetting_and_lost_needles_refuse_the_model(chain):
    _, outcome = extend(chain, "b", replace(LONG, max_short_rise=-0.9, min_needle_score=1.01))
    failed = {gate.name: gate.evidence for gate in outcome.gates if not gate.passed}
    assert set(failed) == {"needles_found", "short_context_kept"}
    assert failed["needles_found"]["chance"] == pytest.approx(1 / 3)
    assert failed["short_context_kept"]["bits_per_byte_after"] > 0


def test_the_same_job_gives_the_same_weights(chain, extended):
    folder, _ = extend(chain, "c")
    assert (folder / "model" / "model.safetensors").read_bytes() == (
        extended[0] / "model" / "model.safetensors"
    ).read_bytes()


def test_nothing_held_out_is_refused_before_training(chain):
    record = chain.plan.record
    empty = replace(record, sources=tuple(replace(source, look_documents=0) for source in record.sources))
    with pytest.raises(DataError, match=r"mixture\.held_out_fraction"):
        long_context.haystack_sources(chain.plan.with_record(empty))
    assert EOS not in long_context.haystack(chain.plan, chain.open_shards(), tokens=100)


# The recipe


def test_the_stage_has_its_own_rows_rates_and_positions():
    recipe = example("kitchen-long-context")
    longer = recipe.in_long_context()
    assert longer.model.max_length == 1024 and longer.model.rope_scaling.kind == "yarn"
    assert longer.pretrain.sequence_length == 1024 and longer.pretrain.learning_rate == 6e-4
    assert longer.pretrain.optimizer == recipe.pretrain.optimizer and longer.long_context.tokens is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tokens": 4096}, "needs sequence_length and global_batch_tokens"),
        ({"tokens": 4096, "sequence_length": 256, "global_batch_tokens": 1024}, "must be longer than"),
        ({"needle_choices": 1}, "needle_choices=1"),
        ({"needle_depths": (1.5,)}, "needle_depths"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(given, said):
    with pytest.raises(RecipeError, match=said):
        replace(load_recipe("kitchen"), long_context=LongContextRecipe(**given))


def test_a_step_stays_without_needles_and_the_model_is_the_same(chain, extended):
    """Made on the way or asked for later, it is the same artifact."""
    whole = job_of_extension(chain, "keeping")
    named = {"asset": "kept_long_context_steps", "partition": "tiny@long_context-step-2", "fingerprint": "step-2"}
    kept = replace(whole, **named, settings=whole.settings | {"kept": {"step": 2}}, output=f"{whole.output}-step")
    later = replace(kept, output=f"{whole.output}-later")
    for job in (replace(whole, on_the_way=(kept,)), later):
        assert run_job(job, STAGES) == 0
    model, step, again = (find(Path(job.output)) for job in (whole, kept, later))
    files = {one["path"]: one["sha256"] for one in model.record["files"]}
    assert all(sha256_of(extended[0] / name) == digest for name, digest in files.items() if name != long_context.FILE)
    assert step.digest == again.digest != model.digest and step.record["metrics"]["steps"] == 2
    assert long_context.FILE in files and long_context.FILE not in {one["path"] for one in step.record["files"]}
    assert {gate["name"] for gate in step.record["gates"]} == {"loss_finite_and_falling", "export_equals_trainer"}
