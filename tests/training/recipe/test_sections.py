"""An edit of the record of a section moves the code of the stages that read the section, and of no other stage."""

from __future__ import annotations

import dataclasses
import importlib
import typing
from collections.abc import Iterator

import pytest

from evaluation.stages import STAGES as EVALUATION_STAGES
from training.contract.identity.closure import Code
from training.recipe.recipe import Recipe
from training.stages import STAGES as TRAINING_STAGES

STAGES = {**TRAINING_STAGES, **EVALUATION_STAGES}

POSTTRAINED = "instructions sft preferences prompts reward align"
SCORED = "evaluate score_step score_quantized choose judge"
SEARCHED = (
    f"benchmarks decontaminate instructions preferences prompts {SCORED} contamination watched_items check_suites"
)

FILLED = "pretrain doremi extend evaluate score_step score_quantized choose"

# The stages whose code reads a section. `card` prints the whole recipe, and so is not repeated in each row.
READERS = {
    "training.adopt.settings": "adopt",
    "training.recipe.settings.automation": "",
    "training.data.crawl.settings": "crawl extract",
    "training.data.exams.decontaminate_settings": SEARCHED,
    "training.data.dedup.settings": "sign dedup",
    "training.data.exams.settings": SEARCHED,
    "training.data.extract.settings": "extract",
    "training.data.filter.settings": "score filter",
    "training.order.settings": "plan evaluate score_step score_quantized choose",
    "training.data.quality.settings": "quality score",
    "training.data.tokens.tokenize_settings": "tokenize",
    "training.data.tokens.tokenizer_settings": "tokenizer tokenize adopt",
    "training.recipe.settings.evaluation": f"{SCORED} contamination watched_items check_suites",
    "training.recipe.settings.judged_chat": "judge_chat",
    "training.recipe.settings.safety": "safety",
    "training.generate.settings": "synthesize",
    "training.recipe.settings.ladder": "scaling",
    "training.posttrain.adapter_settings": "sft align judge reward",
    "training.posttrain.align.settings": "align judge",
    "training.posttrain.align.watch_settings": "align judge",
    "training.posttrain.prompts.settings": "prompts",
    "training.posttrain.preferences.settings": "preferences",
    "training.posttrain.reward.settings": "reward align judge",
    "training.posttrain.sft.settings": "sft",
    "training.posttrain.source_settings": f"{POSTTRAINED} judge contamination",
    "training.order.batch_settings": "plan pretrain doremi extend learning_curves watched_items",
    "training.pretrain.stages.doremi_settings": "doremi",
    "training.pretrain.stages.long_context_settings": "extend",
    "training.pretrain.settings": "pretrain doremi extend",
    "training.pretrain.models.shape": f"adopt {FILLED}",
    "training.pretrain.losses.settings": FILLED,
    "training.pretrain.objectives.settings": FILLED,
    "training.pretrain.optim.average_settings": "pretrain doremi extend",
    "training.pretrain.spikes": "pretrain doremi extend",
    "training.pretrain.watch.keep_settings": "average pretrain doremi extend",
    "training.pretrain.watch.settings": "pretrain doremi extend",
    "training.pretrain.watch.steps_settings": "average pretrain doremi extend sft align judge",
    "training.pretrain.watch.stop_settings": "pretrain doremi extend",
    "training.quantize.settings": "quantize",
    "training.recipe.settings.promote": "promote",
    "training.recipe.settings.provider": "",
    "training.recipe.settings.withdrawals": "",
    "training.recipe.recipe": "",
    "training.recipe.recipes": "",
}


@pytest.fixture(scope="module")
def code() -> Code:
    """The code as it lies there, with every part of every package of parts."""
    return Code(all_parts=True)


def test_an_edit_of_a_section_moves_the_stages_that_read_it_and_no_others(code):
    closures = {name: set(code.closure(stage.module)) for name, stage in STAGES.items() if name != "card"}
    read = {module: {name for name in closures if module in closures[name]} for module in READERS}
    assert read == {module: set(names.split()) for module, names in READERS.items()}


def test_of_all_stages_the_card_alone_reads_the_whole_recipe(code):
    assert [name for name, stage in STAGES.items() if "training.recipe.recipe" in code.closure(stage.module)] == [
        "card"
    ]


def records_of(cls: type) -> Iterator[type]:
    """A record and every record in its fields."""
    yield cls
    for hint in typing.get_type_hints(cls).values():
        for inner in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(inner):
                yield from records_of(inner)


def test_every_record_of_the_recipe_lives_in_a_module_of_the_table():
    homes = {record.__module__ for record in records_of(Recipe)}
    assert homes <= READERS.keys() | {"training.data.kitchen.settings"}
    assert all(importlib.import_module(name) for name in READERS)
