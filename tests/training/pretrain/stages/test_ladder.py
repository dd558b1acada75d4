"""A rung of a scaling ladder is trained by the stage that trains the base model."""

from __future__ import annotations

import dataclasses

import pytest

from tests.training.pretrain import tiny
from training.contract.records import RecipeError
from training.pretrain.stages import pretrain as stage


def test_a_rung_reads_its_own_plan_and_no_second_one(tmp_path):
    chain = tiny.TinyChain(tmp_path)
    rung = dataclasses.replace(chain.plan_artifact, asset="ladder_plan")
    job = dataclasses.replace(chain.job("rung"), inputs=(rung, chain.shards, chain.tokenizer))
    plan, *_ = stage.open_inputs(job, chain.pretrain)
    assert plan.record.steps == chain.pretrain.steps
    both = dataclasses.replace(job, inputs=(rung, chain.plan_artifact, chain.shards, chain.tokenizer))
    with pytest.raises(RecipeError, match="names 2"):
        stage.open_inputs(both, chain.pretrain)
