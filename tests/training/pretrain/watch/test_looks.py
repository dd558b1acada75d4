"""A training that is watched: what is measured, what it costs, and that it changes nothing."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks import parallel
from tests.training.pretrain import tiny
from tests.training.pretrain.watch.looking import ITEMS, SUITES, items_artifact, looked_at
from training.contract.job import StopRequested
from training.contract.progress import METRICS_FILE, read_metrics
from training.contract.records import RecipeError, write_record
from training.order.batches import held_out_samples, sample_ids
from training.order.loss_mask import IGNORED
from training.pretrain.looks.looks import OVERHEAD, joined_norms, within
from training.pretrain.models.attention import one_document
from training.pretrain.models.export import read_model
from training.pretrain.parallel.degrees import Degrees
from training.pretrain.run import train
from training.pretrain.stages import pretrain as stage
from training.pretrain.step import Trainer
from training.pretrain.watch.items import num_rows, rows_of
from training.pretrain.watch.settings import WatchRecipe

WATCH = WatchRecipe(every=5, suites=SUITES, items=9)
PLAIN = dataclasses.replace(tiny.PRETRAIN, precision="fp32", optimizer="adamw", gradient_clip=1.5)


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    return tiny.TinyChain(tmp_path_factory.mktemp("chain"), pretrain=PLAIN)


@pytest.fixture(scope="module")
def guard(chain):
    return items_artifact(chain.root / "watched_items" / "w")


def job_of(chain, name, watch=None, guard=None, **run):
    job = chain.job(name, threads=1, **run)
    if watch is None:
        return job
    settings = job.settings | {"watch": write_record(watch)}
    return dataclasses.replace(job, settings=settings, guards=(guard,) if guard else ())


def trainer_of(chain):
    built = tiny.built(stage.model_shape(tiny.MODEL, Path(chain.tokenizer.path)), PLAIN)
    return Trainer(built, PLAIN, chain.plan, chain.open_shards(), parallel.ALONE)


def rows_of_run(job):
    return read_metrics(Path(job.output) / METRICS_FILE)


def curves(job):
    """Each number that a look measures by step; what is said twice of a step is said alike."""
    found = {}
    for row in rows_of_run(job):
        for name, value in row.items():
            if name.startswith(("watched", "held_out", "training_loss", "gradient_norm/", "clipped", "largest")):
                assert found.setdefault((name, row["step"]), value) == value
    return found


@pytest.fixture(scope="module")
def runs(chain, guard):
    jobs = {"plain": job_of(chain, "plain"), "watched": job_of(chain, "watched", WATCH, guard)}
    made = {name: stage.run(job, tiny.work_in(Path(job.output))) for name, job in jobs.items()}
    return jobs, made


def test_a_watched_training_makes_the_same_bytes_and_the_same_record(runs):
    jobs, made = runs
    weights = [Path(job.output, "model", "model.safetensors").read_bytes() for job in jobs.values()]
    assert weights[0] == weights[1]
    clocks = ("tokens_per_second", "training_seconds", "watching_seconds")
    assert made["plain"].metrics.keys() ^ made["watched"].metrics.keys() == {"watching_seconds"}
    assert made["watched"].metrics["watching_seconds"] > 0
    plain, watched = ({k: v for k, v in one.metrics.items() if k not in clocks} for one in made.values())
    assert plain == watched and made["plain"].gates == made["watched"].gates


def test_a_look_is_taken_at_the_watched_steps_the_first_and_the_last(runs):
    seen = curves(runs[0]["watched"])
    for suite in SUITES:
        for name in ("accuracy", "bits_per_byte"):
            assert [step for known, step in seen if known == f"watched_{name}_{suite}"] == [0, 5, 10, 12]
    assert [step for name, step in seen if name == "training_loss/web"] == [5, 10, 12]
    assert {step for name, step in seen if name == "held_out_bits_per_byte_web"} == {3, 6, 9, 12}
    first, last = (seen["watched_bits_per_byte_cloze", step] for step in (0, 12))
    assert first == pytest.approx(8, abs=0.1) and last < first - 1  # the weights begin as almost even
    row = next(row for row in rows_of_run(runs[0]["watched"]) if row["step"] == 10 and "loss" in row)
    assert row["watched_accuracy_cloze"] == seen["watched_accuracy_cloze", 10] and row["tokens"] == 10 * 256


def by_hand(model, suites):
    """The scores of a whole model that is asked request by request."""

    def nats(context, continuation):
        row = torch.tensor([[*context, *continuation[:-1]]])
        logits = model.logits(row, one_document(row, dtype=torch.float32, window=model.config.window))[
            0, len(context) - 1 :
        ]
        wanted = torch.tensor(continuation)
        return F.cross_entropy(logits, wanted, reduction="sum").item(), bool((logits.argmax(-1) == wanted).all())

    for suite, items in suites.items():
        found = [[nats(*request) for request in item.requests] for item in items]
        right = 0
        for item, one in zip(items, found, strict=True):
            weighed = [-n / length for (n, _), length in zip(one, item.lengths, strict=True)]
            right += one[0][1] if item.is_greedy else np.argmax(weighed) in item.right
        bits = sum(one[item.right[0]][0] for item, one in zip(items, found, strict=True)) / math.log(2)
        yield suite, right / len(items), bits / sum(item.bytes for item in items)


@torch.no_grad()
def test_the_last_look_is_the_exported_model_asked_request_by_request(runs):
    job = runs[0]["watched"]
    seen, model = curves(job), read_model(Path(job.output) / "model")
    for suite, accuracy, bits in by_hand(model, ITEMS):
        assert seen[f"watched_accuracy_{suite}", 12] == accuracy
        assert seen[f"watched_bits_per_byte_{suite}", 12] == pytest.approx(bits, rel=1e-5)


def test_losses_by_source_and_norms_are_those_of_the_step(runs, chain):
    seen, job = curves(runs[0]["watched"]), runs[0]["watched"]
    rows = {row["step"]: row for row in rows_of_run(job) if "loss" in row}
    counts = {source.name: 0 for source in chain.plan.record.sources}
    _, targets, _ = chain.open_shards().rows(stage.index(chain.plan, 9), length=32)
    for (source, _), row in zip(sample_ids(chain.plan, 9), targets, strict=True):
        counts[chain.plan.record.sources[source].name] += int((row != IGNORED).sum())
    total = sum(seen[f"training_loss/{name}", 10] * count for name, count in counts.items())
    assert total / sum(counts.values()) == pytest.approx(rows[10]["loss"], rel=1e-6)
    assert seen["training_loss/web", 10] != seen["training_loss/books", 10]
    layers = [value for (name, step), value in seen.items() if "/layer" in name and "norm" in name and step == 10]
    others = [seen[f"gradient_norm/{name}", 10] for name in ("embedding", "norm")]
    assert len(layers) == 2 and math.hypot(*layers, *others) == pytest.approx(rows[10]["gradient_norm"], rel=1e-5)
    clipped = [row["gradient_norm"] > 1.5 for row in rows.values() if row["step"] <= 10]
    assert seen["clipped_share", 10] == sum(clipped) / 10 and 0 < sum(clipped) < 10
    assert rows[10]["learning_rate/adamw_0"] == rows[10]["learning_rate"]
    assert seen["largest_activation/layer_1", 10] > seen["largest_activation/layer_0", 10] > 0


def test_norms_are_joined_by_layer_and_by_kind():
    given = {"embedding": 1.0, "blocks.0.mlp.up": 3.0, "blocks.1.mlp.up": 4.0, "blocks.1.mlp.down": 3.0}
    assert joined_norms(given) == {"embedding": 1.0, "layer_0": 3.0, "layer_1": 5.0, "mlp.up": 5.0, "mlp.down": 3.0}


def test_a_run_that_is_stopped_and_resumed_gives_the_same_curves(runs, chain, guard, monkeypatch):
    job = job_of(chain, "stopped", WATCH, guard)

    def stopping(trainer, watch):
        run_step = trainer.run_step

        def step(told):
            return run_step(told._replace(stop=trainer.state.position.step == 6))

        trainer.run_step = step
        train(trainer, watch)

    with monkeypatch.context() as patch:
        patch.setattr(stage, "train", stopping)
        with pytest.raises(StopRequested):
            stage.run(job, tiny.work_in(Path(job.output)))
    assert stage.run(job, tiny.work_in(Path(job.output))).notes["resumed_at_step"] == 7
    assert curves(job) == curves(runs[0]["watched"])


MESHES = {
    "replicas": Degrees(),
    **{name: Degrees(**{name: 2}) for name in ("shard", "tensor", "context", "expert", "pipeline")},
}


def test_processes_that_share_a_model_see_what_one_sees(tmp_path):
    data = parallel.make_data(tmp_path / "data")
    alone = looked_at(data, Degrees(), 0, 1)
    tasks = [(2, partial(looked_at, data, degrees)) for degrees in MESHES.values()]
    for name, together in zip(MESHES, parallel.in_processes(tasks, tmp_path), strict=True):
        assert together == pytest.approx(alone, rel=1e-4), name


def test_requests_are_packed_into_rows_without_a_loss():
    items = [item for some in ITEMS.values() for item in some]
    requests = [request for item in items for request in item.requests]
    rows, found = rows_of(items, 32), {}
    for row in range(len(rows.tokens)):
        for document in range(rows.documents[row].max() + 1):
            own = rows.documents[row] == document
            (number,) = set(rows.requests[row][own].tolist()) - {-1}
            answered = rows.targets[row][own]
            found[number] = (rows.tokens[row][own].tolist(), answered[answered != IGNORED].tolist())
    expected = [([*context, *continuation[:-1]], [*continuation]) for context, continuation in requests]
    assert [found[number] for number in range(len(requests))] == expected
    assert (rows.targets[rows.documents == -1] == IGNORED).all() and len(rows.tokens) < len(requests)
    with pytest.raises(ValueError, match="longer than a row of 8"):
        rows_of(items, 8)


@pytest.mark.parametrize("share", [0.001, 0.45, 0.95])
def test_so_many_items_are_asked_as_the_share_pays_for(chain, guard, share):
    watch = dataclasses.replace(WATCH, every=6, items="auto")
    looks = stage.looks_of(job_of(chain, "auto", watch, guard, watch_share=share), trainer_of(chain))
    (asked,) = {len(some) for some in looks.exam.items.values()}
    assert asked == 9 if share == 0.95 else asked == 1 if share == 0.001 else 1 < asked < 9
    assert looks.reads_text == (share == 0.95) == ("held-out text" in str(looks))
    text = 32 * sum(len(held_out_samples(chain.plan, number)) for number in (0, 1)) * looks.reads_text
    positions = text + 32 * num_rows([item for some in ITEMS.values() for item in some[:asked]], 32)
    # A forward pass is a third of a training's operations: three looks, and 12 steps of 256 tokens.
    costs = 3 * (positions + OVERHEAD)
    assert looks.share == pytest.approx(costs / (3 * 12 * 256)) and (looks.share <= share or asked == 1)
    assert f"about {looks.share:.1%} of" in str(looks) and f"{asked} items of cloze" in str(looks)


def test_of_each_suite_the_same_number_of_first_items_is_asked():
    filled = [num_rows([item for some in ITEMS.values() for item in some[:n]], 32) for n in range(10)]
    assert within(ITEMS, 32, 32 * filled[4]) == {suite: ITEMS[suite][:4] for suite in SUITES}
    assert within(ITEMS, 32, 32 * filled[4] - 1) == {suite: ITEMS[suite][:3] for suite in SUITES}
    assert within(ITEMS, 32, 0) == {suite: ITEMS[suite][:1] for suite in SUITES}
    assert within({**ITEMS, "few": ITEMS["last"][:2]}, 32, 1e9)["few"] == ITEMS["last"][:2]
    assert within({}, 32, 1e9) == {}


@pytest.mark.parametrize(
    ("every", "steps", "expected"),
    [("log", 100, [0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 100]), (40, 100, [0, 40, 80, 100]), (None, 9, [])],
)
def test_steps_are_spaced_by_number_or_by_logarithm(every, steps, expected):
    assert sorted(WatchRecipe(every=every).steps_of(steps)) == expected


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"every": 0}, "pretrain.watch.every=0; at least 1 is right"),
        ({"every": 5, "suites": ("a",), "items": 0}, "pretrain.watch.items=0; at least 1 is right"),
        ({"every": 5, "suites": ("a", "a")}, "pretrain.watch.suites: a, a; name each suite once"),
        (
            {"suites": ("a",)},
            "pretrain.watch.suites: without effect, because every is null; log or a number of steps is right",
        ),
        ({"every": "log", "seed": 3}, "pretrain.watch.seed: without effect, because suites is empty"),
    ],
)
def test_a_setting_without_effect_is_refused(settings, said):
    with pytest.raises(RecipeError) as error:
        WatchRecipe(**settings)
    assert str(error.value) == said
