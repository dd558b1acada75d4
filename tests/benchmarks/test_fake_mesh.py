"""Peaks of a process's memory on a mesh that does not exist, beside what `pedigree plan` predicts."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from benchmarks import fake_mesh
from benchmarks.fake_mesh import DEVICE, HOST, Case
from training.pretrain.forecast import Layout
from training.pretrain.models.account import preset_shape
from training.pretrain.models.shape import ExpertLayers

SHAPE = replace(preset_shape("10m"), layers=4, width=512, mlp_width=2048, vocab_size=2048)
LAYOUT = Layout(nodes=2, processes=8, shard=16, micro_batch_tokens=512, recompute="full")
PHASES = (("begin", DEVICE), ("begin", HOST), ("step", DEVICE), ("held-out text", DEVICE), ("sample", DEVICE))
PHASES += (("sample by the whole", DEVICE), ("save", HOST), ("export", DEVICE), ("export", HOST), ("resume", DEVICE))


def test_every_phase_holds_what_the_plan_predicts_and_a_model_joined_in_one_process_shows():
    rows = list(fake_mesh.rows_of(Case(shape=SHAPE, layout=LAYOUT, length=512, control="gathered")))
    assert tuple(row[:2] for row in rows) == PHASES
    differing = {row[0]: row[2] for row in rows if fake_mesh.differs(*row[2:])}
    assert list(differing) == ["sample by the whole"], rows
    assert differing["sample by the whole"] > 4 * SHAPE.parameter_count


@pytest.mark.parametrize(("vocab_size", "recompute"), [(2048, "none"), (2048, "full"), (32_768, "full")])
def test_weights_that_are_sent_in_bf16_take_what_the_plan_predicts(vocab_size, recompute):
    layout = replace(LAYOUT, gather_dtype="bf16", recompute=recompute)
    case = Case(shape=replace(SHAPE, vocab_size=vocab_size), layout=layout, length=512)
    rows = {row[:2]: row[2:] for row in fake_mesh.rows_of(case)}
    assert ("logits in fp32", DEVICE) in rows
    assert {name: sizes for name, sizes in rows.items() if fake_mesh.differs(*sizes)} == {}


# The last four are fewer than the processes, which have a part of each.
EXPERTS = ({"count": 16, "active": 1, "width": 1024}, {"count": 16, "active": 4, "width": 256})
EXPERTS += ({"count": 4, "active": 1, "width": 1024},)


@pytest.mark.parametrize("experts", EXPERTS)
def test_experts_take_what_the_plan_predicts(experts):
    shape = replace(SHAPE, experts=ExpertLayers(**experts))
    rows = fake_mesh.rows_of(Case(shape=shape, layout=replace(LAYOUT, gather_dtype="bf16"), length=512))
    assert [row for row in rows if fake_mesh.differs(*row[2:])] == []


@pytest.mark.parametrize(
    ("degrees", "recompute", "length"),
    [
        ({"tensor": 4}, "selective", 4096),  # inputs of attention and MLP are most of what is kept
        ({"context": 4}, "full", 512),  # the message of gradients is the most
        ({"tensor": 2, "context": 2, "shard": 2}, "none", 512),
    ],
)
def test_rows_and_layers_that_several_processes_have_take_what_the_plan_predicts(degrees, recompute, length):
    layout = Layout(processes=prod(degrees.values()), micro_batch_tokens=length, recompute=recompute, **degrees)
    rows = {row[:2]: row[2:] for row in fake_mesh.rows_of(Case(shape=SHAPE, layout=layout, length=length))}
    assert {name: sizes for name, sizes in rows.items() if fake_mesh.differs(*sizes)} == {}


@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_a_model_that_a_process_has_whole_keeps_the_copies_of_its_layers(recompute):
    case = Case(shape=SHAPE, layout=Layout(micro_batch_tokens=512, recompute=recompute), length=512)
    rows = {row[:2]: row[2:] for row in fake_mesh.rows_of(case)}
    compared = {phase: rows[phase, DEVICE] for phase in ("begin", "step", "held-out text")}
    assert {name: sizes for name, sizes in compared.items() if fake_mesh.differs(*sizes)} == {}
