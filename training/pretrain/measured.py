"""Measure what the first process of a pretraining holds, with tensors that have no content (`pedigree plan --measure`).

It is the trainer's own code, from the first weights over two steps and held-out text to the written files, for the
recipe's settings and the profile's layout (training/contract/process/without_content.py).

`python -m training.pretrain.measured` reads the settings as JSON and prints the most bytes of each moment as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from training.contract.process.without_content import Memory, alone_of, without_content
from training.contract.records import read_record
from training.contract.run_settings import RunSettings
from training.order.batches import Plan, PlannedSource, PlanRecord, Shards
from training.order.documents import HELD_OUT, Documents
from training.pretrain.capacity.needs import Pretraining
from training.pretrain.held_out import held_out
from training.pretrain.models import attention, experts, export
from training.pretrain.models.account import evaluated_rows
from training.pretrain.models.decoder import meta_decoder
from training.pretrain.models.shape import ModelRecipe
from training.pretrain.parallel.degrees import Degrees
from training.pretrain.parallel.mesh import wholes
from training.pretrain.parallel.world import World, make_world
from training.pretrain.settings import PretrainRecipe
from training.pretrain.stages.pretrain import first_weights, own_layout
from training.pretrain.step import Trainer

STEPS = 2  # the second one has the optimizer's state
TOKENIZER = {"tokenizer.json": {"added_tokens": []}, "tokenizer_config.json": {}}


@contextmanager
def as_trained_on_gpu(counted: Memory) -> Iterator[None]:
    """Compute shapes alone, with a GPU's attention and products of experts in forms that take tensors of a CPU."""
    grouped_mm = functional.grouped_mm

    def attended(query: Tensor, key: Tensor, value: Tensor, _: Any) -> Tensor:
        return attention.grouped_attention(query, key, value, None)

    def grouped(runs: Tensor, matrices: Tensor, *, offs: Tensor) -> Tensor:
        if runs.dtype is torch.bfloat16:
            return grouped_mm(runs, matrices, offs=offs)
        return runs.new_empty(len(runs), matrices.shape[-1])  # what a GPU computes in fp32, one expert after the other

    def has_grouped_products(*_: Tensor) -> bool:
        return True

    replaced = (
        (attention, "flex_grouped_attention", attended),
        (experts, "has_grouped_products", has_grouped_products),
        (functional, "grouped_mm", grouped),
    )
    with ExitStack() as stack:
        for owner, name, value in replaced:
            stack.enter_context(patch.object(owner, name, value))
        stack.enter_context(without_content(counted))
        yield


def measured(training: Pretraining, run: RunSettings) -> dict[str, int]:
    """Return the most bytes that the first process holds at each moment of a training: those of `training_bytes`."""
    counted, degrees, processes = Memory(), Degrees.of(run), run.nodes * run.processes
    with alone_of(processes):
        world = make_world(degrees, rank=0, size=processes, device=torch.device("cpu"))
        with as_trained_on_gpu(counted):
            _measure(training, run, world, counted)
    return counted.peaks


def _measure(training: Pretraining, run: RunSettings, world: World, counted: Memory) -> None:
    counted.begin("start")
    trainer = _trainer(training, run, world, counted)
    counted.begin("step")
    for _ in range(STEPS):
        trainer.run_step()
    counted.begin("held-out text")
    held_out(trainer)
    counted.begin("export")
    with tempfile.TemporaryDirectory() as name:
        for file, content in TOKENIZER.items():
            Path(name, file).write_text(json.dumps(content))
        places = {"tokenizer": Path(name), "own_layout": bool(own_layout(training.shape, training.recipe))}
        weights = wholes(trainer.model, trainer.pieces)
        export.write_weights(training.shape, weights, Path(name, "model"), eos_id=0, **places)


def _trainer(training: Pretraining, run: RunSettings, world: World, counted: Memory) -> Trainer:
    recipe = replace(training.recipe, distill=type(training.recipe.distill)())
    plan, shards = _plan(training)
    weights = counted.each_elsewhere(first_weights(training.shape, recipe))
    trainer = Trainer(
        meta_decoder(training.shape),
        recipe,
        plan,
        shards,
        world,
        weights=weights,
        micro_batch_tokens=run.micro_batch_tokens,
    )
    trainer.attention = "flex"  # as on a GPU
    trainer.model.set_recompute(run.recompute)
    return trainer


def _plan(training: Pretraining) -> tuple[Plan, Shards]:
    """Return a plan of the phase's batches over one document, and as much held-out text as fills a pass everywhere."""
    phase = training.phase
    length, rows = phase.sequence_length, phase.rows
    tokens = np.zeros(rows * length // 4 or length, dtype=np.uint32)
    looked_at = 4 * evaluated_rows(length) * 2
    number = 1 + looked_at
    positions = (np.arange(number + 1) * len(tokens)).astype(np.uint64)
    positions[1:-1] |= HELD_OUT
    places, none = np.arange(number), np.zeros(number, dtype=np.int64)
    sizes = np.full(number, len(tokens))
    look = np.stack((none, places, none, sizes, sizes), axis=1)[1:]
    held = looked_at * len(tokens)
    source = PlannedSource(
        name="made",
        weight=1.0,
        samples=2 * STEPS * rows,
        first_document=0,
        documents=1,
        tokens=len(tokens),
        held_out_documents=looked_at,
        held_out_tokens=held,
        look_documents=looked_at,
        look_tokens=held,
    )
    record = PlanRecord(
        seed=0,
        sequence_length=length,
        global_batch_tokens=phase.global_batch_tokens,
        steps=2 * STEPS,
        tokenizer_digest="",
        eos_id=0,
        dtype=str(tokens.dtype),
        shards=(),
        sources=(source,),
    )
    documents = Documents(positions, np.stack([places, none, places, none]))
    return Plan(record, documents, look), Shards([tokens].__getitem__)


def main() -> None:
    """Read what is trained, and where, from standard input; print the bytes of each moment."""
    given = json.load(sys.stdin)
    recipe = read_record(PretrainRecipe, given["pretrain"])
    shape = read_record(ModelRecipe, given["model"]).shape(vocab_size=given["vocabulary"])
    phase = max(recipe.phases, key=lambda one: one.sequence_length)
    training = Pretraining(shape=shape, recipe=recipe, phase=phase)
    print(json.dumps(measured(training, read_record(RunSettings, given["run"]))))


if __name__ == "__main__":
    main()
