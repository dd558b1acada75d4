"""The loss on held-out text by language, at the steps that are looked at."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from benchmarks import parallel
from tests.training.pretrain import spread, tiny
from tests.training.pretrain.watch.test_looks import PLAIN, curves, job_of
from training.order.batches import BYTES, DOCUMENT, SHARD, held_out_bytes, held_out_samples
from training.pretrain.held_out import BY_LANGUAGE, HELD_OUT_BITS, held_out
from training.pretrain.models.attention import one_document
from training.pretrain.models.export import read_model
from training.pretrain.parallel.degrees import Degrees
from training.pretrain.stages import pretrain as stage
from training.pretrain.watch.items import ITEMS_FILE
from training.pretrain.watch.languages import LANGUAGES_FILE
from training.pretrain.watch.settings import WatchRecipe

WATCH = WatchRecipe(every=5, languages=True)
IN = f"{HELD_OUT_BITS}{BY_LANGUAGE}"


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    return tiny.TinyChain(tmp_path_factory.mktemp("chain"), pretrain=PLAIN)


def guard_of(chain, name, languages):
    """The artifact `watched_items` of a training that is asked no items."""
    folder = chain.root / "watched_items" / name
    folder.mkdir(parents=True)
    (folder / ITEMS_FILE).write_text("")
    (folder / LANGUAGES_FILE).write_text(json.dumps(languages))
    return tiny.commit(folder, "watched_items", [ITEMS_FILE, LANGUAGES_FILE])


@pytest.fixture(scope="module")
def runs(chain):
    """A training that is not watched, and one in which three languages are told apart."""
    guard = guard_of(chain, "w", [("de", "en", "unknown")[n % 3] for n in range(len(chain.plan.held_out))])
    jobs = {
        "plain": job_of(chain, "plain"),
        "watched": job_of(chain, "watched", WATCH, guard, watch_share=1.0),
    }
    return jobs, {name: stage.run(job, tiny.work_in(Path(job.output))) for name, job in jobs.items()}


def test_the_loss_is_given_by_language_at_every_look_and_at_the_end_and_changes_nothing(runs):
    jobs, made = runs
    seen = curves(jobs["watched"])
    for name in ("en", "de", "unknown"):
        assert [step for known, step in seen if known == IN + name] == [0, 3, 5, 6, 9, 10, 12]
        assert seen[IN + name, 12] == made["watched"].metrics[IN + name] < seen[IN + name, 0]
    by_source = [key for key in seen if key[0] in (f"{HELD_OUT_BITS}_web", f"{HELD_OUT_BITS}_books")]
    assert {step for _, step in by_source} == {0, 3, 5, 6, 9, 10, 12}
    plain = {key: value for key, value in curves(jobs["plain"]).items() if key in by_source}
    assert plain and plain.items() <= seen.items()
    weights = [Path(job.output, "model", "model.safetensors").read_bytes() for job in jobs.values()]
    assert weights[0] == weights[1]


@torch.no_grad()
def test_the_numbers_are_those_of_the_exported_model_asked_document_by_document(runs, chain):
    model, plan, shards = read_model(Path(runs[0]["watched"].output) / "model"), chain.plan, chain.open_shards()
    language_of = {(int(row[SHARD]), int(row[DOCUMENT])): n % 3 for n, row in enumerate(plan.held_out)}
    nats, size = [0.0] * 3, [0] * 3
    for n, row in enumerate(plan.held_out):
        nats[n % 3] += math.log(tiny.VOCABULARY)
        size[n % 3] += int(row[BYTES])
    segments = [one for source in (0, 1) for sample in held_out_samples(plan, source) for one in sample]
    assert len(segments) > len(plan.held_out)  # documents are cut, also between rows
    for one in segments:
        own = shards._tokens_of(one.shard)[one.start : one.start + one.length + (not one.is_end)].astype("int64")
        if len(own) > 1:
            row = torch.from_numpy(own)[None]
            logits = model.logits(row[:, :-1], one_document(row[:, :-1], dtype=torch.float32, window=None))
            nats[language_of[one.shard, one.document]] += F.cross_entropy(logits[0], row[0, 1:], reduction="sum").item()
    metrics = runs[1]["watched"].metrics
    for n, name in enumerate(("de", "en", "unknown")):
        assert metrics[IN + name] == pytest.approx(nats[n] / math.log(2) / size[n], rel=1e-5)


def by_language(data, degrees, rank, size):
    """The bits by language of a model after its first step, where each document has a language of its own, and all."""
    trainer = spread.trainer_in(data, spread.world_of(degrees, rank, size))
    trainer.run_step()
    number = len(trainer.plan.held_out)
    found = held_out(trainer, [f"l{n}" for n in range(number)])
    bits = sum(found[f"{IN}l{n}"] * trainer.plan.held_out[n, BYTES] for n in range(number))
    sources = enumerate(trainer.plan.record.sources)
    bits -= sum(found[f"{HELD_OUT_BITS}_{one.name}"] * held_out_bytes(trainer.plan, n) for n, one in sources)
    assert number > 3 and abs(bits) < 1e-6
    return found


def test_processes_that_share_a_model_tell_languages_apart_as_one_does(tmp_path):
    data = parallel.make_data(tmp_path / "data")
    alone = by_language(data, Degrees(), 0, 1)
    meshes = [Degrees(), *(Degrees(**{name: 2}) for name in ("shard", "tensor", "context", "pipeline"))]
    found = parallel.in_processes([(2, partial(by_language, data, degrees)) for degrees in meshes], tmp_path)
    for degrees, together in zip(meshes, found, strict=True):
        assert together == pytest.approx(alone, rel=1e-4), degrees
